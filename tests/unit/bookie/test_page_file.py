"""Index files in Apache's layout: Apache's own, round trips, any bytes."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.entry_log_format import split_location
from bookie.errors import FormatError
from bookie.page_file import (
    PAGE_FILE_HEADER_BYTES,
    PageFileHeader,
    decode_page_file_header,
    encode_page_file_header,
    page_file_ledger_id,
    page_file_path,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "bookie_files"
RESTARTED = sorted(path.name for path in GOLDEN.glob("*-restarted-*.idx.hex"))
KEY = bytes.fromhex("0bcbf07f63ce95909ce6c8592e0230d55de79249")
LAC_PACKET = bytes.fromhex("0000000000000002" + "0000000000000001" + "5d8ac388")
SAID = {
    "1": PageFileHeader(KEY, False, None),
    "2": PageFileHeader(KEY, False, LAC_PACKET),
    "102": PageFileHeader(KEY, True, None),
    # Fenced by a read when it did not exist; a write after the restart made it.
    "384": PageFileHeader(KEY, False, None),
}
COUNTS = {"1": 5, "2": 4, "102": 3, "384": 1}


def golden(name: str) -> bytes:
    first, *lines = (GOLDEN / name).read_text().splitlines()
    data = bytearray(int(first.removeprefix("size ")))
    for line in lines:
        offset, content = line.split()
        data[int(offset, 16) : int(offset, 16) + len(content) // 2] = bytes.fromhex(content)
    return bytes(data)


@pytest.mark.parametrize("name", RESTARTED)
def test_apaches_files_say_what_they_are_known_to_say(name: str) -> None:
    data, ledger = golden(name), name.split("-")[3].split(".")[0]
    assert decode_page_file_header(data[:PAGE_FILE_HEADER_BYTES]) == SAID[ledger]
    locations = [n for (n,) in struct.iter_unpack(">q", data[PAGE_FILE_HEADER_BYTES:])]
    assert all(locations[: COUNTS[ledger]])
    assert not any(locations[COUNTS[ledger] :])
    for location in locations[: COUNTS[ledger]]:
        log_id, offset = split_location(location)
        log = golden(f"{name.rpartition('-')[0]}-{log_id:x}.log.hex")
        ledger_id, entry_id = struct.unpack_from(">qq", log, offset)
        assert ledger_id == int(ledger, 16)
        assert locations[entry_id] == location


@pytest.mark.parametrize("name", RESTARTED)
def test_our_headers_are_apaches_byte_by_byte(name: str) -> None:
    theirs = golden(name)[:PAGE_FILE_HEADER_BYTES]
    ours = encode_page_file_header(decode_page_file_header(theirs))
    # Apache writes version 1 with no LAC length behind it as long as there is no LAC: zeros, too.
    assert ours == theirs


def test_the_path_is_made_of_the_two_lowest_bytes() -> None:
    root = Path("/i")
    assert page_file_path(root, 258) == root / "1" / "2" / "102.idx"
    assert page_file_path(root, 0) == root / "0" / "0" / "0.idx"
    assert page_file_path(root, 0x1234_5678_9ABC) == root / "9a" / "bc" / "123456789abc.idx"
    assert page_file_ledger_id("102.idx") == 258
    assert page_file_ledger_id("102.idx.rloc") is None


def test_what_does_not_fit_is_left_out_and_never_runs_into_the_slots() -> None:
    packet = b"p" * 40
    data = encode_page_file_header(PageFileHeader(b"k" * 990, True, packet))
    assert decode_page_file_header(data) == PageFileHeader(b"k" * 990, True, None)
    assert encode_page_file_header(PageFileHeader(b"k" * 2000, True, None)) == bytes(PAGE_FILE_HEADER_BYTES)


@given(st.binary(max_size=900), st.booleans(), st.none() | st.binary(min_size=16, max_size=100))
def test_a_header_comes_back(key: bytes, fenced: bool, packet: bytes | None) -> None:
    header = PageFileHeader(key, fenced, packet)
    data = encode_page_file_header(header)
    assert len(data) == PAGE_FILE_HEADER_BYTES
    assert decode_page_file_header(data) == header


@given(st.binary(max_size=64) | st.binary(max_size=64).map(lambda rest: b"BKLE\0\0\0\1" + rest))
def test_any_bytes_are_a_header_or_a_format_error(data: bytes) -> None:
    try:
        header = decode_page_file_header(data)
    except FormatError:
        return
    assert header.master_key in data
