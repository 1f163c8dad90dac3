"""A storage over one directory, for tests that write, complete and inspect single entry logs."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from bookie.disk.disk import Disk
from bookie.disk.real_disk import RealDisk
from bookie.entrylog.ids import entry_log_ids
from bookie.gc.compaction_rules import CompactionConfig, CompactionLevel
from bookie.gc.log_collector import LogCollector
from bookie.index.index_factory import IndexConfig
from bookie.storage.config import StorageConfig
from bookie.storage.opening import open_storage
from bookie.storage.storage import Storage
from tests.fakes.log_summaries import summarise

KEY = b"k" * 20
CHUNKS = IndexConfig()
COMPACTION = CompactionConfig(rate_bytes_per_s=1e12, slice_bytes=4096, reserve_bytes=0)


def entry(ledger_id: int, entry_id: int, size: int = 96) -> bytes:
    """An entry of ``32 + size`` bytes; by default its record takes 132 bytes."""
    return struct.pack(">qqqq", ledger_id, entry_id, -1, 0) + bytes([ledger_id, entry_id % 251] * (size // 2))


@asynccontextmanager
async def opened(
    directory: Path,
    compaction: CompactionConfig = COMPACTION,
    index: IndexConfig = CHUNKS,
    disk: Disk | None = None,
) -> AsyncIterator[Storage]:
    config = StorageConfig(
        journal_directories=(directory / "j",),
        ledger_directories=(directory / "l",),
        entry_log_bytes_max=1 << 20,
        compaction=compaction,
        index=index,
    )
    async with open_storage(disk or RealDisk(), config) as storage:
        yield storage


async def add(storage: Storage, ledger_id: int, entry_ids: Iterable[int], *, size: int = 96) -> None:
    batch = storage.new_batch()
    ledger = storage.ledger(ledger_id) or storage.create_ledger(batch, ledger_id, KEY)
    for entry_id in entry_ids:
        storage.stage_entry(batch, ledger, entry_id, -1, entry(ledger_id, entry_id, size))
    replied = trio.Event()
    storage.submit(batch, lambda error: replied.set())
    await replied.wait()


async def complete_log(storage: Storage, ledgers: dict[int, range]) -> int:
    """Write one complete log with these entries; return its id."""
    for ledger_id, entry_ids in ledgers.items():
        await add(storage, ledger_id, entry_ids)
    await storage.flush()
    writer = storage.stores[0].files.writer
    (log_id,) = writer.open_ids()
    await storage.stores[0].in_thread(writer.close)
    return log_id


async def collect(storage: Storage, level: CompactionLevel = CompactionLevel.MAJOR) -> LogCollector:
    (collector,) = storage.collectors
    await collector.finish_compactions()
    await collector.remove_dead()
    await collector.compact(level)
    return collector


async def readable(storage: Storage, ledgers: dict[int, range]) -> bool:
    for ledger_id, entry_ids in ledgers.items():
        for entry_id in entry_ids:
            if await storage.read(ledger_id, entry_id) != entry(ledger_id, entry_id):
                return False
    return True


def logs(directory: Path) -> dict[int, dict[int, int]]:
    found = entry_log_ids(RealDisk(), directory / "l/current")
    return {log_id: summarise(RealDisk(), directory / "l/current", log_id).ledger_bytes() for log_id in found}


def names(directory: Path) -> list[str]:
    return [path.name for path in (directory / "l/current").iterdir()]
