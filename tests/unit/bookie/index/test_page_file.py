"""Index files in Apache's layout: golden files of Apache, round trips, arbitrary bytes."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.entrylog.format import split_location
from bookie.errors import FormatError
from bookie.index.page_file import (
    PAGE_FILE_HEADER_BYTES,
    PageFileHeader,
    decode_page_file_header,
    encode_page_file_header,
    page_file_ledger_id,
    page_file_path,
    put_locations,
    used_page_bytes,
)
from tests.places import GOLDEN_FILES

GOLDEN = GOLDEN_FILES / "bookie_files"
RESTARTED = sorted(path.name for path in GOLDEN.glob("*-restarted-*.idx.hex"))
KEY = bytes.fromhex("0bcbf07f63ce95909ce6c8592e0230d55de79249")
LAC_PACKET = bytes.fromhex("0000000000000002" + "0000000000000001" + "5d8ac388")
EXPECTED = {
    "1": PageFileHeader(KEY, False, None),
    "2": PageFileHeader(KEY, False, LAC_PACKET),
    "102": PageFileHeader(KEY, True, None),
    # Fenced by a read when it did not exist; a write after the restart created it.
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
def test_apaches_files_are_decoded(name: str) -> None:
    data, ledger = golden(name), name.split("-")[3].split(".")[0]
    assert decode_page_file_header(data[:PAGE_FILE_HEADER_BYTES]) == EXPECTED[ledger]
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
def test_our_headers_equal_apaches_byte_by_byte(name: str) -> None:
    theirs = golden(name)[:PAGE_FILE_HEADER_BYTES]
    ours = encode_page_file_header(decode_page_file_header(theirs))
    # Without a LAC, Apache writes version 1 and no LAC length: the bytes are zeros, as ours.
    assert ours == theirs


def test_the_path_consists_of_the_two_lowest_bytes() -> None:
    root = Path("/i")
    assert page_file_path(root, 258) == root / "1" / "2" / "102.idx"
    assert page_file_path(root, 0) == root / "0" / "0" / "0.idx"
    assert page_file_path(root, 0x1234_5678_9ABC) == root / "9a" / "bc" / "123456789abc.idx"
    assert page_file_ledger_id("102.idx") == 258
    assert page_file_ledger_id("102.idx.rloc") is None


def test_fields_that_do_not_fit_are_omitted_and_never_overlap_the_slots() -> None:
    packet = b"p" * 40
    data = encode_page_file_header(PageFileHeader(b"k" * 990, True, packet))
    assert decode_page_file_header(data) == PageFileHeader(b"k" * 990, True, None)
    assert encode_page_file_header(PageFileHeader(b"k" * 2000, True, None)) == bytes(PAGE_FILE_HEADER_BYTES)


@given(st.binary(max_size=900), st.booleans(), st.none() | st.binary(min_size=16, max_size=100))
def test_a_header_survives_a_round_trip(key: bytes, fenced: bool, packet: bytes | None) -> None:
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


@given(st.integers(1, 4), st.sets(st.integers(0, 255), max_size=5))
def test_the_used_part_of_a_page_ends_with_its_last_location(sectors: int, slots: set[int]) -> None:
    data = bytearray(512 * sectors)
    entry_ids = sorted(slot for slot in slots if slot < len(data) // 8)
    if entry_ids:
        put_locations(data, 0, entry_ids, [256 + slot for slot in entry_ids])
    assert used_page_bytes(data) == 8 * (max(entry_ids, default=-1) + 1)
