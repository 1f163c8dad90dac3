"""How fast a bookie stores entries: small ones up to the acknowledgement, large ones up to the entry log."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from bookie.disk.real_disk import RealDisk
from bookie.storage.opening import open_storage
from dlog.cli.bench import floor
from dlog.cli.bench.options import PAYLOADS
from tests.bench.storage.feeder import EntryStream, Feeder, storage_config
from tests.bench.storage.measurement import Bar, Measurement

now = time.perf_counter

ADD_BYTES, ADD_INFLIGHT = 1024, 1000
WRITE_BYTES, WRITE_INFLIGHT = 64 << 10, 64
WARM_UP = 2000
COPIES = 2  # an entry is written to the journal and to an entry log

ADDS_BAR = Bar(least=100_000)
WRITES_BAR = Bar(least=0.4, of_ratio=True)


def payloads_of(size_bytes: int) -> list[bytes]:
    """Different payloads that do not compress."""
    return [os.urandom(size_bytes) for _ in range(PAYLOADS)]


async def measure_adds(directory: Path, size_bytes: int, progress: Callable[[int], None]) -> Measurement:
    """Measure adds of 1 KiB with 1,000 in flight; the latency runs from submit to acknowledgement."""
    count = max(1, size_bytes // ADD_BYTES)
    floor_s = floor.write_floor_s(directory, records=count, size_bytes=ADD_BYTES, group=ADD_INFLIGHT, files=1)
    async with open_storage(RealDisk(), storage_config(directory / "adds")) as storage:
        feeder = Feeder(storage, EntryStream(payloads_of(ADD_BYTES)), inflight=ADD_INFLIGHT)
        await feeder.feed(min(WARM_UP, count))
        cpu, started = time.process_time(), now()
        latencies = await feeder.feed(count, lambda done: progress(done * ADD_BYTES))
        seconds, cpu = now() - started, time.process_time() - cpu
    return Measurement(
        part="adds",
        value=count / seconds,
        unit="adds/s",
        bar=ADDS_BAR,
        floor=count / floor_s,
        details={
            "p50_ms": latencies.quantile(0.50) * 1000,
            "p99_ms": latencies.quantile(0.99) * 1000,
            "cpu_us_per_add": cpu / count * 1e6,
        },
    )


async def measure_writes(directory: Path, size_bytes: int, progress: Callable[[int], None]) -> Measurement:
    """Measure writes of 64 KiB until the last entry is in the journal and in an entry log, both synced."""
    count = max(1, size_bytes // WRITE_BYTES)
    floor_s = floor.write_floor_s(
        directory, records=count, size_bytes=WRITE_BYTES, group=WRITE_INFLIGHT, files=COPIES
    )
    async with open_storage(RealDisk(), storage_config(directory / "writes")) as storage:
        feeder = Feeder(storage, EntryStream(payloads_of(WRITE_BYTES)), inflight=WRITE_INFLIGHT)
        await feeder.feed(min(WRITE_INFLIGHT, count))
        started = now()
        latencies = await feeder.feed(count, lambda done: progress(done * WRITE_BYTES))
        await storage.flush()
        seconds = now() - started
    return Measurement(
        part="writes",
        value=count * WRITE_BYTES / seconds / 1e6,
        unit="MB/s",
        bar=WRITES_BAR,
        floor=count * WRITE_BYTES / floor_s / 1e6,
        details={"p50_ms": latencies.quantile(0.50) * 1000, "p99_ms": latencies.quantile(0.99) * 1000},
    )
