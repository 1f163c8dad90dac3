"""Random adds, deletions, flushes, compactions and restarts on real files, compared with a dictionary."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import pytest
import trio

from bookie.disk.real_disk import RealDisk
from bookie.entrylog.compaction_files import unfinished_compactions
from bookie.entrylog.ids import entry_log_ids
from bookie.entrylog.writer import PerLedgerConfig
from bookie.errors import NoEntryError, NoLedgerError
from bookie.gc.compaction_rules import CompactionConfig, CompactionLevel
from bookie.index.index_factory import IndexConfig, IndexKind
from bookie.journal.files import JournalConfig
from bookie.storage.config import StorageConfig
from bookie.storage.opening import open_storage
from bookie.storage.storage import Storage
from tests.effort import IS_SAMPLE
from tests.fakes.log_summaries import summarise

# Restarts of the storage, with some dozen steps each.
LIVES = int(os.environ.get("DLOG_SOAK_LIVES", "1" if IS_SAMPLE else "2"))
STEPS = 40

Twin = dict[int, dict[int, bytes]]


def body_of(rng: random.Random, ledger_id: int, entry_id: int) -> bytes:
    return struct.pack(">qqqq", ledger_id, entry_id, -1, 0) + rng.randbytes(rng.choice([10, 400, 9000]))


async def add(storage: Storage, twin: Twin, rng: random.Random) -> None:
    ledger_id = rng.randrange(1, 30)
    known = twin.setdefault(ledger_id, {})
    batch = storage.new_batch()
    ledger = storage.ledger(ledger_id) or storage.create_ledger(batch, ledger_id, b"k" * 20)
    step = rng.choice([1, 1, 3])
    first = max(known, default=-1) + 1
    for entry_id in range(first, first + rng.randrange(1, 20) * step, step):
        known[entry_id] = body_of(rng, ledger_id, entry_id)
        storage.stage_entry(batch, ledger, entry_id, -1, known[entry_id])
    if known and rng.random() < 0.2:  # once more, as a writer that lost the reply does
        entry_id = rng.choice(sorted(known))
        storage.stage_entry(batch, ledger, entry_id, -1, known[entry_id])
    replied = trio.Event()
    storage.submit(batch, lambda error: replied.set())
    await replied.wait()
    await storage.wait_capacity()


async def collect(storage: Storage, rng: random.Random) -> None:
    for collector in storage.collectors:
        await collector.finish_compactions()
        await collector.remove_dead()
        with trio.move_on_after(rng.choice([0.0005, 0.01, 9])):  # sometimes cancelled at any point
            await collector.compact(rng.choice(list(CompactionLevel)))


async def compare(storage: Storage, twin: Twin, rng: random.Random, share: float) -> None:
    for ledger_id in range(1, 30):
        known = twin.get(ledger_id)
        if known is None:
            with pytest.raises(NoLedgerError):
                await storage.read(ledger_id, 0)
            continue
        if rng.random() > share:
            continue
        assert await storage.entry_ids(ledger_id) == sorted(known)
        for entry_id, body in known.items():
            assert await storage.read(ledger_id, entry_id) == body
        with pytest.raises(NoEntryError):
            await storage.read(ledger_id, max(known) + 1)


async def live(config: StorageConfig, twin: Twin, rng: random.Random) -> None:
    async with open_storage(RealDisk(), config) as storage:
        await compare(storage, twin, rng, 1)
        for _ in range(STEPS):
            match rng.choice(["add", "add", "add", "add", "flush", "delete", "collect", "compare", "both"]):
                case "add":
                    await add(storage, twin, rng)
                case "flush":
                    await storage.flush()
                case "delete" if twin:
                    ledger_id = rng.choice(sorted(twin))
                    del twin[ledger_id]
                    await storage.delete_ledger(ledger_id)
                case "collect":
                    await collect(storage, rng)
                case "compare":
                    await compare(storage, twin, rng, 0.3)
                case _:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(collect, storage, rng)
                        await add(storage, twin, rng)
                        await storage.flush()
                        await compare(storage, twin, rng, 0.1)
        for collector in storage.collectors:
            assert collector.stats.failures == 0
            assert collector.stats.quarantined == {}


@pytest.mark.slow
@pytest.mark.parametrize("kind", IndexKind)
@pytest.mark.parametrize("per_ledger", [False, True])
async def test_the_store_agrees_with_a_dictionary(tmp_path: Path, per_ledger: bool, kind: IndexKind) -> None:
    config = StorageConfig(
        journal_directories=(tmp_path / "j",),
        ledger_directories=(tmp_path / "l1", tmp_path / "l2"),
        journal=JournalConfig(file_bytes_max=1 << 20, preallocate_bytes=64 << 10),
        write_cache_bytes_max=256 << 10,
        entry_log_bytes_max=128 << 10,
        index=IndexConfig(kind=kind),
        per_ledger_logs=PerLedgerConfig(open_logs_max=3) if per_ledger else None,
        compaction=CompactionConfig(
            minor_threshold=0.5,
            major_threshold=1.0,
            counts_target_size=True,
            rate_bytes_per_s=1e12,
            slice_bytes=8192,
            reserve_bytes=1 << 20,
        ),
    )
    rng = random.Random(int(per_ledger) * 2 + list(IndexKind).index(kind))
    twin: Twin = {}
    for _ in range(LIVES):
        await live(config, twin, rng)
    async with open_storage(RealDisk(), config) as storage:
        await storage.flush()
        for collector in storage.collectors:
            await collector.finish_compactions()
            await collector.remove_dead()
            await collector.compact(CompactionLevel.MAJOR)
        await compare(storage, twin, rng, 1)
        live_bytes = sum(len(body) + 4 for known in twin.values() for body in known.values())
        stored_bytes = 0
        for directory in (tmp_path / "l1/current", tmp_path / "l2/current"):
            left = unfinished_compactions(path.name for path in directory.iterdir())
            assert (left.abandoned, left.pending) == ((), {})
            for log_id in entry_log_ids(RealDisk(), directory):
                summary = summarise(RealDisk(), directory, log_id)
                assert all(ledger_id in twin for ledger_id in summary.ledger_ids())
                stored_bytes += summary.total_bytes
        assert live_bytes <= stored_bytes <= 1.6 * live_bytes + (256 << 10), "space is freed"
