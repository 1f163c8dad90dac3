"""Garbage collection of entry logs with a damaged index: it keeps logs with unknown references."""

# covers: bookie/length_prefixes.py

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from bookie.disk.real_disk import RealDisk
from bookie.entrylog.compaction_files import UnfinishedCompactions, unfinished_compactions
from bookie.entrylog.format import HEADER_BYTES, encode_header
from bookie.errors import EntryUnreadableError, FormatError
from bookie.gc.compaction_rules import CompactionLevel
from bookie.gc.compactor import CompactionCopy
from bookie.index.index_factory import IndexConfig, IndexKind
from bookie.index.page_cache import PageIndexConfig
from bookie.index.page_file import PAGE_FILE_HEADER_BYTES, page_file_path
from bookie.storage.storage import Storage
from tests.fakes.log_summaries import summarise
from tests.fakes.logs_by_hand import collect, complete_log, logs, names, opened, readable

PAGE_BYTES = 512
PAGE_ENTRIES = PAGE_BYTES // 8


def paged(directory: Path) -> AbstractAsyncContextManager[Storage]:
    return opened(
        directory, index=IndexConfig(kind=IndexKind.PAGES, pages=PageIndexConfig(page_bytes=PAGE_BYTES))
    )


def damage_page(directory: Path, ledger_id: int, number: int = 0) -> None:
    """Damage a page of a stopped bookie's index; a running one may have the page in memory."""
    path = page_file_path(directory / "l/current", ledger_id)
    data = bytearray(path.read_bytes())
    data[PAGE_FILE_HEADER_BYTES + PAGE_BYTES * number + 5] ^= 1
    path.write_bytes(data)


async def publish(storage: Storage, log_id: int) -> int:
    """Compact a log up to the published copy, as before a power cut; return the copy's id."""
    (store,) = storage.stores
    summary = summarise(RealDisk(), store.directory, log_id)
    target_id = store.files.writer.ids.allocate()
    copy = CompactionCopy(
        RealDisk(), store.directory, store.files.index, [summary], target_id,
        lambda ledger_id: storage.ledger(ledger_id) is not None, slice_bytes=4096,
    )  # fmt: skip
    while copy.step() is not None:
        pass
    copy.publish()
    return target_id


@pytest.mark.slow
async def test_a_compaction_blocked_by_a_damaged_page_waits_and_stops_no_other(
    tmp_path: Path,
) -> None:
    async with paged(tmp_path) as storage:
        await complete_log(storage, {1: range(10), 9: range(90)})
        await complete_log(storage, {2: range(10), 9: range(90, 180)})
        await storage.delete_ledger(9)
        assert [await publish(storage, log_id) for log_id in (0, 1)] == [2, 3]
    damage_page(tmp_path, 1)
    async with paged(tmp_path) as storage:
        for rounds in (1, 2):
            collector = await collect(storage)
            assert (collector.stats.failures, collector.stats.quarantined) == (rounds, {})
            assert "0.log" in (collector.stats.last_failure or "")
            assert unfinished_compactions(names(tmp_path)).pending == {2: (0,)}
            assert sorted(logs(tmp_path)) == [0, 2, 3]
        assert await readable(storage, {2: range(10)})
        with pytest.raises(EntryUnreadableError):
            await storage.read(1, 0)
        await storage.delete_ledger(1)  # removes the damaged page, as a repair does
        await collect(storage)
        assert logs(tmp_path) == {3: {2: 1320}}
        assert unfinished_compactions(names(tmp_path)).pending == {}


@pytest.mark.slow
async def test_a_source_is_deleted_only_after_a_scan_of_the_index_for_all_its_ledgers(tmp_path: Path) -> None:
    async with paged(tmp_path) as storage:
        await complete_log(storage, {1: range(10), 9: range(90)})
        await complete_log(storage, {1: range(PAGE_ENTRIES, PAGE_ENTRIES + 10)})
        await storage.delete_ledger(9)
    damage_page(tmp_path, 1, 1)  # whether it references the first log is unknown
    async with paged(tmp_path) as storage:
        collector = await collect(storage)
        assert collector.stats.failures == 1
        assert unfinished_compactions(names(tmp_path)).pending == {2: (0,)}
        assert 0 in logs(tmp_path)
        assert await readable(storage, {1: range(10)})
        await storage.delete_ledger(1)
        await collect(storage)
        assert logs(tmp_path) == {}


