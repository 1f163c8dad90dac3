"""Garbage collection of one directory's logs: deletion, compaction, quarantine."""

# covers: bookie/entrylog/open_log.py
# covers: bookie/index/index_scan.py

from __future__ import annotations

import random
from pathlib import Path

import attrs
import pytest
import trio

from bookie.disk.disk import DiskUsage
from bookie.entrylog.compaction_files import unfinished_compactions
from bookie.entrylog.format import HEADER_BYTES, decode_header, encode_header, entry_log_name
from bookie.errors import CompactionError, NoLedgerError, StorageFailedError
from bookie.gc.compaction_rules import CompactionConfig, CompactionLevel
from bookie.storage.config import StorageConfig
from bookie.storage.opening import open_storage
from bookie.storage.storage import Storage
from tests.fakes.logs_by_hand import (
    COMPACTION,
    add,
    collect,
    complete_log,
    entry,
    logs,
    names,
    opened,
    readable,
)
from tests.fakes.simulated_disk import SimulatedDisk


@pytest.mark.slow
async def test_dead_entries_are_removed_and_several_logs_become_one(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        for number in range(3):
            await complete_log(storage, {1: range(number * 10, number * 10 + 10), 2 + number: range(100)})
        full = await complete_log(storage, {1: range(30, 40)})
        for ledger_id in (2, 3, 4):
            await storage.delete_ledger(ledger_id)
        collector = await collect(storage)
        assert logs(tmp_path) == {full: {1: 1320}, 4: {1: 3960}}
        assert await readable(storage, {1: range(40)})
        stats = collector.stats
        assert (stats.compacted_logs, stats.copied_bytes, stats.failures) == (3, 3960, 0)
        assert (stats.logs, stats.total_bytes, stats.live_bytes) == (2, 5280, 5280)
    async with opened(tmp_path) as storage:
        assert await readable(storage, {1: range(40)})
    assert unfinished_compactions(names(tmp_path)).pending == {}


async def test_minor_compaction_takes_only_almost_empty_logs(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        await complete_log(storage, {1: range(10), 9: range(90)})
        half = await complete_log(storage, {2: range(50), 9: range(100, 150)})
        await storage.delete_ledger(9)
        await collect(storage, CompactionLevel.MINOR)
        assert logs(tmp_path) == {half: {2: 6600, 9: 6600}, 2: {1: 1320}}
        await collect(storage, CompactionLevel.MAJOR)
        assert logs(tmp_path) == {2: {1: 1320}, 3: {2: 6600}}


async def test_of_an_entry_stored_twice_only_the_indexed_one_is_kept(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        first = await complete_log(storage, {1: range(100), 2: range(100)})
        await complete_log(storage, {1: range(50, 100)})
        await storage.delete_ledger(2)
        await collect(storage)
        assert logs(tmp_path) == {1: {1: 6600}, 2: {1: 6600}}, f"log {first} had 50 live entries"
        assert await readable(storage, {1: range(100)})


async def test_a_log_whose_entries_were_all_stored_again_is_deleted_without_a_copy(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        await complete_log(storage, {1: range(20), 2: range(100)})
        await complete_log(storage, {1: range(20)})
        await storage.delete_ledger(2)
        await collect(storage)
        assert logs(tmp_path) == {1: {1: 2640}}
        assert await readable(storage, {1: range(20)})


@pytest.mark.slow
async def test_a_striped_ledger_is_copied_completely(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        await complete_log(storage, {1: range(0, 3000, 3), 2: range(1000)})
        await storage.delete_ledger(2)
        await collect(storage)
        assert logs(tmp_path) == {1: {1: 132_000}}
        assert await readable(storage, {1: range(0, 3000, 3)})
        assert await storage.entry_ids(1) == list(range(0, 3000, 3))


@pytest.mark.slow
@pytest.mark.parametrize("at", [2, 20, 27, 29])  # while copying; at its end; while the index moves
async def test_concurrent_changes_take_precedence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Between two slices entries are stored again, a ledger is deleted, another deleted and re-created."""
    async with opened(tmp_path) as storage:
        await complete_log(storage, {1: range(60), 2: range(60), 3: range(60), 4: range(600)})
        await storage.delete_ledger(4)
        (collector,) = storage.collectors
        slices = 0

        async def meanwhile(size_bytes: int, entries: int) -> None:
            nonlocal slices
            slices += 1
            if slices == at:
                await add(storage, 1, range(10))
                await storage.flush()
                await storage.delete_ledger(2)
                await storage.delete_ledger(3)
                await add(storage, 3, range(5), size=200)
                await storage.flush()

        monkeypatch.setattr(collector, "_wait_for", meanwhile)
        await collect(storage)
        assert slices > at
        assert await readable(storage, {1: range(60)})
        assert await storage.entry_ids(3) == list(range(5))
        for entry_id in range(5):
            assert await storage.read(3, entry_id) == entry(3, entry_id, 200), (
                "the entries of the re-created ledger"
            )
        with pytest.raises(NoLedgerError):
            await storage.read(2, 0)
    async with opened(tmp_path) as storage:
        assert storage.ledger_ids() == [1, 3]
        assert await readable(storage, {1: range(60)})
        assert await storage.read(3, 4) == entry(3, 4, 200)


@pytest.mark.slow
async def test_reads_succeed_during_compaction(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        for number in range(4):
            await complete_log(
                storage,
                {1: range(number * 100, number * 100 + 100), 2: range(number * 200, number * 200 + 100)},
            )
        await storage.delete_ledger(2)
        rng, reads = random.Random(5), 0
        async with trio.open_nursery() as nursery:

            async def read() -> None:
                nonlocal reads
                while True:
                    entry_id = rng.randrange(400)
                    storage.stores[0].reads.drop_ledger(1)  # no cached entries
                    assert await storage.read(1, entry_id) == entry(1, entry_id)
                    bodies = await storage.read_batch(1, entry_id, 10, 1 << 20)
                    assert bodies[0] == entry(1, entry_id)
                    reads += 1
                    await trio.lowlevel.checkpoint()

            nursery.start_soon(read)
            await collect(storage)
            nursery.cancel_scope.cancel()
        assert reads > 10
        assert storage.stores[0].reader.open_logs_count <= 2, "files of deleted logs are closed"


async def test_a_cancelled_compaction_leaves_no_copy_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as storage:
        source = await complete_log(storage, {1: range(100), 2: range(100)})
        await storage.delete_ledger(2)
        (collector,) = storage.collectors
        with trio.CancelScope() as scope:

            async def cancel(size_bytes: int, entries: int) -> None:
                scope.cancel()
                await trio.lowlevel.checkpoint()

            monkeypatch.setattr(collector, "_wait_for", cancel)
            await collect(storage)
        assert scope.cancelled_caught
        assert unfinished_compactions(names(tmp_path)).abandoned == ()
        assert logs(tmp_path) == {source: {1: 13200, 2: 13200}}
        monkeypatch.undo()
        await collect(storage)
        assert await readable(storage, {1: range(100)})
        assert logs(tmp_path) == {2: {1: 13200}}, "the id of the cancelled copy is not reused"


async def test_an_open_log_is_not_compacted(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        await add(storage, 1, range(10))
        await add(storage, 2, range(100))
        await storage.flush()
        await storage.delete_ledger(2)
        await collect(storage)
        await add(storage, 1, range(10, 20))
        await storage.flush()
        storage.stores[0].reads.drop_ledger(1)
        assert await readable(storage, {1: range(20)})
        assert sorted(logs(tmp_path)) == [0]


async def test_the_next_round_finishes_a_failed_compaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as storage:
        await complete_log(storage, {1: range(10), 2: range(90)})
        await storage.delete_ledger(2)

        def fail(*_: object) -> None:
            raise CompactionError("injected")

        monkeypatch.setattr("bookie.gc.compactor.delete_sources", fail)
        collector = await collect(storage)
        assert collector.stats.failures == 1
        assert await collector.remove_dead() == []
        assert await collector.compact(CompactionLevel.MAJOR) == 0
        present = sorted(name for name in names(tmp_path) if ".log" in name)
        assert present == ["0.log", "1.log", "1.log.0.compacted"]
        assert collector.stats.logs == 0, "neither log may be deleted or compacted"
        monkeypatch.undo()
        await collect(storage)
        assert logs(tmp_path) == {1: {1: 1320}}
        assert unfinished_compactions(names(tmp_path)).pending == {}
        assert await readable(storage, {1: range(10)})


# --- time and space ---


async def test_a_compaction_respects_its_rate(autojump_clock: trio.abc.Clock) -> None:
    for config, at_least, at_most in (
        (attrs.evolve(COMPACTION, rate_bytes_per_s=10_000), 3.0, 7.0),
        (attrs.evolve(COMPACTION, rate_entries_per_s=20), 8.0, 12.0),
    ):
        disk = SimulatedDisk()
        async with open_storage(disk, small(config), wall_ms=lambda: 1000) as storage:
            await complete_log(storage, {1: range(100), 2: range(200)})  # 40 kB, of which 13 kB are live
            await storage.delete_ledger(2)
            began = trio.current_time()
            await collect(storage)
            assert at_least <= trio.current_time() - began <= at_most
            assert await readable(storage, {1: range(100)})


async def test_no_further_log_is_started_after_the_time_limit(autojump_clock: trio.abc.Clock) -> None:
    config = attrs.evolve(COMPACTION, rate_bytes_per_s=10_000, major_time_max_s=6.0)
    async with open_storage(
        SimulatedDisk(), small(config, log_bytes=20_000), wall_ms=lambda: 1000
    ) as storage:
        for number in range(3):
            await complete_log(storage, {1: range(number * 100, number * 100 + 100), 2: range(1000, 1040)})
        await storage.delete_ledger(2)
        collector = await collect(storage)
        assert collector.stats.compacted_logs == 2
        await collector.compact(CompactionLevel.MAJOR)
        assert collector.stats.compacted_logs == 3


def small(compaction: CompactionConfig, log_bytes: int = 1 << 20) -> StorageConfig:
    from bookie.journal.files import JournalConfig

    return StorageConfig(
        journal_directories=(Path("/j"),),
        ledger_directories=(Path("/l"),),
        journal=JournalConfig(file_bytes_max=64 << 10, preallocate_bytes=16 << 10, spare_files_max=0),
        entry_log_bytes_max=log_bytes,
        compaction=compaction,
    )


class SmallDisk(SimulatedDisk):
    """A disk that reports its free space."""

    def usage(self, path: Path):  # type: ignore[no-untyped-def]
        from bookie.disk.disk import DiskUsage

        assert self.capacity_bytes is not None
        return DiskUsage(self.capacity_bytes, max(0, self.capacity_bytes - self.used_bytes()))


@pytest.mark.parametrize("has_reserve", [True, False])
async def test_a_full_disk_is_compacted_with_the_space_of_the_reserve(has_reserve: bool) -> None:
    disk = SmallDisk()
    disk.capacity_bytes = 8 << 20
    reserve_bytes = 128 << 10 if has_reserve else 0
    config = small(attrs.evolve(COMPACTION, reserve_bytes=reserve_bytes))
    async with open_storage(disk, config, wall_ms=lambda: 1000) as storage:
        (collector,) = storage.collectors
        await collector.fill_reserve()
        held = {path.name: inode.size for path, inode in disk.names.items()}.get("compaction.reserve", 0)
        assert held == reserve_bytes
        await complete_log(storage, {1: range(200), 2: range(3000)})
        await storage.delete_ledger(2)
        disk.capacity_bytes = disk.used_bytes() + 4096  # another program has filled the disk
        await collect(storage)
        log_bytes = sum(inode.size for path, inode in disk.names.items() if path.suffix == ".log")
        if has_reserve:
            assert log_bytes < 40_000
            assert (collector.stats.compacted_logs, collector.stats.failures) == (1, 0)
            await collector.fill_reserve()
            assert "compaction.reserve" in [path.name for path in disk.names], "the reserve is created again"
        else:
            assert log_bytes > 400_000
            assert collector.stats.compacted_logs == 0
        assert await readable(storage, {1: range(200)})


@pytest.mark.parametrize("is_pressed", [True, False])
async def test_on_a_full_disk_a_log_is_rewritten_for_any_dead_byte(tmp_path: Path, is_pressed: bool) -> None:
    """Until there is space: one of many logs was deleted, and each entry log has a little of it."""
    config = attrs.evolve(COMPACTION, pressed_bytes=1 << 62 if is_pressed else 0)
    async with opened(tmp_path, config) as storage:
        await complete_log(storage, {1: range(99), 2: range(1)})
        whole = await complete_log(storage, {1: range(100, 200)})
        await storage.delete_ledger(2)
        await collect(storage, CompactionLevel.MINOR)
        rewritten = {whole: {1: 13200}, 2: {1: 13068}}
        assert logs(tmp_path) == (rewritten if is_pressed else {0: {1: 13068, 2: 132}, whole: {1: 13200}})
        assert await readable(storage, {1: range(99)})


async def half_dead_log(disk: SmallDisk, config: CompactionConfig, *, free_bytes: int) -> tuple[int, bool]:
    """Collect one log, half of it dead, of 40 KB: the logs rewritten, and whether all entries are there."""
    disk.capacity_bytes = 8 << 20
    async with open_storage(disk, small(config), wall_ms=lambda: 1000) as storage:
        await complete_log(storage, {1: range(150), 2: range(150)})
        await storage.delete_ledger(2)
        for name in ("compaction.reserve", "flush.reserve"):  # empty: they were given
            disk.open(Path("/l/current") / name, create=True, write=True).close()
        disk.capacity_bytes = disk.used_bytes() + free_bytes
        collector = await collect(storage)
        return collector.stats.compacted_logs, await readable(storage, {1: range(150)})


@pytest.mark.parametrize(("given_bytes", "compacted_logs"), [(0, 1), (1 << 20, 0)])
async def test_a_compaction_takes_nothing_of_what_was_given_to_flushes(
    given_bytes: int, compacted_logs: int
) -> None:
    """It may be killed, and leave its copy. Then the next start would lack the space."""
    config = attrs.evolve(COMPACTION, flush_reserve_bytes=given_bytes)
    assert await half_dead_log(SmallDisk(), config, free_bytes=128 << 10) == (compacted_logs, True)


@pytest.mark.parametrize(("reserve_bytes", "compacted_logs"), [(0, 0), (64 << 10, 1)])
async def test_a_compaction_uses_what_an_earlier_one_was_given(
    reserve_bytes: int, compacted_logs: int, caplog: pytest.LogCaptureFixture
) -> None:
    """To the last byte; without a reserve a part of the disk is left free for the index and the journal."""
    disk = SmallDisk()
    config = attrs.evolve(COMPACTION, reserve_bytes=reserve_bytes)
    usage = disk.usage

    def large(path: Path) -> DiskUsage:
        return DiskUsage(8 << 20, usage(path).free_bytes)  # of which one percent is left free

    disk.usage = large  # type: ignore[method-assign]
    assert await half_dead_log(disk, config, free_bytes=64 << 10) == (compacted_logs, True)
    said = "too full to free 19800 bytes of 0.log: a copy of its 19800 living bytes must fit"
    assert (said in caplog.text) == (not compacted_logs)


async def test_a_disk_that_fills_up_during_a_compaction_ends_only_that() -> None:
    disk = SmallDisk()
    disk.capacity_bytes = 8 << 20
    async with open_storage(disk, small(COMPACTION), wall_ms=lambda: 1000) as storage:
        await complete_log(storage, {1: range(1000), 2: range(1000)})
        await storage.delete_ledger(2)
        (collector,) = storage.collectors
        await collector.remove_dead()
        disk.fail_if = lambda what: what.startswith("write") and "compacting" in what
        assert await collector.compact(CompactionLevel.MAJOR) == 0
        assert collector.stats.failures == 1
        assert "cannot be written" in (collector.stats.last_failure or "")
        assert unfinished_compactions(path.name for path in disk.names).abandoned == ()
        disk.fail_if = lambda what: False
        assert await readable(storage, {1: range(1000)})
        await add(storage, 3, range(10))
        await collect(storage)
        assert collector.stats.compacted_logs == 1
        assert await readable(storage, {1: range(1000), 3: range(10)})


async def test_no_reserve_is_created_if_it_would_fill_the_disk() -> None:
    disk = SmallDisk()
    disk.capacity_bytes = 3 << 20
    config = small(attrs.evolve(COMPACTION, reserve_bytes=1 << 20))
    async with open_storage(disk, config, wall_ms=lambda: 1000) as storage:
        await storage.collectors[0].fill_reserve()
        assert "compaction.reserve" not in [path.name for path in disk.names]


@pytest.mark.slow
async def test_a_log_that_a_killed_flush_left_is_deleted_in_one_round(tmp_path: Path) -> None:
    """Its ledger is live, and the index names nothing in it: the entries are in the next log as well."""
    directory = tmp_path / "l/current"
    async with opened(tmp_path) as storage:
        await add(storage, 1, range(10))
        await storage.flush()
    async with opened(tmp_path) as storage:  # killed between the flush of the entries and of the index
        log_id = storage.stores[0].files.writer.ids.allocate()
        whole = (directory / entry_log_name(0)).read_bytes()
        header = decode_header(whole[:HEADER_BYTES])
        assert header is not None
        torn = encode_header() + whole[HEADER_BYTES : header.map_offset - 50]
        (directory / entry_log_name(log_id)).write_bytes(torn)
        assert (await collect(storage)).stats.deleted_logs == 0, (
            "this process may still put it into the index"
        )
    async with opened(tmp_path) as storage:
        await add(storage, 1, range(10, 20))
        await storage.flush()  # of this process: not judged by the index
        (collector,) = storage.collectors
        assert await collector.remove_dead() == [log_id]
        assert collector.stats.quarantined == {}
        assert await readable(storage, {1: range(20)})
    async with opened(tmp_path) as storage:
        assert await storage.collectors[0].remove_dead() == []
        assert await readable(storage, {1: range(20)})


@pytest.mark.slow
async def test_a_log_without_a_map_in_which_the_index_names_one_entry_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "l/current" / entry_log_name(0)
    async with opened(tmp_path) as storage:
        await add(storage, 1, range(10))
        await storage.flush()
    data = path.read_bytes()
    header = decode_header(data[:HEADER_BYTES])
    assert header is not None
    path.write_bytes(encode_header() + data[HEADER_BYTES : header.map_offset])
    async with opened(tmp_path) as storage:
        assert await storage.collectors[0].remove_dead() == []
        assert await readable(storage, {1: range(10)})


async def append_unnamed(storage: Storage, entry_ids: range) -> None:
    """Append entries to the open log of a flush that is killed before the index names them."""
    writer = storage.stores[0].files.writer

    def append() -> None:
        list(writer.append({1: {entry_id: entry(1, entry_id) for entry_id in entry_ids}}))
        writer.sync()

    await storage.stores[0].in_thread(append)
    storage.failure.report(StorageFailedError("killed"), "the test")


@pytest.mark.slow
@pytest.mark.parametrize("torn_bytes", [0, 50])
async def test_what_a_killed_flush_added_to_a_log_is_cut_off_in_one_round(
    tmp_path: Path, torn_bytes: int
) -> None:
    path = tmp_path / "l/current" / entry_log_name(0)
    async with opened(tmp_path) as storage:
        await add(storage, 1, range(10))
        await storage.flush()
        named_bytes = path.stat().st_size
        await append_unnamed(storage, range(10, 30))
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - torn_bytes)
    async with opened(tmp_path) as storage:
        assert path.stat().st_size > named_bytes
        (collector,) = storage.collectors
        assert await collector.remove_dead() == []
        assert path.stat().st_size == named_bytes
        assert (collector.stats.total_bytes, collector.stats.live_bytes) == (1320, 1320)
        assert collector.stats.quarantined == {}
        assert await readable(storage, {1: range(10)})
        await add(storage, 2, range(100))
        await storage.delete_ledger(2)
        await collect(storage)
    async with opened(tmp_path) as storage:
        assert await readable(storage, {1: range(10)})


@pytest.mark.slow
async def test_the_records_of_a_log_whose_last_named_entry_has_a_wrong_length_stay(tmp_path: Path) -> None:
    path = tmp_path / "l/current" / entry_log_name(0)
    async with opened(tmp_path) as storage:
        await add(storage, 1, range(10))
        await storage.flush()
        named_bytes = path.stat().st_size
        await append_unnamed(storage, range(10, 30))
    with path.open("r+b") as file:
        file.seek(named_bytes - 132 + 3)  # the last byte of a length
        file.write(bytes([64]))
    before = path.read_bytes()
    async with opened(tmp_path) as storage:
        await storage.collectors[0].remove_dead()
    assert path.read_bytes() == before
