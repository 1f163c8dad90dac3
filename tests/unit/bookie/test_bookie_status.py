"""``BOOKIE_STATUS``: Apache's line, and lines that are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.bookie_status import BookieStatus, decode_status, encode_status, newest_status
from bookie.errors import FormatError
from tests.strategies import IDS


def test_the_line_is_apaches() -> None:
    assert encode_status(BookieStatus(True, 1700000000123, True)) == b"1,READ_ONLY,1700000000123,true\n"
    assert decode_status(b"1,READ_WRITE,17,false\n") == BookieStatus(False, 17, False)
    assert decode_status(b"1,READ_ONLY,17") == BookieStatus(True, 17, True), "three fields: by hand"


@given(st.builds(BookieStatus, st.booleans(), IDS, st.booleans()))
def test_a_status_survives_encoding_and_decoding(status: BookieStatus) -> None:
    assert decode_status(encode_status(status)) == status


@given(st.binary(max_size=60))
def test_any_bytes_are_a_status_or_an_error(data: bytes) -> None:
    try:
        status = decode_status(data)
    except FormatError:
        return
    assert data.startswith(b"1,READ_")
    assert status.read_only == data.startswith(b"1,READ_ONLY")


@pytest.mark.parametrize(
    "line", [b"", b"2,READ_ONLY,1,true", b"1,READONLY,1,true", b"1,READ_ONLY,x,true", b"1,READ_ONLY,1,true,1"]
)
def test_another_line_is_refused(line: bytes) -> None:
    with pytest.raises(FormatError):
        decode_status(line)


def test_the_newest_of_several_directories_counts() -> None:
    old, new = BookieStatus(True, 1, True), BookieStatus(False, 2, False)
    assert newest_status([old, new]) == newest_status([new, old]) == new
    assert newest_status([]) is None
