"""Power cuts at every step of garbage collection and compaction, with concurrent writes, deletions and reads.

docs/storage-tests.md 5 and 9: every live entry is readable, space is freed, a source is removed once, and no
deleted entry reappears in a copy.
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

from bookie.entrylog.compaction_files import unfinished_compactions
from bookie.entrylog.writer import PerLedgerConfig
from bookie.errors import NoLedgerError, StorageFailedError
from bookie.gc.compaction_rules import CompactionConfig, CompactionLevel
from bookie.index.index_factory import IndexKind
from bookie.journal.files import JournalConfig
from bookie.storage.config import StorageConfig
from bookie.storage.opening import open_storage
from bookie.storage.storage import Storage
from tests.effort import examples, sampled
from tests.fakes.bookie_work import KEY, body_of
from tests.fakes.log_summaries import summarise
from tests.fakes.simulated_disk import PowerCutError, SimulatedDisk
from tests.strategies import SEEDS

pytestmark = pytest.mark.slow

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
class AcknowledgedState:
    """The operations that the storage has acknowledged."""

    entries: dict[tuple[int, int], bytes] = attrs.field(factory=dict)
    deleting: set[int] = attrs.field(factory=set)  # ledgers whose deletion has begun

    def live(self) -> dict[tuple[int, int], bytes]:
        return {at: body for at, body in self.entries.items() if at[0] not in self.deleting}


async def add(storage: Storage, acknowledged: AcknowledgedState, ledger_id: int, entry_ids: range) -> None:
    batch = storage.new_batch()
    ledger = storage.ledger(ledger_id) or storage.create_ledger(batch, ledger_id, KEY)
    bodies = {(ledger_id, entry_id): body_of(ledger_id, entry_id) for entry_id in entry_ids}
    for (_, entry_id), body in bodies.items():
        storage.stage_entry(batch, ledger, entry_id, entry_id - 1, body)
    replied = trio.Event()

    def on_durable(error: BaseException | None) -> None:
        if error is None:
            acknowledged.entries.update(bodies)
        replied.set()

    storage.submit(batch, on_durable)
    await replied.wait()
    await storage.wait_capacity()


async def delete(storage: Storage, acknowledged: AcknowledgedState, ledger_id: int) -> None:
    acknowledged.deleting.add(ledger_id)
    await storage.delete_ledger(ledger_id)


async def fill(storage: Storage, acknowledged: AcknowledgedState, rng: random.Random) -> None:
    """Fill logs that ledgers share, then delete some of the ledgers."""
    for first in (0, 4, 8):
        for ledger_id in range(1, 7):
            step = 2 if ledger_id == 3 else 1  # a striped ledger
            await add(storage, acknowledged, ledger_id, range(first * step, (first + 4) * step, step))
        await storage.flush()
    await add(storage, acknowledged, 4, range(3, 6))  # stored twice
    await storage.flush()
    for ledger_id in rng.sample(range(1, 7), 2):
        await delete(storage, acknowledged, ledger_id)


async def collect(storage: Storage, level: CompactionLevel = CompactionLevel.MAJOR) -> None:
    for collector in storage.collectors:
        await collector.finish_compactions()
        await collector.remove_dead()
        await collector.compact(level)
        await collector.fill_reserve()


async def disturb(storage: Storage, acknowledged: AcknowledgedState, rng: random.Random) -> None:
    """Concurrent work: entries added and added again, flushes, a deletion, reads."""
    live = sorted(set(range(1, 7)) - acknowledged.deleting)
    for _ in range(4):
        ledger_id = rng.choice(live)
        if ledger_id in acknowledged.deleting:
            continue
        first = rng.choice([0, 5, 30])
        await add(storage, acknowledged, ledger_id, range(first, first + 2))
        if rng.random() < 0.5:
            await storage.flush()
    await delete(storage, acknowledged, live[0])
    for (ledger_id, entry_id), body in rng.sample(sorted(acknowledged.live().items()), 3):
        assert await storage.read(ledger_id, entry_id) == body


async def check(disk: SimulatedDisk, acknowledged: AcknowledgedState, config: StorageConfig) -> None:
    """All live entries are readable; after another round no unfinished file and no dead ledger is left."""
    async with open_storage(disk, config, wall_ms=lambda: 1000) as storage:
        await check_entries(storage, acknowledged)
        for ledger_id in storage.ledger_ids():  # replay may bring back deleted ledgers
            if ledger_id in acknowledged.deleting:
                await storage.delete_ledger(ledger_id)
        await storage.flush()
        await collect(storage)
        if disk.is_off:
            raise PowerCutError("a compaction handles it like a full disk")
        await check_entries(storage, acknowledged)
        names = [path.name for path in disk.names if path.parent == LOGS]
        left = unfinished_compactions(names)
        assert (left.abandoned, left.pending) == ((), {})
        assert not storage.collectors[0].stats.quarantined
        assert storage.collectors[0].stats.failures == 0
        busy = storage.stores[0].files.writer.open_ids()
        for name in names:
            match = re.fullmatch(r"([0-9a-f]+)\.log", name)
            if match and int(match[1], 16) not in busy:
                ledgers = summarise(disk, LOGS, int(match[1], 16)).ledger_bytes()
                assert set(ledgers) <= set(storage.ledger_ids()), f"{name} has dead ledgers"
    async with open_storage(disk, config, wall_ms=lambda: 1000) as storage:
        await check_entries(storage, acknowledged)


async def check_entries(storage: Storage, acknowledged: AcknowledgedState) -> None:
    for (ledger_id, entry_id), body in acknowledged.live().items():
        assert await storage.read(ledger_id, entry_id) == body, f"entry {ledger_id}:{entry_id} changed"
    for ledger_id in acknowledged.deleting - set(storage.ledger_ids()):
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
    """Compact until the first power cut, check until a second one, then check again. Steps of the first part.

    ``fail_at``: this step of the first part raises an error.
    """
    rng = random.Random(seed)
    config = attrs.evolve(CONFIG, per_ledger_logs=PerLedgerConfig(open_logs_max=2) if per_ledger else None)
    disk, acknowledged = SimulatedDisk(), AcknowledgedState()
    began = 0
    with contextlib.suppress(PowerCutError, StorageFailedError):
        async with open_storage(disk, config, wall_ms=lambda: 1000) as storage:
            await fill(storage, acknowledged, rng)
            began = disk.steps
            disk.cut_at = None if cut_at is None else began + cut_at
            disk.fail_at = None if fail_at is None else began + fail_at
            with contextlib.suppress(PowerCutError, StorageFailedError):
                try:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(disturb, storage, acknowledged, rng)
                        await collect(storage)
                except BaseExceptionGroup as group:
                    _, other = group.split((PowerCutError, StorageFailedError))
                    if other is not None:
                        raise other from None
    steps = disk.steps - began
    after = disk.after_power_cut(rng)
    after.cut_at = rng.randrange(1, 60)
    with contextlib.suppress(PowerCutError, StorageFailedError):
        await check(after, acknowledged, config)
    after = after.after_power_cut(rng)
    await check(after, acknowledged, config)
    return steps


@pytest.mark.parametrize(
    ("per_ledger", "kind"),
    [(False, IndexKind.CHUNKS), (True, IndexKind.CHUNKS), (False, IndexKind.PAGES)],
)
async def test_after_a_power_cut_live_entries_are_readable_and_space_is_freed(
    per_ledger: bool, kind: IndexKind
) -> None:
    steps = await play(1, None, per_ledger=per_ledger, kind=kind)
    assert steps > 60
    for cut_at in sampled(range(1, steps + 1, STRIDE)):
        await play(1, cut_at, per_ledger=per_ledger, kind=kind)


async def test_a_disk_error_loses_no_acknowledged_entry() -> None:
    steps = await play(2, None)
    for fail_at in sampled(range(1, steps + 1, STRIDE)):
        await play(2, None, fail_at=fail_at)


@settings(max_examples=examples(15))
@given(
    seed=SEEDS,
    cut_at=st.integers(1, 150),
    per_ledger=st.booleans(),
    kind=st.sampled_from(IndexKind),
)
def test_live_entries_are_readable_after_random_work(
    seed: int, cut_at: int, per_ledger: bool, kind: IndexKind
) -> None:
    async def main() -> None:
        await play(seed, cut_at, per_ledger=per_ledger, kind=kind)

    trio.run(main)
