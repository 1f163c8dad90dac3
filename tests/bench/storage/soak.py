"""A soak of a bookie's storage: write, delete, collect, compact and read at the same time; check every read.

Inside: writers that also delete ledgers, garbage collection with compaction without a pause, readers, samples
of memory and disk use. There are two journals and two ledger directories. An entry's bytes are derived from
its ids, so that a reader can compare them without a copy.
Always: a reader reads an entry only between its acknowledgement and the deletion of its ledger. In that time
the storage must return exactly the written bytes.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import trio

from bookie.disk.real_disk import RealDisk
from bookie.errors import NoLedgerError
from bookie.gc.collector import GarbageCollector
from bookie.gc.compaction_rules import CompactionConfig
from bookie.storage.config import StorageConfig
from bookie.storage.opening import open_storage
from bookie.storage.storage import Storage
from ledger.digest import DigestType, EntryCodec
from ledger.errors import CorruptEntryError
from tests.bench.storage.disk_space import files_below
from tests.bench.storage.measurement import GIB, MIB

now = time.perf_counter

CODEC = EntryCodec(DigestType.CRC32C, b"soak")
POOL_BYTES = 4 << 20
SIZES_BYTES = (100, 1024, 1024, 4096, 65_536)
BATCH_BYTES = 256 << 10
WRITERS = 4
READERS = 3
SAMPLE_S = 0.5
SEED = 7
MEMORY_GROWTH_MIB = 64.0  # between the first third of the soak and the rest
DIRECTORIES = 2
READ_PAUSE_S = 0.002  # the readers look for errors and must not slow the writers down


@attrs.define
class Sample:
    """Memory and disk use at one moment."""

    written_bytes: int
    rss_bytes: int
    disk_bytes: int


@attrs.define
class Written:
    """A ledger of the soak, and how much of it is acknowledged."""

    ledger_id: int
    size_bytes: int  # of each payload
    target: int  # entries when the ledger is complete
    acked: int = 0
    readers: int = 0

    @property
    def bytes_on_disk(self) -> int:
        return self.acked * (self.size_bytes + 40)


@attrs.define
class SoakResult:
    """The work and the findings of the soak."""

    written_bytes: int = 0
    deleted_ledgers: int = 0
    reads: int = 0
    rounds: int = 0
    compacted_logs: int = 0
    seconds: float = 0
    samples: list[Sample] = attrs.field(factory=list)
    errors: list[str] = attrs.field(factory=list)


class Soak:
    """One soak of a storage below one directory."""

    def __init__(self, directory: Path, total_bytes: int, progress: Callable[[int], None]) -> None:
        self.found = SoakResult()
        self.live_bytes_max = max(8 * MIB, min(GIB, total_bytes // 8))
        self.log_bytes_max = max(1 * MIB, min(128 * MIB, self.live_bytes_max // 8))
        self.ledger_bytes_max = min(4 * MIB, self.log_bytes_max // 4)  # so that a log holds several ledgers
        self._directory, self._total_bytes, self._progress = directory, total_bytes, progress
        self._pool = random.Random(SEED).randbytes(POOL_BYTES + SIZES_BYTES[-1])
        self._rng = random.Random(SEED)
        self._live: dict[int, Written] = {}
        self._deleting: set[int] = set()
        self._next_ledger_id = 1

    def config(self) -> StorageConfig:
        """Two journals and two ledger directories; logs and cache so small that each is reused many times."""
        journals: Any = tuple(self._directory / f"journal{number}" for number in range(DIRECTORIES))
        ledgers: Any = tuple(self._directory / f"ledgers{number}" for number in range(DIRECTORIES))
        return StorageConfig(
            journal_directories=journals,
            ledger_directories=ledgers,
            write_cache_bytes_max=min(48 * MIB, self.live_bytes_max // 2),  # so that entries leave the cache
            entry_log_bytes_max=self.log_bytes_max,
            flush_interval_s=2,
            compaction=CompactionConfig(rate_bytes_per_s=256 * MIB, reserve_bytes=MIB),
        )

    @property
    def disk_bytes_max(self) -> int:
        """The bound of disk use: twice the live bytes, logs being written or rewritten, and journals."""
        config = self.config()
        journal_bytes = config.journal.file_bytes_max * (config.journal.spare_files_max + 6)
        return 2 * self.live_bytes_max + DIRECTORIES * (4 * self.log_bytes_max + journal_bytes) + 128 * MIB

    async def run(self) -> SoakResult:
        """Write all bytes, then open the storage again and read every live ledger.

        Raises:
            StorageFailedError: The storage failed.
        """
        started = now()
        async with self._opened() as (storage, nursery):
            for _ in range(READERS):
                nursery.start_soon(self._read, storage)
            nursery.start_soon(self._collect, storage)
            async with trio.open_nursery() as writers:
                for number in range(WRITERS):
                    writers.start_soon(self._write, storage, random.Random(SEED + number))
            nursery.cancel_scope.cancel()
        self.found.seconds = now() - started
        async with self._opened() as (storage, nursery):
            await self._collect_once(storage, self._collector(storage))
            for written in self._live.values():
                await self._check_all(storage, written)
            nursery.cancel_scope.cancel()
        self._check_bounds()
        return self.found

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[tuple[Storage, trio.Nursery]]:
        async with open_storage(RealDisk(), self.config()) as storage, trio.open_nursery() as nursery:
            nursery.start_soon(self._sample)
            nursery.start_soon(self._fail_with, storage)
            yield storage, nursery

    async def _fail_with(self, storage: Storage) -> None:
        raise await storage.wait_failed()

    # --- writing ---

    async def _write(self, storage: Storage, rng: random.Random) -> None:
        while self.found.written_bytes < self._total_bytes:
            size_bytes = rng.choice(SIZES_BYTES)
            target = max(1, rng.randrange(self.ledger_bytes_max) // size_bytes)
            written = Written(self._next_ledger_id, size_bytes, target)
            self._next_ledger_id += 1
            batch = storage.new_batch()
            storage.create_ledger(batch, written.ledger_id, CODEC.master_key)
            await storage.submit_durably(batch)
            self._live[written.ledger_id] = written
            await self._fill(storage, written)
            await self._delete_some_ledgers(storage, rng)

    async def _fill(self, storage: Storage, written: Written) -> None:
        record = storage.ledger(written.ledger_id)
        assert record is not None  # the caller created it
        entry_id = 0
        while entry_id < written.target and self.found.written_bytes < self._total_bytes:
            stop = min(written.target, entry_id + max(1, BATCH_BYTES // written.size_bytes))
            size_bytes = 0
            batch = storage.new_batch()
            for entry_id in range(entry_id, stop):  # noqa: B020 - continues where the last batch ended
                body = self._body(written, entry_id)
                size_bytes += len(body)
                storage.stage_entry(batch, record, entry_id, entry_id - 1, body)
            entry_id = stop
            await storage.submit_durably(batch)
            written.acked = stop
            self.found.written_bytes += size_bytes
            self._progress(self.found.written_bytes)
            await storage.wait_capacity()
        written.target = entry_id

    def _body(self, written: Written, entry_id: int) -> bytes:
        start = (written.ledger_id * 7919 + entry_id * 104_729) % POOL_BYTES
        payload = self._pool[start : start + written.size_bytes]
        return CODEC.pack(written.ledger_id, entry_id, entry_id - 1, 0, payload)

    async def _delete_some_ledgers(self, storage: Storage, rng: random.Random) -> None:
        """Delete random ledgers, old and new, so that logs are partly garbage."""
        while sum(written.bytes_on_disk for written in self._live.values()) > self.live_bytes_max:
            complete = [one for one in self._live.values() if one.acked == one.target and not one.readers]
            if not complete:
                return
            written = rng.choice(complete)
            del self._live[written.ledger_id]
            await storage.delete_ledger(written.ledger_id)
            self.found.deleted_ledgers += 1
            await self._check_gone(storage, written)

    async def _collect(self, storage: Storage) -> None:
        collector = self._collector(storage)
        while True:
            await self._collect_once(storage, collector)
            await trio.sleep(0.2)

    def _collector(self, storage: Storage) -> GarbageCollector:
        return GarbageCollector(storage, self._known, compaction=self.config().compaction)

    async def _collect_once(self, storage: Storage, collector: GarbageCollector) -> None:
        before = sum(one.stats.compacted_logs for one in storage.collectors)
        collector.force(major=True)
        await collector.run_round()
        self.found.rounds += 1
        stats = [one.stats for one in storage.collectors]
        self.found.compacted_logs += sum(one.compacted_logs for one in stats) - before
        self.found.errors += [
            f"entry log {log_id} is quarantined: {why}"
            for one in stats
            for log_id, why in one.quarantined.items()
        ]

    async def _known(self, ledger_ids: Sequence[int]) -> Collection[int]:
        return ledger_ids

    # --- reading ---

    async def _read(self, storage: Storage) -> None:
        while True:
            candidates = [one for one in self._live.values() if one.acked]
            if candidates:
                written = self._rng.choice(candidates)
                first = self._rng.randrange(written.acked)
                written.readers += 1
                try:
                    await self._check_range(storage, written, first, count_max=self._rng.choice((1, 1, 50)))
                finally:
                    written.readers -= 1
            await trio.sleep(READ_PAUSE_S)

    async def _check_range(self, storage: Storage, written: Written, first: int, count_max: int) -> int:
        count_max = min(count_max, written.acked - first)
        bodies = await storage.read_batch(written.ledger_id, first, count_max, BATCH_BYTES)
        for entry_id, body in enumerate(bodies, first):
            try:
                CODEC.unpack(body, written.ledger_id, entry_id)
            except CorruptEntryError as exc:
                self.found.errors.append(str(exc))
            if body != self._body(written, entry_id):
                self.found.errors.append(
                    f"entry {written.ledger_id}:{entry_id} differs from the written bytes"
                )
        self.found.reads += len(bodies)
        return len(bodies)

    async def _check_all(self, storage: Storage, written: Written) -> None:
        first = 0
        while first < written.acked:
            first += await self._check_range(storage, written, first, count_max=1000)

    async def _check_gone(self, storage: Storage, written: Written) -> None:
        try:
            await storage.read(written.ledger_id, 0)
        except NoLedgerError:
            return
        self.found.errors.append(f"ledger {written.ledger_id} was deleted and can still be read")

    # --- bounds ---

    async def _sample(self) -> None:
        while True:
            disk_bytes = await trio.to_thread.run_sync(_disk_bytes, self._directory)
            self.found.samples.append(Sample(self.found.written_bytes, _rss_bytes(), disk_bytes))
            await trio.sleep(SAMPLE_S)

    def _check_bounds(self) -> None:
        samples, errors = self.found.samples, self.found.errors
        disk_bytes = max(sample.disk_bytes for sample in samples)
        if disk_bytes > self.disk_bytes_max:
            errors.append(
                f"disk use reached {disk_bytes / MIB:.0f} MiB; the bound is"
                f" {self.disk_bytes_max / MIB:.0f} MiB"
            )
        grown = memory_growth_bytes(samples) / MIB
        if grown > MEMORY_GROWTH_MIB:
            errors.append(
                f"memory grew by {grown:.0f} MiB after the first third; the bound is"
                f" {MEMORY_GROWTH_MIB:.0f} MiB"
            )

    def document(self) -> dict[str, object]:
        """The JSON document of the soak."""
        found = self.found
        return {
            "written_gib": round(found.written_bytes / GIB, 3),
            "seconds": round(found.seconds, 1),
            "mb_per_s": round(found.written_bytes / found.seconds / 1e6, 1),
            "ledgers": self._next_ledger_id - 1,
            "deleted_ledgers": found.deleted_ledgers,
            "entries_checked": found.reads,
            "gc_rounds": found.rounds,
            "compacted_logs": found.compacted_logs,
            "live_mib_max": self.live_bytes_max // MIB,
            "disk_mib_max": max(sample.disk_bytes for sample in found.samples) // MIB,
            "disk_mib_allowed": self.disk_bytes_max // MIB,
            "rss_mib_max": max(sample.rss_bytes for sample in found.samples) // MIB,
            "rss_mib_growth": round(memory_growth_bytes(found.samples) / MIB, 1),
            "wrong": found.errors[:20],
        }


def memory_growth_bytes(samples: Sequence[Sample]) -> int:
    """The peak after the first third of the soak minus the peak in it; 0 if memory did not grow."""
    third = samples[-1].written_bytes / 3
    first = [sample.rss_bytes for sample in samples if sample.written_bytes <= third]
    rest = [sample.rss_bytes for sample in samples if sample.written_bytes > third]
    return max(0, max(rest) - max(first)) if first and rest else 0


def _rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _disk_bytes(directory: Path) -> int:
    total = 0
    for path in files_below(directory):
        try:
            total += path.stat().st_blocks * 512
        except FileNotFoundError:
            continue  # deleted since the listing
    return total
