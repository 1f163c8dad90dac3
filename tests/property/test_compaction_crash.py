"""Power cuts at every step of garbage collection and compaction, beside writers, deletions and readers.

Tests 5 and 9 of the reference's list (bookie storage 7.5): every live entry readable, space returns, a source
removed once, nothing that was deleted comes back by way of a copy.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
from pathlib import Path

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from bookie.compaction_files import leftovers
from bookie.compaction_rules import CompactionConfig, Level
from bookie.entry_log import PerLedgerConfig
from bookie.errors import NoLedgerError, StorageFailedError
from bookie.index_kinds import IndexKind
from bookie.journal import JournalConfig
from bookie.log_summary import summarise
from bookie.storage import Storage, StorageConfig, open_storage
from tests.property.bookie_work import KEY, body_of
from tests.property.forgetful_disk import PowerCutError, World

STRIDE = int(os.environ.get("DLOG_CRASH_STRIDE", "7"))  # 1: the power is cut at every step
LOGS = Path("/l/current")
CONFIG = StorageConfig(
    journal_directories=(Path("/j"),),
    ledger_directories=(Path("/l"),),
    journal=JournalConfig(
        file_bytes_max=64 << 10, preallocate_bytes=16 << 10, group_bytes_max=8 << 10, spare_files_max=1
    ),
    write_cache_bytes_max=64 << 10,
    entry_log_bytes_max=16 << 10,
    compaction=CompactionConfig(
        major_threshold=1.0, rate_bytes_per_s=1e12, slice_bytes=4096, reserve_bytes=8192
    ),
)


@attrs.define
class Kept:
    """What the storage has acknowledged."""

    entries: dict[tuple[int, int], bytes] = attrs.field(factory=dict)
    deleting: set[int] = attrs.field(factory=set)  # ledgers whose deletion was begun

    def live(self) -> dict[tuple[int, int], bytes]:
        return {at: body for at, body in self.entries.items() if at[0] not in self.deleting}


async def add(storage: Storage, kept: Kept, ledger_id: int, entry_ids: range) -> None:
    ledger = storage.ledger(ledger_id) or storage.create_ledger(ledger_id, KEY)
    bodies = {(ledger_id, entry_id): body_of(ledger_id, entry_id) for entry_id in entry_ids}
    for (_, entry_id), body in bodies.items():
        storage.stage_entry(ledger, entry_id, entry_id - 1, body)
    answered = trio.Event()

    def on_durable(error: BaseException | None) -> None:
        if error is None:
            kept.entries.update(bodies)
        answered.set()

    storage.submit(on_durable)
    await answered.wait()
    await storage.wait_room()


async def delete(storage: Storage, kept: Kept, ledger_id: int) -> None:
    kept.deleting.add(ledger_id)
    await storage.delete_ledger(ledger_id)


async def fill(storage: Storage, kept: Kept, rng: random.Random) -> None:
    """Logs that are shared by ledgers, of which some are then deleted."""
    for first in (0, 4, 8):
        for ledger_id in range(1, 7):
            step = 2 if ledger_id == 3 else 1  # a striped ledger
            await add(storage, kept, ledger_id, range(first * step, (first + 4) * step, step))
        await storage.flush()
    await add(storage, kept, 4, range(3, 6))  # stored twice
    await storage.flush()
    for ledger_id in rng.sample(range(1, 7), 2):
        await delete(storage, kept, ledger_id)


async def collect(storage: Storage, level: Level = Level.MAJOR) -> None:
    for collector in storage.collectors:
        await collector.finish_compactions()
        await collector.remove_dead()
        await collector.compact(level)
        await collector.fill_reserve()


async def disturb(storage: Storage, kept: Kept, rng: random.Random) -> None:
    """What goes on meanwhile: entries added and added again, flushes, a deletion, reads."""
    live = sorted(set(range(1, 7)) - kept.deleting)
    for _ in range(4):
        ledger_id = rng.choice(live)
        if ledger_id in kept.deleting:
            continue
        first = rng.choice([0, 5, 30])
        await add(storage, kept, ledger_id, range(first, first + 2))
        if rng.random() < 0.5:
            await storage.flush()
    await delete(storage, kept, live[0])
    for (ledger_id, entry_id), body in rng.sample(sorted(kept.live().items()), 3):
        assert await storage.read(ledger_id, entry_id) == body


async def check(world: World, kept: Kept, config: StorageConfig) -> None:
    """All that is live can be read; after another round nothing is left over, and all space is used."""
    async with open_storage(world, config, wall_ms=lambda: 1000) as storage:
        await check_entries(storage, kept)
        for ledger_id in storage.ledger_ids():  # what a replay brings back the metadata store has deleted
            if ledger_id in kept.deleting:
                await storage.delete_ledger(ledger_id)
        await storage.flush()
        await collect(storage)
        if world.is_off:
            raise PowerCutError("which a compaction takes for a disk that is full")
        await check_entries(storage, kept)
        names = [path.name for path in world.names if path.parent == LOGS]
        left = leftovers(names)
        assert (left.abandoned, left.pending) == ((), {})
        assert not storage.collectors[0].figures.quarantined
        assert storage.collectors[0].figures.failures == 0
        busy = storage._stores[0].files.writer.open_ids()
        for name in names:
            match = re.fullmatch(r"([0-9a-f]+)\.log", name)
            if match and int(match[1], 16) not in busy:
                ledgers = summarise(world, LOGS, int(match[1], 16)).ledger_bytes()
                assert set(ledgers) <= set(storage.ledger_ids()), f"{name} holds what is dead"
    async with open_storage(world, config, wall_ms=lambda: 1000) as storage:
        await check_entries(storage, kept)


async def check_entries(storage: Storage, kept: Kept) -> None:
    for (ledger_id, entry_id), body in kept.live().items():
        assert await storage.read(ledger_id, entry_id) == body, f"entry {ledger_id}:{entry_id} changed"
    for ledger_id in kept.deleting - set(storage.ledger_ids()):
        with pytest.raises(NoLedgerError):
            await storage.read(ledger_id, 0)


async def play(
    seed: int,
    cut_at: int | None,
    *,
    per_ledger: bool = False,
    kind: IndexKind = IndexKind.CHUNKS,
    fail_at: int | None = None,
) -> int:
    """Compact until the power is cut, and while it is cut once more; then look. The steps of the former.

    ``fail_at``: this step of it ends in an error.
    """
    rng = random.Random(seed)
    config = attrs.evolve(CONFIG, per_ledger_logs=PerLedgerConfig(open_logs_max=2) if per_ledger else None)
    world, kept = World(), Kept()
    began = 0
    with contextlib.suppress(PowerCutError, StorageFailedError):
        async with open_storage(world, config, wall_ms=lambda: 1000) as storage:
            await fill(storage, kept, rng)
            began = world.steps
            world.cut_at = None if cut_at is None else began + cut_at
            world.fail_at = None if fail_at is None else began + fail_at
            with contextlib.suppress(PowerCutError, StorageFailedError):
                try:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(disturb, storage, kept, rng)
                        await collect(storage)
                except BaseExceptionGroup as group:
                    _, other = group.split((PowerCutError, StorageFailedError))
                    if other is not None:
                        raise other from None
    steps = world.steps - began
    after = world.after_power_cut(rng)
    after.cut_at = rng.randrange(1, 60)
    with contextlib.suppress(PowerCutError, StorageFailedError):
        await check(after, kept, config)
    after = after.after_power_cut(rng)
    await check(after, kept, config)
    return steps


@pytest.mark.parametrize(
    ("per_ledger", "kind"),
    [(False, IndexKind.CHUNKS), (True, IndexKind.CHUNKS), (False, IndexKind.PAGES)],
)
async def test_every_live_entry_is_readable_and_space_returns_wherever_the_power_is_cut(
    per_ledger: bool, kind: IndexKind
) -> None:
    steps = await play(1, None, per_ledger=per_ledger, kind=kind)
    assert steps > 60
    for cut_at in range(1, steps + 1, STRIDE):
        await play(1, cut_at, per_ledger=per_ledger, kind=kind)


async def test_an_error_of_the_disk_costs_nothing_that_was_acknowledged() -> None:
    steps = await play(2, None)
    for fail_at in range(1, steps + 1, STRIDE):
        await play(2, None, fail_at=fail_at)


@settings(max_examples=15)
@given(
    seed=st.integers(0, 2**32 - 1),
    cut_at=st.integers(1, 150),
    per_ledger=st.booleans(),
    kind=st.sampled_from(IndexKind),
)
def test_every_live_entry_is_readable_under_any_work(
    seed: int, cut_at: int, per_ledger: bool, kind: IndexKind
) -> None:
    async def run() -> None:
        await play(seed, cut_at, per_ledger=per_ledger, kind=kind)

    trio.run(run)
