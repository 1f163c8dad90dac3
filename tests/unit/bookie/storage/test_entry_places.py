"""Where a ledger's entries lie, for readers of the entry log itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bookie.damage.damaged_entries import DamagedEntry
from bookie.entrylog.format import entry_log_name
from bookie.storage.entry_places import EntryPlace
from bookie.storage.entry_reads import ReadConfig
from ledger.packed_entries import unpack_whole_entries
from tests.fakes.directory_by_hand import Directory, body

FEW = ReadConfig().place_bytes_min // 1036  # a place of so many entries is too small


@pytest.fixture
async def directory(tmp_path: Path) -> AsyncIterator[Directory]:
    opened = Directory(tmp_path)
    yield opened
    opened.close()


async def place_of(
    directory: Directory, first: int, count_max: int = 5000, size_bytes_max: int = 8 << 20
) -> EntryPlace | None:
    return await directory.reads.place(directory.ledgers[1], first, count_max, size_bytes_max)


async def located(directory: Directory, first: int, *limits: int) -> int:
    """How many entries the place names; each must lie there."""
    place = await place_of(directory, first, *limits)
    if place is None:
        return 0
    data = (directory.path / entry_log_name(place.log_id)).read_bytes()
    for at, start in enumerate(place.starts):
        (found,) = unpack_whole_entries(data[place.offset + start :], 1)
        assert found == body(1, first + at)
    return len(place.starts)


@pytest.mark.slow
async def test_neighbours_are_located_across_the_chunks_of_the_index(directory: Directory) -> None:
    for first in range(0, 1500, 300):  # each a flush
        directory.store(1, range(first, first + 300))
    assert await located(directory, 0) == 1500
    assert await located(directory, 299) == 1201
    assert await located(directory, 10, 500) == 500
    assert await located(directory, 0, 5000, 100_000) == 97
    assert await located(directory, 1500 - FEW) == 0
    assert await located(directory, 1500) == 0


async def test_entries_of_another_ledger_between_two_flushes_end_a_place(directory: Directory) -> None:
    directory.store(1, range(300))
    directory.store(2, range(3))
    directory.store(1, range(300, 600))
    assert await located(directory, 0) == 300
    assert await located(directory, 300) == 300


async def test_an_entry_that_was_added_again_is_located_where_the_index_says(directory: Directory) -> None:
    directory.store(1, range(300))
    old = directory.index.locate(1, 200)[0]
    directory.store(1, [200])
    place = await place_of(directory, 0)
    assert place is not None
    assert 1024 + place.starts[200] + 4 != old & 0xFFFFFFFF
    assert await located(directory, 0) == 201
    assert await located(directory, 201) == 99


async def test_entries_in_memory_end_a_place(directory: Directory) -> None:
    directory.store(1, range(300))
    directory.store(1, range(300, 600))
    record = directory.ledgers[1]
    directory.cache.begin(record)[300] = body(1, 300)
    assert await located(directory, 0) == 300
    assert await located(directory, 300) == 0


async def test_nothing_is_located_while_an_entry_is_known_to_be_damaged(directory: Directory) -> None:
    directory.store(1, range(300))
    directory.damaged.add(DamagedEntry(1, 5, directory.index.locate(1, 5)[0], "its digest does not hold"))
    assert await place_of(directory, 0) is None


async def test_nothing_is_located_in_a_deleted_ledger(directory: Directory) -> None:
    directory.store(1, range(300))
    record = directory.ledgers[1]
    directory.deleting.add(1)
    assert await place_of(directory, 0) is None
    directory.deleting.clear()
    del directory.ledgers[1]
    assert await directory.reads.place(record, 0, 5000, 8 << 20) is None
