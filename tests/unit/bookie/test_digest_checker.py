"""The checksum of an entry, without a password."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bookie.digest_checker import CHECKSUM_TYPES, checksum_type
from ledger.digest import DigestType
from tests.fakes.directory_by_hand import sealed
from tests.strategies import DIGEST_TYPES


@given(digest_type=DIGEST_TYPES, size=st.integers(1, 60), entry_id=st.integers(0, 2**62), at=st.integers(0))
def test_a_checksum_holds_for_its_own_type_only_and_for_no_changed_byte(
    digest_type: DigestType, size: int, entry_id: int, at: int
) -> None:
    body = sealed(digest_type)(1, entry_id, size)
    expected = digest_type if digest_type in CHECKSUM_TYPES else None
    assert checksum_type(body) is expected
    for other in CHECKSUM_TYPES:
        assert checksum_type(body, other) is (other if other is expected else None)
    changed = bytearray(body)
    changed[at % len(body)] ^= 1
    if digest_type is not DigestType.DUMMY:
        assert checksum_type(bytes(changed), expected) is None


def test_an_entry_too_short_for_a_checksum_matches_none() -> None:
    for size in range(36):
        assert checksum_type(bytes(size)) is None
