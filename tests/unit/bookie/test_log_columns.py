"""Columns of an entry log: the same entries that the scan finds one by one."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from bookie.entry_log_format import HEADER_BYTES, RECORD_PREFIX, EntryLogScan, encode_header
from bookie.log_columns import take_columns

Stretch = tuple[int, int, int, int]  # how many records, of which length, from which ledger, from which entry


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


@settings(max_examples=200)
@given(STRETCHES, st.binary(max_size=30))
def test_columns_are_what_the_scan_finds(stretches: list[Stretch], tail: bytes) -> None:
    data = log_of(stretches, tail)
    scan = EntryLogScan(lambda size, at: data[at : at + size], len(data))
    expected = [(entry.ledger_id, entry.entry_id, entry.offset) for entry in scan.entries()]
    found = []
    at = HEADER_BYTES
    while (columns := take_columns(data[at:], at)) is not None:
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


def test_a_stretch_is_taken_as_far_as_its_lengths_are_equal() -> None:
    data = log_of([(100, 40, 1, 0), (100, 41, 2, 5)], b"")
    first = take_columns(data[HEADER_BYTES:], HEADER_BYTES)
    assert first is not None
    assert (list(first.ledger_ids), list(first.entry_ids)) == ([1] * 100, list(range(100)))
    second = take_columns(data[first.stop :], first.stop)
    assert second is not None
    assert list(second.entry_ids) == list(range(5, 105))
    assert second.stop == len(data)
    assert {b - a for a, b in pairwise(second.locations(0))} == {45}


def test_what_is_no_plain_entry_is_left_to_the_scan() -> None:
    map_group = log_of([(50, 40, -1, 0)], b"")[HEADER_BYTES:]
    assert take_columns(map_group, 0) is None
    before_it = log_of([(50, 40, 3, 0), (50, 40, -1, 0)], b"")
    columns = take_columns(before_it[HEADER_BYTES:], HEADER_BYTES)
    assert columns is not None
    assert len(columns.entry_ids) == 50
    for length in (0, 15, -1, 2**31 - 1):
        assert take_columns(RECORD_PREFIX.pack(length, 1, 1) * 100, 0) is None
    assert take_columns(b"", 0) is None
