"""Columns of an entry log: the same entries as a scan finds one by one."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from bookie.entrylog.columnar import decode_columns
from bookie.entrylog.format import HEADER_BYTES, RECORD_PREFIX, EntryLogScan, encode_header
from tests.effort import examples

Stretch = tuple[int, int, int, int]  # number of records, length, ledger id, first entry id


def log_of(stretches: list[Stretch], tail: bytes) -> bytes:
    data = bytearray(encode_header())
    for count, length, ledger_id, first in stretches:
        for entry_id in range(first, first + count):
            data += RECORD_PREFIX.pack(length, ledger_id, entry_id) + bytes(length - 16)
    return bytes(data) + tail


STRETCHES = st.lists(
    st.tuples(
        st.integers(1, 60), st.sampled_from([16, 17, 300]), st.integers(-1, 2**62), st.integers(-5, 2**62)
    ),
    max_size=6,
)


@settings(max_examples=examples(200))
@given(STRETCHES, st.binary(max_size=30))
def test_columns_equal_the_result_of_a_scan(stretches: list[Stretch], tail: bytes) -> None:
    data = log_of(stretches, tail)
    scan = EntryLogScan(lambda size, at: data[at : at + size], len(data))
    expected = [(entry.ledger_id, entry.entry_id, entry.offset) for entry in scan.entries()]
    found = []
    at = HEADER_BYTES
    while (columns := decode_columns(data[at:], at)) is not None:
        locations = columns.locations(7)
        found += [
            (ledger_id, entry_id, location - (7 << 32))
            for ledger_id, entry_id, location in zip(
                columns.ledger_ids, columns.entry_ids, locations, strict=True
            )
        ]
        assert columns.stop > at
        at = columns.stop
    assert found == expected[: len(found)]
    assert at <= len(data)


def test_columns_end_where_the_length_changes() -> None:
    data = log_of([(100, 40, 1, 0), (100, 41, 2, 5)], b"")
    first = decode_columns(data[HEADER_BYTES:], HEADER_BYTES)
    assert first is not None
    assert (list(first.ledger_ids), list(first.entry_ids)) == ([1] * 100, list(range(100)))
    second = decode_columns(data[first.stop :], first.stop)
    assert second is not None
    assert list(second.entry_ids) == list(range(5, 105))
    assert second.stop == len(data)
    assert {b - a for a, b in pairwise(second.locations(0))} == {45}


def test_unusual_records_are_left_to_the_scan() -> None:
    map_group = log_of([(50, 40, -1, 0)], b"")[HEADER_BYTES:]
    assert decode_columns(map_group, 0) is None
    before_it = log_of([(50, 40, 3, 0), (50, 40, -1, 0)], b"")
    columns = decode_columns(before_it[HEADER_BYTES:], HEADER_BYTES)
    assert columns is not None
    assert len(columns.entry_ids) == 50
    for length in (0, 15, -1, 2**31 - 1):
        assert decode_columns(RECORD_PREFIX.pack(length, 1, 1) * 100, 0) is None
    assert decode_columns(b"", 0) is None
