from __future__ import annotations

import pytest

from dlog.errors import LogMetadataError
from namespace.dlsn import DLSN, INITIAL_DLSN, INVALID_DLSN, NON_INCLUSIVE_LOWER_BOUND


def test_dlsns_compare_in_log_order() -> None:
    ordered = [
        INVALID_DLSN,
        NON_INCLUSIVE_LOWER_BOUND,
        INITIAL_DLSN,
        DLSN(1, 0, 1),
        DLSN(1, 2, 0),
        DLSN(2, 0, 0),
    ]
    assert sorted(ordered, reverse=True) == ordered[::-1]
    assert NON_INCLUSIVE_LOWER_BOUND.next_slot() == INITIAL_DLSN
    assert repr(DLSN(7, 12, 0)) == "DLSN(7, 12, 0)"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no bytes"),
        (bytes([2]) + bytes(24), "version 2"),
        (bytes([0]) + bytes(24), "25 bytes, version 0 has 200"),
        (bytes([1]) + bytes(23), "24 bytes, version 1 has 25"),
        (bytes([1]) + bytes(199), "200 bytes, version 1 has 25"),
        (bytes(199) + b"x", "175 zero bytes"),
    ],
)
def test_bytes_that_are_no_dlsn_are_refused_with_the_reason(data: bytes, reason: str) -> None:
    with pytest.raises(LogMetadataError, match=reason):
        DLSN.from_bytes(data)


@pytest.mark.parametrize("text", ["", "garbage!", "AQ==\n", "ü", "AQAAAAAAAAABAAAAAAAAAAIAAAAAAAAAAw"])
def test_text_that_is_no_dlsn_is_refused(text: str) -> None:
    with pytest.raises(LogMetadataError, match="stored DLSN"):
        DLSN.from_text(text)


def test_numbers_beyond_64_bits_and_unknown_versions_are_not_stored() -> None:
    with pytest.raises(ValueError, match="64-bit"):
        DLSN(2**63, 0, 0).to_bytes()
    with pytest.raises(ValueError, match="version 2"):
        INITIAL_DLSN.to_bytes(2)