@pytest.mark.slow
@pytest.mark.parametrize("is_torn", [False, True])
async def test_a_log_without_a_map_is_kept_while_the_index_is_damaged_and_others_are_deleted(
    tmp_path: Path, is_torn: bool
) -> None:
    async with paged(tmp_path) as storage:
        await complete_log(storage, {8: range(10)})
        await complete_log(storage, {9: range(90)})
        await complete_log(storage, {1: range(10)})
        await storage.delete_ledger(8)
        await storage.delete_ledger(9)
    path = tmp_path / "l/current/0.log"  # without a map, as after a crash
    records = path.read_bytes()[HEADER_BYTES : HEADER_BYTES + 1320]
    path.write_bytes(
        encode_header() + records + bytes(700 if is_torn else 0) + b"\xff\xee\xdd" * 99 * is_torn
    )
    damage_page(tmp_path, 1)
    async with paged(tmp_path) as storage:
        collector = await collect(storage, CompactionLevel.MINOR)
        assert sorted(logs(tmp_path)) == [0, 2]
        assert (collector.stats.failures, collector.stats.quarantined) == (1, {})
        assert (collector.stats.logs, collector.stats.deleted_logs) == (1, 1)
        await storage.delete_ledger(1)
        await collect(storage, CompactionLevel.MINOR)
        assert logs(tmp_path) == {}
        assert (collector.stats.failures, collector.stats.deleted_logs) == (1, 3)


@pytest.mark.slow
async def test_a_damaged_page_blocks_the_compaction_of_its_log_only(
    tmp_path: Path,
) -> None:
    async with paged(tmp_path) as storage:
        for number in range(4):
            await complete_log(storage, {1 + number: range(10), 9: range(90 * number, 90 * number + 90)})
        await storage.delete_ledger(9)
    damage_page(tmp_path, 2)
    async with paged(tmp_path) as storage:
        for failures in (1, 2):
            collector = await collect(storage)
            assert (collector.stats.failures, collector.stats.quarantined) == (failures, {})
            assert "1.log" in (collector.stats.last_failure or "")
            kept, copied = sorted(logs(tmp_path))
            assert logs(tmp_path) == {kept: {2: 1320, 9: 11880}, copied: {1: 1320, 3: 1320, 4: 1320}}
            assert unfinished_compactions(names(tmp_path)) == UnfinishedCompactions((), {})
        assert await readable(storage, {1: range(10), 3: range(10), 4: range(10)})
        await storage.delete_ledger(2)
        await collect(storage)
        assert logs(tmp_path) == {copied: {1: 1320, 3: 1320, 4: 1320}}


async def test_an_index_that_cannot_be_read_fails_the_compaction_and_not_the_bookie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with paged(tmp_path) as storage:
        await complete_log(storage, {1: range(10), 9: range(90)})
        await storage.delete_ledger(9)
        index = storage.stores[0].files.index

        def fail(*_: object) -> None:
            raise FormatError("a page of the index is damaged")

        monkeypatch.setattr(index, "relocate", fail)
        collector = await collect(storage)
        assert (collector.stats.failures, unfinished_compactions(names(tmp_path)).pending) == (1, {1: (0,)})
        monkeypatch.undo()
        monkeypatch.setattr(index, "locate", fail)
        await collector.finish_compactions()
        assert (collector.stats.failures, unfinished_compactions(names(tmp_path)).pending) == (2, {1: (0,)})
        monkeypatch.undo()
        await collector.finish_compactions()
        assert logs(tmp_path) == {1: {1: 1320}}
        assert await readable(storage, {1: range(10)})
