"""The store as one thing, on a real disk."""

# covers: bookie/storage/opening.py

from __future__ import annotations

import contextlib
import logging
import os
import struct
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import attrs
import pytest
import trio

from bookie.disk.disk import Disk
from bookie.disk.real_disk import RealDisk
from bookie.errors import (
    DirectoryInUseError,
    EntryUnreadableError,
    IndexMissingError,
    NoEntryError,
    NoLedgerError,
    StorageClosedError,
    StorageFailedError,
)
from bookie.journal.files import JournalConfig
from bookie.journal.format import decode_mark, explicit_lac_record, fence_record, key_record
from bookie.ledger_record import UNKNOWN_KEY
from bookie.storage.config import StorageConfig
from bookie.storage.opening import open_storage
from bookie.storage.storage import Storage
from tests.fakes.storage_by_hand import KEY, FailingDisk, add, entry, kill, names, submit


def config_for(directory: Path) -> StorageConfig:
    return StorageConfig(
        journal_directories=(directory / "journal",),
        ledger_directories=(directory / "ledgers",),
        journal=JournalConfig(file_bytes_max=256 << 10, preallocate_bytes=64 << 10, group_bytes_max=64 << 10),
        write_cache_bytes_max=1 << 20,
        flush_interval_s=3600,
    )


def opened(directory: Path, disk: Disk | None = None) -> AbstractAsyncContextManager[Storage]:
    return open_storage(disk or RealDisk(), config_for(directory))


async def test_an_entry_can_be_read_from_cache_from_disk_and_after_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        await add(storage, 1, range(10))
        assert storage.read_cached(1, 5) == entry(1, 5)
        assert await storage.read(1, 5) == entry(1, 5)
        await storage.flush()
        assert storage.read_cached(1, 5) is None
        assert await storage.read(1, 5) == entry(1, 5)
    async with opened(tmp_path) as storage:
        assert await storage.read(1, 5) == entry(1, 5)
        assert storage.ledger_ids() == [1]
        assert "1 ledgers" in repr(storage)


