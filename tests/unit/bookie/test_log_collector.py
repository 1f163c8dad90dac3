"""One directory's logs: what is deleted, what is rewritten, what is put aside."""

from __future__ import annotations

import random
from pathlib import Path

import attrs
import pytest
import trio
from logs_by_hand import (
    COMPACTION,
    a_log,
    add,
    collect,
    entry,
    logs,
    names,
    opened,
    readable,
)

from bookie.compaction_files import leftovers
from bookie.compaction_rules import CompactionConfig, Level
from bookie.errors import CompactionError, NoLedgerError
from bookie.storage import StorageConfig, open_storage
from tests.property.forgetful_disk import World


async def test_what_is_dead_goes_and_several_logs_become_one(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        for number in range(3):
            await a_log(storage, {1: range(number * 10, number * 10 + 10), 2 + number: range(100)})
        full = await a_log(storage, {1: range(30, 40)})
        for ledger_id in (2, 3, 4):
            await storage.delete_ledger(ledger_id)
        collector = await collect(storage)
        assert logs(tmp_path) == {full: {1: 1320}, 4: {1: 3960}}
        assert await readable(storage, {1: range(40)})
        figures = collector.figures
        assert (figures.compacted_logs, figures.copied_bytes, figures.failures) == (3, 3960, 0)
        assert (figures.logs, figures.total_bytes, figures.live_bytes) == (2, 5280, 5280)
    async with opened(tmp_path) as storage:
        assert await readable(storage, {1: range(40)})
    assert leftovers(names(tmp_path)).pending == {}


async def test_minor_compaction_takes_only_what_is_almost_empty(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        await a_log(storage, {1: range(10), 9: range(90)})
        half = await a_log(storage, {2: range(50), 9: range(100, 150)})
        await storage.delete_ledger(9)
        await collect(storage, Level.MINOR)
        assert logs(tmp_path) == {half: {2: 6600, 9: 6600}, 2: {1: 1320}}
        await collect(storage, Level.MAJOR)
        assert logs(tmp_path) == {2: {1: 1320}, 3: {2: 6600}}


async def test_of_an_entry_stored_twice_only_the_one_the_index_names_is_kept(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        first = await a_log(storage, {1: range(100), 2: range(100)})
        await a_log(storage, {1: range(50, 100)})
        await storage.delete_ledger(2)
        await collect(storage)
        assert logs(tmp_path) == {1: {1: 6600}, 2: {1: 6600}}, f"log {first} had 50 entries that count"
        assert await readable(storage, {1: range(100)})


async def test_a_log_of_which_everything_was_stored_again_goes_without_a_copy(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        await a_log(storage, {1: range(20), 2: range(100)})
        await a_log(storage, {1: range(20)})
        await storage.delete_ledger(2)
        await collect(storage)
        assert logs(tmp_path) == {1: {1: 2640}}
        assert await readable(storage, {1: range(20)})


async def test_a_striped_ledger_is_copied_whole(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        await a_log(storage, {1: range(0, 3000, 3), 2: range(1000)})
        await storage.delete_ledger(2)
        await collect(storage)
        assert logs(tmp_path) == {1: {1: 132_000}}
        assert await readable(storage, {1: range(0, 3000, 3)})
        assert await storage.entry_ids(1) == list(range(0, 3000, 3))


@pytest.mark.parametrize("at", [2, 20, 27, 29])  # while copying; at its end; while the index moves
async def test_what_happens_meanwhile_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Entries stored again, a ledger deleted, one deleted and made anew: between any two slices."""
    async with opened(tmp_path) as storage:
        await a_log(storage, {1: range(60), 2: range(60), 3: range(60), 4: range(600)})
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
            assert await storage.read(3, entry_id) == entry(3, entry_id, 200), "of the ledger made anew"
        with pytest.raises(NoLedgerError):
            await storage.read(2, 0)
    async with opened(tmp_path) as storage:
        assert storage.ledger_ids() == [1, 3]
        assert await readable(storage, {1: range(60)})
        assert await storage.read(3, 4) == entry(3, 4, 200)


async def test_readers_never_notice(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        for number in range(4):
            await a_log(
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
                    storage._stores[0].reads.drop_ledger(1)  # no help from what was read before
                    assert await storage.read(1, entry_id) == entry(1, entry_id)
                    bodies = await storage.read_run(1, entry_id, 10, 1 << 20)
                    assert bodies[0] == entry(1, entry_id)
                    reads += 1
                    await trio.lowlevel.checkpoint()

            nursery.start_soon(read)
            await collect(storage)
            nursery.cancel_scope.cancel()
        assert reads > 10
        assert storage._stores[0].reader.open_logs_count <= 2, "deleted logs are closed"


async def test_a_cancelled_compaction_leaves_no_copy_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as storage:
        source = await a_log(storage, {1: range(100), 2: range(100)})
        await storage.delete_ledger(2)
        (collector,) = storage.collectors
        with trio.CancelScope() as scope:

            async def cancel(size_bytes: int, entries: int) -> None:
                scope.cancel()
                await trio.lowlevel.checkpoint()

            monkeypatch.setattr(collector, "_wait_for", cancel)
            await collect(storage)
        assert scope.cancelled_caught
        assert leftovers(names(tmp_path)).abandoned == ()
        assert logs(tmp_path) == {source: {1: 13200, 2: 13200}}
        monkeypatch.undo()
        await collect(storage)
        assert await readable(storage, {1: range(100)})
        assert logs(tmp_path) == {2: {1: 13200}}, "the cancelled copy's id does not come back"


async def test_a_log_that_is_still_written_to_is_left_alone(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        await add(storage, 1, range(10))
        await add(storage, 2, range(100))
        await storage.flush()
        await storage.delete_ledger(2)
        await collect(storage)
        await add(storage, 1, range(10, 20))
        await storage.flush()
        storage._stores[0].reads.drop_ledger(1)
        assert await readable(storage, {1: range(20)})
        assert sorted(logs(tmp_path)) == [0]


async def test_a_compaction_that_could_not_be_finished_is_left_to_the_next_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as storage:
        await a_log(storage, {1: range(10), 2: range(90)})
        await storage.delete_ledger(2)

        def fail(*_: object) -> None:
            raise CompactionError("the disk does not want to")

        monkeypatch.setattr("bookie.compactor.delete_sources", fail)
        collector = await collect(storage)
        assert collector.figures.failures == 1
        assert await collector.remove_dead() == []
        assert await collector.compact(Level.MAJOR) == 0
        present = sorted(name for name in names(tmp_path) if ".log" in name)
        assert present == ["0.log", "1.log", "1.log.0.compacted"]
        assert collector.figures.logs == 0, "neither is anybody's to delete or to compact"
        monkeypatch.undo()
        await collect(storage)
        assert logs(tmp_path) == {1: {1: 1320}}
        assert leftovers(names(tmp_path)).pending == {}
        assert await readable(storage, {1: range(10)})


# --- what cannot be followed ---


async def test_a_compaction_takes_as_long_as_its_rate_says(autojump_clock: trio.abc.Clock) -> None:
    for config, at_least, at_most in (
        (attrs.evolve(COMPACTION, rate_bytes_per_s=10_000), 3.0, 7.0),
        (attrs.evolve(COMPACTION, rate_entries_per_s=20), 8.0, 12.0),
    ):
        world = World()
        async with open_storage(world, small(config), wall_ms=lambda: 1000) as storage:
            await a_log(storage, {1: range(100), 2: range(200)})  # 40 kB, of which 13 are live
            await storage.delete_ledger(2)
            began = trio.current_time()
            await collect(storage)
            assert at_least <= trio.current_time() - began <= at_most
            assert await readable(storage, {1: range(100)})


async def test_no_further_log_is_begun_when_time_is_up(autojump_clock: trio.abc.Clock) -> None:
    config = attrs.evolve(COMPACTION, rate_bytes_per_s=10_000, major_time_max_s=6.0)
    async with open_storage(World(), small(config, log_bytes=20_000), wall_ms=lambda: 1000) as storage:
        for number in range(3):
            await a_log(storage, {1: range(number * 100, number * 100 + 100), 2: range(1000, 1040)})
        await storage.delete_ledger(2)
        collector = await collect(storage)
        assert collector.figures.compacted_logs == 2
        await collector.compact(Level.MAJOR)
        assert collector.figures.compacted_logs == 3


def small(compaction: CompactionConfig, log_bytes: int = 1 << 20) -> StorageConfig:
    from bookie.journal import JournalConfig

    return StorageConfig(
        journal_directories=(Path("/j"),),
        ledger_directories=(Path("/l"),),
        journal=JournalConfig(file_bytes_max=64 << 10, preallocate_bytes=16 << 10, spare_files_max=0),
        entry_log_bytes_max=log_bytes,
        compaction=compaction,
    )


class SmallDisk(World):
    """A disk that says how much room it has."""

    def usage(self, path: Path):  # type: ignore[no-untyped-def]
        from bookie.disk import DiskUsage

        assert self.capacity_bytes is not None
        return DiskUsage(self.capacity_bytes, max(0, self.capacity_bytes - self.used_bytes()))


@pytest.mark.parametrize("has_reserve", [True, False])
async def test_a_full_disk_is_freed_out_of_the_reserve(has_reserve: bool) -> None:
    world = SmallDisk()
    world.capacity_bytes = 8 << 20
    reserve_bytes = 128 << 10 if has_reserve else 0
    config = small(attrs.evolve(COMPACTION, reserve_bytes=reserve_bytes))
    async with open_storage(world, config, wall_ms=lambda: 1000) as storage:
        (collector,) = storage.collectors
        await collector.fill_reserve()
        held = {path.name: inode.size for path, inode in world.names.items()}.get("compaction.reserve", 0)
        assert held == reserve_bytes
        await a_log(storage, {1: range(200), 2: range(3000)})
        await storage.delete_ledger(2)
        world.capacity_bytes = world.used_bytes() + 4096  # whoever else writes here has filled it
        await collect(storage)
        log_bytes = sum(inode.size for path, inode in world.names.items() if path.suffix == ".log")
        if has_reserve:
            assert log_bytes < 40_000
            assert (collector.figures.compacted_logs, collector.figures.failures) == (1, 0)
            await collector.fill_reserve()
            assert "compaction.reserve" in [path.name for path in world.names], "and it is filled again"
        else:
            assert log_bytes > 400_000
            assert collector.figures.compacted_logs == 0
        assert await readable(storage, {1: range(200)})


async def test_a_disk_that_fills_up_meanwhile_ends_the_compaction_and_nothing_else() -> None:
    world = SmallDisk()
    world.capacity_bytes = 8 << 20
    async with open_storage(world, small(COMPACTION), wall_ms=lambda: 1000) as storage:
        await a_log(storage, {1: range(1000), 2: range(1000)})
        await storage.delete_ledger(2)
        (collector,) = storage.collectors
        await collector.remove_dead()
        world.fail_if = lambda what: what.startswith("write") and "compacting" in what
        assert await collector.compact(Level.MAJOR) == 0
        assert collector.figures.failures == 1
        assert "cannot be written" in (collector.figures.last_failure or "")
        assert leftovers(path.name for path in world.names).abandoned == ()
        world.fail_if = lambda what: False
        assert await readable(storage, {1: range(1000)})
        await add(storage, 3, range(10))
        await collect(storage)
        assert collector.figures.compacted_logs == 1
        assert await readable(storage, {1: range(1000), 3: range(10)})


async def test_a_reserve_is_not_made_where_it_would_fill_the_disk() -> None:
    world = SmallDisk()
    world.capacity_bytes = 3 << 20
    config = small(attrs.evolve(COMPACTION, reserve_bytes=1 << 20))
    async with open_storage(world, config, wall_ms=lambda: 1000) as storage:
        await storage.collectors[0].fill_reserve()
        assert "compaction.reserve" not in [path.name for path in world.names]
