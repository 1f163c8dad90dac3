"""How fast a bookie reads entries that no cache holds.

The floor reads the same bytes at the same places of the same files, in a plain loop of preads.
``in_threads_per_s`` is the rate of as many such loops in parallel threads as there are reads in flight.
It is the most that the disk can do.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import trio

from bookie.disk.real_disk import RealDisk
from bookie.entrylog.format import entry_log_name
from bookie.entrylog.writer import entry_log_ids, scan_log
from bookie.storage.opening import open_storage
from bookie.storage.storage import Storage
from dlog.cli.bench.latency import Latencies
from tests.bench.storage.adds import ADD_BYTES, ADD_INFLIGHT, payloads_of
from tests.bench.storage.disk_space import files_below, make_cold
from tests.bench.storage.feeder import EntryStream, Feeder, storage_config
from tests.bench.storage.measurement import Bar, Measurement
from tests.bench.work.link import BenchError

now = time.perf_counter

READS_MAX = 20_000
READS_INFLIGHT = 16
READS_BAR = Bar(least=0.5, of_ratio=True)


@attrs.frozen
class Place:
    """An entry, and its place in a file for the floor."""

    ledger_id: int
    entry_id: int
    path: Path
    offset: int
    size_bytes: int


async def measure_reads(directory: Path, size_bytes: int, progress: Callable[[int], None]) -> Measurement:
    """Measure random reads of single entries of 1 KiB, 16 in flight, with cold caches."""
    config = storage_config(directory / "reads")
    stream = EntryStream(payloads_of(ADD_BYTES))
    count = max(1, size_bytes // ADD_BYTES)
    async with open_storage(RealDisk(), config) as storage:
        await Feeder(storage, stream, inflight=ADD_INFLIGHT).feed(
            count, lambda done: progress(done * ADD_BYTES)
        )
    places = _places(config.ledger_directories[0] / "current")
    async with open_storage(RealDisk(), config) as storage:
        make_cold(files_below(directory))
        cpu, started = time.process_time(), now()
        latencies = await _read_all(storage, places)
        seconds, cpu = now() - started, time.process_time() - cpu
    # The floor comes second: a cache below the kernel then favours the floor and not the bookie.
    make_cold(files_below(directory))
    floor_s = _plain_preads_s(places, 1)
    make_cold(files_below(directory))
    threads_s = _plain_preads_s(places, READS_INFLIGHT)
    return Measurement(
        part="reads",
        value=len(places) / seconds,
        unit="reads/s",
        bar=READS_BAR,
        floor=len(places) / floor_s,
        details={
            "p50_ms": latencies.quantile(0.50) * 1000,
            "p99_ms": latencies.quantile(0.99) * 1000,
            "cpu_us_per_read": cpu / len(places) * 1e6,
            "in_threads_per_s": len(places) / threads_s,
        },
    )


def _places(directory: Path) -> list[Place]:
    disk, rng = RealDisk(), random.Random(7)
    places: list[Place] = []
    log_ids = entry_log_ids(disk, directory)
    for log_id in log_ids:
        found, damage = scan_log(disk, directory, log_id)
        if damage is not None:
            raise BenchError(f"the log that was just written is damaged: {damage}")
        path = directory / entry_log_name(log_id)
        places += [
            Place(entry.ledger_id, entry.entry_id, path, entry.offset, entry.size_bytes)
            for entry in rng.sample(found, min(len(found), READS_MAX // len(log_ids)))
        ]
    rng.shuffle(places)
    return places


async def _read_all(storage: Storage, places: Sequence[Place]) -> Latencies:
    latencies = Latencies()
    rest = iter(places)

    async def read_in_turn() -> None:
        for place in rest:
            started = now()
            body = await storage.read(place.ledger_id, place.entry_id)
            latencies.add(now() - started)
            if len(body) != place.size_bytes:
                raise BenchError(f"an entry of {place.size_bytes} bytes was read as {len(body)}")

    async with trio.open_nursery() as nursery:
        for _ in range(READS_INFLIGHT):
            nursery.start_soon(read_in_turn)
    return latencies


def _plain_preads_s(places: Sequence[Place], threads_count: int) -> float:
    descriptors = {path: os.open(path, os.O_RDONLY) for path in {place.path for place in places}}
    todo = [(descriptors[place.path], place.size_bytes, place.offset) for place in places]

    def read_share(share: int) -> None:
        for descriptor, size_bytes, offset in todo[share::threads_count]:
            os.pread(descriptor, size_bytes, offset)

    threads = [threading.Thread(target=read_share, args=(share,)) for share in range(threads_count)]
    started = now()
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return now() - started
    finally:
        for descriptor in descriptors.values():
            os.close(descriptor)
