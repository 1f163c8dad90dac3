"""A storage over one directory whose entry logs a test makes and looks at one by one."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from bookie.compaction_rules import CompactionConfig, Level
from bookie.disk import RealDisk
from bookie.entry_log_ids import entry_log_ids
from bookie.log_collector import LogCollector
from bookie.log_summary import summarise
from bookie.storage import Storage, StorageConfig, open_storage

KEY = b"k" * 20
COMPACTION = CompactionConfig(rate_bytes_per_s=1e12, slice_bytes=4096, reserve_bytes=0)


def entry(ledger_id: int, entry_id: int, size: int = 96) -> bytes:
    """A body of ``32 + size`` bytes, which with its length is 132 if nothing else is said."""
    return struct.pack(">qqqq", ledger_id, entry_id, -1, 0) + bytes([ledger_id, entry_id % 251] * (size // 2))


@asynccontextmanager
async def opened(
    directory: Path, compaction: CompactionConfig = COMPACTION, **more: object
) -> AsyncIterator[Storage]:
    config = StorageConfig(
        journal_directories=(directory / "j",),
        ledger_directories=(directory / "l",),
        entry_log_bytes_max=1 << 20,
        compaction=compaction,
        **more,  # type: ignore[arg-type]
    )
    async with open_storage(RealDisk(), config) as storage:
        yield storage


async def add(storage: Storage, ledger_id: int, entry_ids: Iterable[int], *, size: int = 96) -> None:
    ledger = storage.ledger(ledger_id) or storage.create_ledger(ledger_id, KEY)
    for entry_id in entry_ids:
        storage.stage_entry(ledger, entry_id, -1, entry(ledger_id, entry_id, size))
    answered = trio.Event()
    storage.submit(lambda error: answered.set())
    await answered.wait()


async def a_log(storage: Storage, ledgers: dict[int, range]) -> int:
    """Make one complete log with these entries; its id."""
    for ledger_id, entry_ids in ledgers.items():
        await add(storage, ledger_id, entry_ids)
    await storage.flush()
    writer = storage._stores[0].files.writer
    (log_id,) = writer.open_ids()
    await storage._stores[0].in_thread(writer.close)
    return log_id


async def collect(storage: Storage, level: Level = Level.MAJOR) -> LogCollector:
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
