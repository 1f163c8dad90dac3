"""Any bytes in a bookie's files give values or that format's error, in bounded memory."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from bookie.entrylog.format import HEADER_BYTES, EntryLogScan, decode_map, encode_header, encode_map
from bookie.errors import FormatError, JournalCorruptError
from bookie.index.chunk_index import IndexChunk
from bookie.journal.format import (
    FIRST_GROUP_OFFSET,
    Predecessor,
    decode_mark,
    decode_special,
    encode_first_block,
)
from bookie.journal.replay import JournalScan
from bookie.limits import RECORD_BYTES_MAX
from tests.strategies import IDS

LENGTHS = st.sampled_from(
    [-0x100, -1, 0, 1, 15, 16, 20, 24, 100, RECORD_BYTES_MAX, RECORD_BYTES_MAX + 1, 2**31 - 1, -(2**31)]
)
PIECES = st.lists(
    st.one_of(
        LENGTHS.map(lambda n: struct.pack(">i", n)),
        st.binary(max_size=60),
        st.just(b"DLJT\0\1\0\0" + bytes(7) + b"\x05"),
        st.just(bytes(300)),
    ),
    max_size=30,
).map(b"".join)


@given(PIECES, st.booleans(), st.integers(0, 5000))
def test_any_journal_gives_records_or_an_error(tail: bytes, is_ours: bool, start: int) -> None:
    head = encode_first_block(5, Predecessor(4, 4096)) if is_ours else b"BKLG\0\0\0\6".ljust(512, b"\0")
    data = head + tail
    scan = JournalScan(lambda size, at: data[at : at + size], len(data), 5)
    try:
        records = [record for records in scan.groups(start) for record in records]
    except (JournalCorruptError, FormatError):
        return
    assert all(16 <= len(record) <= len(data) for record in records)
    if is_ours:
        assert records == []  # nothing here has a trailer that holds
        assert scan.end >= FIRST_GROUP_OFFSET


@given(st.binary(max_size=2000))
def test_any_file_is_a_journal_or_an_error(data: bytes) -> None:
    try:
        scan = JournalScan(lambda size, at: data[at : at + size], len(data), 5)
        assert list(scan.groups()) == []
    except (JournalCorruptError, FormatError):
        pass


@given(st.binary(max_size=40))
def test_any_record_and_mark_are_values_or_an_error(data: bytes) -> None:
    for decode in (decode_mark, decode_special):
        if decode is decode_special and len(data) < 16:
            continue  # the scan hands out nothing shorter
        try:
            decode(data)
        except FormatError:
            continue


@given(PIECES)
def test_any_entry_log_gives_entries_inside_it_or_damage(tail: bytes) -> None:
    data = encode_header() + tail
    scan = EntryLogScan(lambda size, at: data[at : at + size], len(data))
    for entry in scan.entries():
        assert HEADER_BYTES + 4 <= entry.offset <= entry.offset + entry.size_bytes <= len(data)
        assert entry.ledger_id >= 0
        assert entry.entry_id >= 0


@given(st.binary(max_size=100), st.binary(max_size=200))
def test_any_map_is_believed_only_if_it_holds(head: bytes, tail: bytes) -> None:
    data = (b"BKLO" + head).ljust(HEADER_BYTES, b"\0") + tail
    ledgers = decode_map(data[:HEADER_BYTES], lambda size, at: data[at : at + size], len(data))
    assert ledgers is None or len(ledgers) > 0


@given(st.dictionaries(IDS, st.integers(0, 2**40), min_size=1, max_size=50))
def test_a_map_comes_back(ledgers: dict[int, int]) -> None:
    data = encode_header(HEADER_BYTES, len(ledgers)) + encode_map(ledgers)
    assert decode_map(data[:HEADER_BYTES], lambda size, at: data[at : at + size], len(data)) == ledgers


@given(st.binary(max_size=60))
def test_any_index_value_is_a_chunk_or_an_error(value: bytes) -> None:
    try:
        chunk = IndexChunk(7, value)
    except FormatError:
        return
    assert len(chunk.entry_ids()) == len(chunk.locations(0, chunk.count)) == chunk.count
