from __future__ import annotations

import struct

import pytest

from ledger.catalog.availability import decode_availability, encode_availability
from ledger.errors import WireError


def listed(*groups: tuple[int, int, int, int], version: int = 0, count: int | None = None) -> bytes:
    header = struct.pack(">ii56x", version, len(groups) if count is None else count)
    return header + b"".join(struct.pack(">qqii", *group) for group in groups)


def members(data: bytes) -> list[int]:
    availability = decode_availability(data)
    return [entry_id for entry_id in range(-2, 50) if entry_id in availability]


def test_a_group_of_many_sequences_is_decoded() -> None:
    data = listed((2, 12, 3, 5), (20, 20, 2, 0))
    assert members(data) == [2, 3, 4, 7, 8, 9, 12, 13, 14, 20, 21]
    assert len(decode_availability(data)) == 11


def test_regular_sequences_become_one_group() -> None:
    assert encode_availability([0, 1, 5, 6, 10, 11, 20]) == listed((0, 10, 2, 5), (20, 20, 1, 0))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(63),
        listed(version=1),
        listed(count=1),
        listed(count=-1),
        listed((5, 4, 1, 1)),
        listed((0, 0, 0, 0)),
        listed((0, 4, 3, 2)),
        listed((0, 5, 1, 2)),
        listed((0, 4, 1, 0)),
        listed((5, 5, 1, 0), (5, 5, 1, 0)),
        listed((-3, -3, 1, 0)),
        listed((2**63 - 1, 2**63 - 1, 2, 0)),
        listed((0, 2**63 - 2**30, 2**30, 2**30)),
    ],
)
def test_impossible_lists_of_entries_are_refused(data: bytes) -> None:
    with pytest.raises(WireError, match="list of"):
        decode_availability(data)


def test_a_huge_list_takes_little_memory() -> None:
    data = listed((0, 10**15, 1, 10))
    availability = decode_availability(data)
    assert len(availability) == 10**14 + 1
    assert 10**15 in availability
    assert 10**15 - 1 not in availability


def test_a_list_covers_what_one_sequence_holds() -> None:
    lists = decode_availability(listed((2, 12, 3, 5), (20, 20, 6, 0), (30, 34, 4, 4)))
    for first in range(45):
        for last in range(first, 45):
            if lists.covers(first, last):
                assert all(entry_id in lists for entry_id in range(first, last + 1))
    assert lists.covers(20, 25)
    assert lists.covers(30, 37)
    assert not lists.covers(20, 26)
    assert not lists.covers(2, 7)


@pytest.mark.parametrize(
    ("first", "expected"),
    [(0, (1, 1)), (2, (14, 5)), (4, (14, 5)), (15, (19, 1)), (20, (21, 1)), (22, (None, 1))],
)
def test_an_entry_is_in_a_part_that_repeats(first: int, expected: tuple[int | None, int]) -> None:
    availability = decode_availability(listed((2, 12, 3, 5), (20, 20, 2, 0)))
    assert availability.repeats(first) == expected


def test_a_range_is_covered_by_one_sequence_alone() -> None:
    availability = decode_availability(listed((2, 12, 3, 5), (20, 30, 5, 5)))
    covered = {
        (first, last) for first in range(40) for last in range(first, 40) if availability.covers(first, last)
    }
    in_one = {
        (first, last)
        for start, stop in [(2, 4), (7, 9), (12, 14), (20, 34)]
        for first in range(start, stop + 1)
        for last in range(first, stop + 1)
    }
    assert covered == in_one
