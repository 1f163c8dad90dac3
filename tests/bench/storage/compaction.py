"""The cost of compaction for adds: the same load before compaction, during it, and after it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import trio

from bookie.disk.real_disk import RealDisk
from bookie.gc.collector import GarbageCollector
from bookie.gc.compaction_rules import CompactionConfig
from bookie.storage.opening import open_storage
from bookie.storage.storage import Storage
from dlog.cli.bench.latency import Latencies
from tests.bench.storage.adds import ADD_BYTES, ADD_INFLIGHT, payloads_of
from tests.bench.storage.feeder import LEDGERS, EntryStream, Feeder, storage_config
from tests.bench.storage.measurement import MIB, Bar, Measurement
from tests.bench.work.link import BenchError

now = time.perf_counter

COMPACTION_BAR = Bar(most=2, of_ratio=True)
LOAD_INFLIGHT = 100
LOAD_PAUSE_S = 0.01  # between two bursts, so that the bookie is busy and not overloaded
LOGS = 8
GROUPS = 8  # of ledgers; every second group is deleted, so that half of each log is garbage
FIRST_LOAD_LEDGER = 1_000_000
QUIET_S_MAX = 10.0


async def measure_compaction(
    directory: Path, size_bytes: int, progress: Callable[[int], None]
) -> Measurement:
    """Measure the p99 of adds while logs that are half garbage are rewritten at the default rate.

    The floor is the p99 of the same adds without compaction.
    """
    config = storage_config(
        directory / "compaction",
        entry_log_bytes_max=max(MIB, size_bytes // LOGS),
        compaction=CompactionConfig(reserve_bytes=0),
    )
    async with open_storage(RealDisk(), config) as storage:
        await _fill(storage, size_bytes, progress)
    async with open_storage(RealDisk(), config) as storage:
        for group in range(0, GROUPS, 2):
            for ledger_id in range(group * LEDGERS, (group + 1) * LEDGERS):
                await storage.delete_ledger(ledger_id)
        feeder = Feeder(
            storage,
            EntryStream(payloads_of(ADD_BYTES), first_ledger_id=FIRST_LOAD_LEDGER),
            inflight=LOAD_INFLIGHT,
        )
        collector = GarbageCollector(storage, _all_live, compaction=config.compaction)
        done = trio.Event()
        quiet_s = min(QUIET_S_MAX, 1 + size_bytes / (64 * MIB))
        before = await _load(feeder, lambda seconds: seconds >= quiet_s)
        started = now()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_compact, collector, done)
            during = await _load(feeder, lambda _: done.is_set())
        compaction_s = now() - started
        after = await _load(feeder, lambda seconds: seconds >= quiet_s)
        rewritten = sum(one.stats.compacted_bytes for one in storage.collectors)
        copied = sum(one.stats.copied_bytes for one in storage.collectors)
    if not copied:
        raise BenchError("nothing was compacted")
    quiet = Latencies(before.samples + after.samples)
    return Measurement(
        part="compaction",
        value=during.quantile(0.99) * 1000,
        unit="ms p99",
        bar=COMPACTION_BAR,
        floor=quiet.quantile(0.99) * 1000,
        details={
            "p50_ms": during.quantile(0.50) * 1000,
            "p50_ms_without": quiet.quantile(0.50) * 1000,
            "seconds": compaction_s,
            "rewritten_mib": rewritten / MIB,
            "copied_mib": copied / MIB,
        },
    )


async def _fill(storage: Storage, size_bytes: int, progress: Callable[[int], None]) -> None:
    """Write ledgers of all groups side by side into each log."""
    count = max(GROUPS, size_bytes // ADD_BYTES)
    streams = [
        EntryStream(payloads_of(ADD_BYTES), first_ledger_id=group * LEDGERS) for group in range(GROUPS)
    ]
    feeders = [Feeder(storage, stream, inflight=ADD_INFLIGHT) for stream in streams]
    share = max(1, count // GROUPS // LOGS)
    for turn in range(LOGS):
        for number, feeder in enumerate(feeders):
            await feeder.feed(share)
            progress((turn * GROUPS + number + 1) * share * ADD_BYTES)
        await storage.flush()


async def _load(feeder: Feeder, is_over: Callable[[float], bool]) -> Latencies:
    found = Latencies()
    started = now()
    while True:
        found.samples += (await feeder.feed(LOAD_INFLIGHT)).samples
        if is_over(now() - started):
            return found
        await trio.sleep(LOAD_PAUSE_S)


async def _compact(collector: GarbageCollector, done: trio.Event) -> None:
    try:
        collector.force(major=True)
        await collector.run_round()
    finally:
        done.set()


async def _all_live(ledger_ids: Sequence[int]) -> Collection[int]:
    return ledger_ids
