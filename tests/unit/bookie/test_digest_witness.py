"""Which digest a ledger has, told by its entries, and which of them do not hold it."""

from __future__ import annotations

from directory_by_hand import sealed
from hypothesis import given
from hypothesis import strategies as st

from bookie.digest_witness import DigestWitness
from ledger.digest import DigestType


def test_one_coincidence_among_many_is_no_proof_of_a_type() -> None:
    make, other = sealed(), sealed(DigestType.DUMMY)
    witness = DigestWitness()
    assert witness.look((e, other(1, e, 30)) for e in range(100)) == []
    assert witness.look([(100, make(1, 100, 30))]) == []
    assert witness.digest_type is None
    assert sorted(witness.look([(101, make(1, 101, 30))])) == list(range(100))


def test_to_look_at_an_entry_again_is_no_more_proof_than_the_first_look_was() -> None:
    make = sealed()
    witness = DigestWitness()
    assert witness.look([(0, make(1, 0, 30)), (1, b"x" * 60)]) == [1]
    for _ in range(3):
        assert witness.holds(make(1, 0, 30))
        assert not witness.holds(b"x" * 60)
        assert not witness.holds(sealed(DigestType.CRC32)(1, 0, 30))
    assert witness.look([(2, make(1, 2, 30))]) == [], "what was given back is not given back again"


@given(
    digest_type=st.sampled_from(DigestType),
    count=st.integers(2, 40),
    bad=st.sets(st.integers(0, 39), max_size=10),
    cut=st.integers(1, 7),
)
def test_the_witness_agrees_with_one_who_was_told_the_type(
    digest_type: DigestType, count: int, bad: set[int], cut: int
) -> None:
    make = sealed(digest_type)
    bodies = []
    for entry_id in range(count):
        body = bytearray(make(1, entry_id, 40))
        if entry_id in bad:
            body[-1] ^= 1
        bodies.append((entry_id, bytes(body)))
    witness = DigestWitness()
    doubted: list[int] = []
    for start in range(0, count, cut):
        doubted += witness.look(bodies[start : start + cut])
    is_crc = digest_type in (DigestType.CRC32, DigestType.CRC32C)
    damaged = {entry_id for entry_id in bad if entry_id < count}
    if is_crc and count - len(damaged) >= 2:
        assert set(doubted) == damaged
        assert witness.digest_type is digest_type
    else:
        assert set(doubted) <= (damaged if is_crc else set())
