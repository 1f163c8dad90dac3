"""The digest type of a ledger, inferred from its entries, and the entries that do not match it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bookie.damage.digest_checker import DigestChecker
from ledger.digest import DigestType
from tests.fakes.directory_by_hand import sealed
from tests.strategies import DIGEST_TYPES


def test_one_match_among_many_entries_does_not_prove_the_type() -> None:
    make, other = sealed(), sealed(DigestType.DUMMY)
    checker = DigestChecker()
    assert checker.check((e, other(1, e, 30)) for e in range(100)) == []
    assert checker.check([(100, make(1, 100, 30))]) == []
    assert checker.digest_type is None
    assert sorted(checker.check([(101, make(1, 101, 30))])) == list(range(100))


def test_checking_an_entry_again_is_no_further_proof_of_the_type() -> None:
    make = sealed()
    checker = DigestChecker()
    assert checker.check([(0, make(1, 0, 30)), (1, b"x" * 60)]) == [1]
    for _ in range(3):
        assert checker.is_valid(make(1, 0, 30))
        assert not checker.is_valid(b"x" * 60)
        assert not checker.is_valid(sealed(DigestType.CRC32)(1, 0, 30))
    assert checker.check([(2, make(1, 2, 30))]) == [], "a damaged entry is returned once"


@given(
    digest_type=DIGEST_TYPES,
    count=st.integers(2, 40),
    bad=st.sets(st.integers(0, 39), max_size=10),
    cut=st.integers(1, 7),
)
def test_the_checker_agrees_with_a_check_that_knows_the_type(
    digest_type: DigestType, count: int, bad: set[int], cut: int
) -> None:
    make = sealed(digest_type)
    bodies = []
    for entry_id in range(count):
        body = bytearray(make(1, entry_id, 40))
        if entry_id in bad:
            body[-1] ^= 1
        bodies.append((entry_id, bytes(body)))
    checker = DigestChecker()
    found: list[int] = []
    for start in range(0, count, cut):
        found += checker.check(bodies[start : start + cut])
    is_crc = digest_type in (DigestType.CRC32, DigestType.CRC32C)
    damaged = {entry_id for entry_id in bad if entry_id < count}
    if is_crc and count - len(damaged) >= 2:
        assert set(found) == damaged
        assert checker.digest_type is digest_type
    else:
        assert set(found) <= (damaged if is_crc else set())