async def test_what_is_not_there_is_told_apart(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        await add(storage, 1, [0, 2])
        for _ in range(2):
            with pytest.raises(NoLedgerError):
                await storage.read(2, 0)
            with pytest.raises(NoEntryError):
                await storage.read(1, 1)
            with pytest.raises(NoEntryError):
                await storage.read_batch(1, 3, 10, 1000)
            assert storage.read_cached(2, 0) is None
            await storage.flush()


@pytest.mark.slow
async def test_after_a_kill_everything_acknowledged_is_replayed(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        ledger = await add(storage, 1, range(2000), 500)
        batch = storage.new_batch()
        storage.stage_fence(batch, ledger)
        storage.stage_explicit_lac(batch, ledger, struct.pack(">qq", 1, 5000) + b"dige")
        await submit(storage, batch)
        await kill(storage)
    async with opened(tmp_path) as storage:
        ledger = storage.ledger(1)  # type: ignore[assignment]
        assert (ledger.master_key, ledger.fenced, ledger.lac, ledger.last_entry_id) == (KEY, True, 5000, 1999)
        assert ledger.explicit_lac == struct.pack(">qq", 1, 5000) + b"dige"
        for entry_id in (0, 1000, 1999):
            assert await storage.read(1, entry_id) == entry(1, entry_id, 500)
        assert await storage.entry_ids(1) == list(range(2000))


async def test_replaying_twice_changes_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        await add(storage, 1, range(300))
        await kill(storage)
    mark = tmp_path / "ledgers/current/lastMark"
    for _ in range(2):
        async with opened(tmp_path) as storage:
            assert await storage.read_batch(1, 0, 1000, 1 << 20) == [entry(1, e) for e in range(300)]
            await kill(storage)
        assert decode_mark(mark.read_bytes()).offset == 4096


async def test_a_fence_on_an_idle_ledger_survives_a_checkpoint_with_an_empty_cache(tmp_path: Path) -> None:
    """apache/bookkeeper#4843: the mark moved past a fence that was in memory only."""
    async with opened(tmp_path) as storage:
        ledger = await add(storage, 1, [0])
        await storage.flush()
        batch = storage.new_batch()
        storage.stage_fence(batch, ledger)
        storage.stage_explicit_lac(batch, ledger, struct.pack(">qq", 1, 0))
        storage.create_ledger(batch, 2, KEY)
        await submit(storage, batch)
        await storage.flush()
        await kill(storage)
    async with opened(tmp_path) as storage:
        first, second = storage.ledger(1), storage.ledger(2)
        assert first is not None
        assert first.fenced
        assert first.explicit_lac == struct.pack(">qq", 1, 0)
        assert second is not None
        assert second.master_key == KEY


async def test_the_lac_and_the_last_entry_are_known_after_a_restart_before_any_add(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        await add(storage, 1, [0, 1, 7])
    async with opened(tmp_path) as storage:
        ledger = storage.ledger(1)
        assert ledger is not None
        assert (ledger.lac, ledger.last_entry_id) == (6, 7)


async def test_a_ledger_with_an_unknown_key_takes_the_first_key_offered(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        batch = storage.new_batch()
        record = storage.create_ledger(batch, 900, UNKNOWN_KEY)
        storage.stage_fence(batch, record)
        await submit(storage, batch)
        batch = storage.new_batch()
        assert storage.create_ledger(batch, 900, KEY) is record
        await submit(storage, batch)
        await kill(storage)
    async with opened(tmp_path) as storage:
        again = storage.ledger(900)
        assert again is not None
        assert (again.master_key, again.fenced) == (KEY, True)


async def test_a_run_of_reads_crosses_caches_chunks_and_gaps(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        await add(storage, 1, range(1500), 60)
        await storage.flush()
        await add(storage, 1, range(1500, 1600), 60)
        await add(storage, 1, range(1700, 1710), 60)
        everything = [entry(1, e, 60) for e in range(1600)]
        for first in (0, 1, 1023, 1024, 1499, 1500, 1599):
            got: list[bytes] = []
            while first + len(got) < 1600:
                more = await storage.read_batch(1, first + len(got), 10_000, 1 << 20)
                assert more
                got += more
            assert got == everything[first:]
        assert len(await storage.read_batch(1, 10, 7, 1 << 20)) == 7
        assert len(await storage.read_batch(1, 10, 100, 96 * 3)) == 3
        assert len(await storage.read_batch(1, 1498, 100, 96 * 3)) == 3
        assert len(await storage.read_batch(1, 1498, 100, 1)) == 1


async def test_a_damaged_entry_is_an_error_and_its_neighbours_are_read(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        await add(storage, 1, range(3))
        await storage.flush()
        log = tmp_path / "ledgers/current/0.log"
        data = bytearray(log.read_bytes())
        data[1024 + 136 + 4 + 15] ^= 1  # the entry id of entry 1
        log.write_bytes(data)
        assert await storage.read_batch(1, 0, 3, 1000) == [entry(1, 0)]
        assert await storage.read(1, 2) == entry(1, 2)
        with pytest.raises(EntryUnreadableError, match="entry 1:1"):
            await storage.read(1, 1)
        with pytest.raises(EntryUnreadableError):
            await storage.read_batch(1, 1, 2, 1000)
        log.unlink()
        storage.stores[0].reader.forget(0)
        storage.stores[0].reads.drop_ledger(1)  # what was read before is kept
        with pytest.raises(EntryUnreadableError):
            await storage.read(1, 2)


async def test_a_deleted_ledger_is_gone_also_after_a_restart_and_its_log_goes_too(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        await add(storage, 1, range(10))
        await add(storage, 3, range(10))
        await storage.flush()
        await add(storage, 1, range(10, 20))
        await storage.delete_ledger(1)
        await storage.delete_ledger(1)
        with pytest.raises(NoLedgerError):
            await storage.read(1, 5)
        assert await storage.remove_dead_logs() == [], "ledger 3 is in that log, too"
        await storage.delete_ledger(3)
    async with opened(tmp_path) as storage:
        assert storage.ledger_ids() == []
        assert await storage.remove_dead_logs() == [0]
        await add(storage, 2, [0])
        await storage.flush()
        assert names(tmp_path, "ledgers/current/*.log") == ["ledgers/current/1.log"]


@pytest.mark.slow
async def test_many_ledgers_are_deleted_with_one_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as storage:
        for ledger_id in range(50):
            await add(storage, ledger_id, [0])
        await storage.flush()
        index, syncs = storage.stores[0].files.index, 0
        sync = index.sync

        def counted() -> None:
            nonlocal syncs
            syncs += 1
            sync()

        monkeypatch.setattr(index, "sync", counted)
        await storage.delete_ledgers([*range(40), 7, 1000])
        assert syncs == 1
        assert not storage.stores[0].deleting
        assert storage.ledger_ids() == list(range(40, 50))
    async with opened(tmp_path) as storage:
        assert storage.ledger_ids() == list(range(40, 50))


async def test_a_ledger_made_anew_at_once_has_none_of_the_old_ones_entries(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        await add(storage, 1, range(10))
        await storage.flush()
        await add(storage, 1, range(10, 20))
        storage.checkpointer.begin(storage.journals.marks)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(storage.delete_ledger, 1)
            while storage.ledger(1) is not None:
                await trio.lowlevel.checkpoint()
            batch = storage.new_batch()
            again = storage.create_ledger(batch, 1, b"n" * 20)
            storage.stage_entry(batch, again, 3, -1, entry(1, 3, 7))
            for entry_id in (5, 15):
                with pytest.raises(NoEntryError):
                    await storage.read(1, entry_id)
        await submit(storage, batch)
        await storage.flush()
        assert await storage.entry_ids(1) == [3]
        assert await storage.read(1, 3) == entry(1, 3, 7)


async def test_two_bookies_never_share_a_directory(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        await add(storage, 1, [0])
        with pytest.raises(DirectoryInUseError, match=str(os.getpid())):
            async with opened(tmp_path):
                raise AssertionError("opened twice")
        assert await storage.read(1, 0) == entry(1, 0)
    async with opened(tmp_path) as storage:
        assert await storage.read(1, 0) == entry(1, 0)


async def test_journal_and_ledgers_may_share_a_directory(tmp_path: Path) -> None:
    config = attrs.evolve(config_for(tmp_path), journal_directories=(tmp_path / "ledgers",))
    for _ in range(2):
        async with open_storage(RealDisk(), config) as storage:
            await add(storage, 1, [0])


async def test_an_error_in_the_block_comes_out_as_it_is(tmp_path: Path) -> None:
    async def fail() -> None:
        async with opened(tmp_path) as storage:
            await add(storage, 1, [0])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    async with opened(tmp_path) as storage:
        assert await storage.read(1, 0) == entry(1, 0)


async def test_leaving_while_cancelled_still_flushes(tmp_path: Path) -> None:
    with trio.CancelScope() as scope:
        async with opened(tmp_path) as storage:
            await add(storage, 1, [0])
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert names(tmp_path, "ledgers/current/*.log") == ["ledgers/current/0.log"]


@pytest.mark.slow
async def test_the_cache_is_bounded_and_room_comes_back(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        batch = storage.new_batch()
        ledger = storage.create_ledger(batch, 1, KEY)
        most = 0
        for entry_id in range(3000):
            storage.stage_entry(batch, ledger, entry_id, -1, entry(1, entry_id, 2000))
            storage.submit(batch, lambda error: None)
            batch = storage.new_batch()
            await storage.wait_capacity()
            most = max(most, storage.checkpointer.active_bytes + storage.checkpointer.sealed_bytes)
        assert most < (1 << 20) + 10_000
        assert storage.capacity_waits > 0
        await storage.flush()
        assert storage.read_bytes == 0
        assert await storage.read(1, 2999) == entry(1, 2999, 2000)
        assert storage.read_bytes == len(entry(1, 2999, 2000))
        assert storage.disk_usage().free_bytes > 0


@pytest.mark.slow
async def test_the_journal_is_trimmed_by_itself(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        await add(storage, 1, range(1000), 3000)
        await storage.flush()
        assert len(names(tmp_path, "journal/current/*.txn")) == 1
        assert len(names(tmp_path, "journal/current/spare-*")) <= 2


@pytest.mark.slow
async def test_a_checkpoint_comes_by_itself_after_a_while(
    tmp_path: Path, autojump_clock: trio.abc.Clock
) -> None:
    config = attrs.evolve(config_for(tmp_path), flush_interval_s=10)
    async with open_storage(RealDisk(), config) as storage:
        begun_id = storage.checkpointer.begun_id
        await add(storage, 1, [0])  # which may take "ten seconds": the clock jumps while a thread works
        await trio.sleep(11)
        await storage.checkpointer.wait_marked(begun_id + 1)
        assert storage.read_cached(1, 0) is None


async def test_deferred_adds_are_flushed_and_marked(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        batch = storage.new_batch()
        ledger = storage.create_ledger(batch, 1, KEY)
        storage.stage_entry(batch, ledger, 0, -1, entry(1, 0))
        await submit(storage, batch, sync=False)
        await storage.flush()
        mark = decode_mark(RealDisk().read_file(tmp_path / "ledgers/current/lastMark"))
        assert (mark,) == storage.journals.marks
        assert mark.offset > 4096


@pytest.mark.slow
async def test_what_is_acknowledged_unsynced_is_synced_soon_if_that_is_wished(
    tmp_path: Path, autojump_clock: trio.abc.Clock
) -> None:
    config = attrs.evolve(config_for(tmp_path), sync_interval_s=1)
    async with open_storage(RealDisk(), config) as storage:
        batch = storage.new_batch()
        ledger = storage.create_ledger(batch, 1, KEY)
        storage.stage_entry(batch, ledger, 0, -1, entry(1, 0))
        await submit(storage, batch, sync=False)
        await trio.sleep(1.1)
        await storage.journals.sync()  # waits for the one that was begun
        assert not storage.journals.has_unsynced
        assert storage.journals._journals[0].sync_count == 2, "the first file's, and one for the entry"


# --- what was lost --------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_lost_mark_means_that_everything_is_replayed(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        await add(storage, 1, range(5))
    for content in (None, b"", b"short"):
        mark = tmp_path / "ledgers/current/lastMark"
        if content is None:
            mark.unlink()
        else:
            mark.write_bytes(content)
        async with opened(tmp_path) as storage:
            assert await storage.entry_ids(1) == [0, 1, 2, 3, 4]


def move_index_away(directory: Path, to: str) -> None:
    (directory / "ledgers/current/index").rename(directory / to)


@pytest.mark.slow
async def test_a_lost_index_is_noticed_and_rebuilt_only_if_asked_for(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        await add(storage, 1, range(100))
        await add(storage, 2, [3, 5])
        await storage.flush()
        await add(storage, 1, range(100, 110))
    move_index_away(tmp_path, "lost")
    with pytest.raises(IndexMissingError, match="rebuild-index"):
        async with opened(tmp_path):
            raise AssertionError("opened without its index")
    async with open_storage(RealDisk(), attrs.evolve(config_for(tmp_path), rebuild_index=True)) as storage:
        assert await storage.entry_ids(1) == list(range(110))
        assert await storage.entry_ids(2) == [3, 5]
        assert await storage.read(1, 105) == entry(1, 105)
        record = storage.ledger(2)
        assert record is not None
        assert (record.fenced, record.master_key, record.lac, record.last_entry_id) == (
            True,
            UNKNOWN_KEY,
            4,
            5,
        )
    async with opened(tmp_path) as storage:
        assert await storage.read(2, 5) == entry(2, 5)


async def test_a_bookie_whose_entries_are_all_in_the_journal_does_not_start_without_its_index(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path):
        pass
    move_index_away(tmp_path, "lost")
    with pytest.raises(IndexMissingError):
        async with opened(tmp_path):
            raise AssertionError("opened without its index")


# --- failing disks --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suffix", "what"),
    [(".txn", "write_durably"), (".log", "write"), (".log", "sync"), (".tmp", "write"), (".tmp", "sync")],
)
async def test_a_failed_write_stops_the_bookie_and_loses_nothing(
    tmp_path: Path, suffix: str, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FailingDisk(lambda path, did: suffix in path.name and did == what)
    acknowledged = []
    async with opened(tmp_path, disk) as storage:
        await add(storage, 1, [0])
        await storage.flush()
        acknowledged.append(0)
        disk.is_failing = True
        with contextlib.suppress(StorageFailedError):
            await add(storage, 1, [1])
            acknowledged.append(1)
            await storage.flush()
            raise AssertionError("the fault was not met")
        error = await storage.wait_failed()
        assert "Input/output error" in str(error)
        with pytest.raises(StorageFailedError):
            await add(storage, 1, [2])
        with pytest.raises(StorageFailedError):
            await storage.flush()
        with pytest.raises(StorageFailedError):
            await storage.wait_capacity()
        assert await storage.read(1, 0) == entry(1, 0), "reads go on"
        disk.is_failing = False
        with pytest.raises(StorageFailedError):
            await submit(storage, storage.new_batch())
        with pytest.raises(StorageFailedError, match="the storage has failed"):
            await storage.submit_durably(storage.new_batch())
    assert any(record.levelno == logging.ERROR for record in caplog.records)
    async with opened(tmp_path) as storage:
        for entry_id in acknowledged:
            assert await storage.read(1, entry_id) == entry(1, entry_id)
        await add(storage, 1, [3])


async def test_what_was_submitted_durably_survives_a_kill(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        batch = storage.new_batch()
        ledger = storage.create_ledger(batch, 1, KEY)
        storage.stage_entry(batch, ledger, 0, -1, entry(1, 0))
        await storage.submit_durably(batch)
        await kill(storage)
    async with opened(tmp_path) as storage:
        assert await storage.read(1, 0) == entry(1, 0)


async def test_a_key_is_journaled_before_fence_and_entries(tmp_path: Path) -> None:
    """Java journals a fence without the key when it is the first contact, and loses it in replay."""
    async with opened(tmp_path) as storage:
        batch = storage.new_batch()
        ledger = storage.create_ledger(batch, 1, KEY)
        storage.stage_fence(batch, ledger)
        storage.stage_entry(batch, ledger, 0, -1, entry(1, 0))
        storage.stage_explicit_lac(batch, ledger, struct.pack(">qq", 1, -1))
        records = [key_record(1, KEY), fence_record(1), entry(1, 0)]
        assert batch.records == [[*records, explicit_lac_record(1, struct.pack(">qq", 1, -1))]]
        await submit(storage, batch)


async def test_work_of_a_storage_that_was_closed_ends_with_an_error(tmp_path: Path) -> None:
    ran: list[int] = []
    async with opened(tmp_path) as storage:
        await add(storage, 1, range(10))
        await storage.flush()
    store = storage.stores[0]
    with pytest.raises(StorageClosedError, match="the storage is closed; nothing was done"):
        await store.in_thread(lambda: ran.append(1))
    _, deleted = store.forget_ledgers([store.ledgers[1]])
    await deleted.wait()
    assert ran == []
    async with opened(tmp_path) as storage:
        assert await storage.read(1, 5) == entry(1, 5)
