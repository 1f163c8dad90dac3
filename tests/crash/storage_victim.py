"""A process that a test kills: a bookie's storage that writes, fences, deletes and compacts without a pause.

``python storage_victim.py DIRECTORY SEED FIRST_LEDGER INDEX PROMISES`` opens the storage, checks that every
promise in the file PROMISES holds, prints ``checked N``, and continues with new ledgers. Its lines are:

    entries L N   a promise: all entries of ledger L below N are durable
    fenced L      a promise: ledger L is fenced
    deleting L    the deletion of ledger L begins
    deleted L     a promise: ledger L is deleted; printed after the next checkpoint
    round N M     round N of garbage collection has compacted M entry logs

A broken promise ends the process with code 1 and a message.

Inside: the process, and the record of promises for tests.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import attrs
import trio

from bookie.disk.real_disk import RealDisk
from bookie.errors import NoLedgerError
from bookie.gc.collector import GarbageCollector
from bookie.gc.compaction_rules import CompactionConfig
from bookie.index.index_factory import IndexConfig, IndexKind
from bookie.journal.files import JournalConfig
from bookie.storage.config import StorageConfig
from bookie.storage.opening import open_storage
from bookie.storage.storage import Storage
from ledger.digest import DigestType, EntryCodec

CODEC = EntryCodec(DigestType.CRC32C, b"kill")
LIVE_MAX = 24  # ledgers; above it, a ledger is deleted
LEDGER_ENTRIES_MAX = 120


def config_below(root: Path, kind: IndexKind) -> StorageConfig:
    """Two journals and two ledger directories, with files so small that they change many times a second."""
    journals: Any = (root / "journal0", root / "journal1")
    ledgers: Any = (root / "ledgers0", root / "ledgers1")
    return StorageConfig(
        journal_directories=journals,
        ledger_directories=ledgers,
        journal=JournalConfig(
            file_bytes_max=256 << 10, preallocate_bytes=128 << 10, group_bytes_max=32 << 10
        ),
        write_cache_bytes_max=128 << 10,
        entry_log_bytes_max=64 << 10,
        flush_interval_s=0.1,
        index=IndexConfig(kind=kind),
        compaction=CompactionConfig(rate_bytes_per_s=1 << 30, slice_bytes=8 << 10, reserve_bytes=16 << 10),
    )


def body_of(ledger_id: int, entry_id: int) -> bytes:
    """The bytes of an entry."""
    rng = random.Random(ledger_id * 1_000_003 + entry_id)
    return CODEC.pack(ledger_id, entry_id, entry_id - 1, 0, rng.randbytes(rng.choice((0, 20, 300, 2000))))


@attrs.define
class Promises:
    """The promises that victims have printed so far."""

    entries: dict[int, int] = attrs.field(factory=dict)  # ledger -> number of durable entries
    fenced: set[int] = attrs.field(factory=set)
    deleting: set[int] = attrs.field(factory=set)  # deletion has begun: the ledger may exist or not
    deleted: set[int] = attrs.field(factory=set)
    checked: int = 0
    rounds: int = 0
    compacted: int = 0

    def add(self, line: str) -> None:
        """Add one printed line of a victim."""
        word, *numbers = line.split()
        match word, [int(number) for number in numbers]:
            case "entries", [ledger_id, count]:
                self.entries[ledger_id] = count
            case "fenced", [ledger_id]:
                self.fenced.add(ledger_id)
            case "deleting", [ledger_id]:
                self.deleting.add(ledger_id)
            case "deleted", [ledger_id]:
                self.deleted.add(ledger_id)
            case "checked", [count]:
                self.checked = count
            case "round", [_, compacted]:
                self.rounds += 1
                self.compacted += compacted
            case _:
                raise AssertionError(line)

    def to_json(self) -> str:
        """The promises as text, for the next victim."""
        return json.dumps(
            {
                "entries": sorted(self.entries.items()),
                "fenced": sorted(self.fenced),
                "deleting": sorted(self.deleting),
                "deleted": sorted(self.deleted),
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Promises:
        """The promises of earlier victims."""
        data = json.loads(text)
        return cls(dict(data["entries"]), set(data["fenced"]), set(data["deleting"]), set(data["deleted"]))


# --- the victim -----------------------------------------------------------------------------------


def _print_line(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())  # one system call, so that no line is cut


async def _check(storage: Storage, promises: Promises) -> int:
    checked = 0
    for ledger_id, count in promises.entries.items():
        record = storage.ledger(ledger_id)
        if ledger_id in promises.deleting:
            # A deleted ledger must never come back. Before that, some of its entries may exist: the metadata
            # store had denied it, no client reads it, and garbage collection deletes the rest.
            assert record is None or ledger_id not in promises.deleted, f"ledger {ledger_id} is back"
            continue
        assert record is not None, f"ledger {ledger_id} is lost"
        assert record.master_key == CODEC.master_key, f"ledger {ledger_id} has another key"
        assert record.fenced or ledger_id not in promises.fenced, f"ledger {ledger_id} lost its fence"
        first = 0
        while first < count:
            bodies = await storage.read_batch(ledger_id, first, count - first, 1 << 20)
            for entry_id, body in enumerate(bodies, first):
                assert body == body_of(ledger_id, entry_id), f"entry {ledger_id}:{entry_id} has other bytes"
            first += len(bodies)
        checked += count
    return checked


async def _write(storage: Storage, rng: random.Random, ledger_id: int, live: dict[int, int]) -> None:
    batch = storage.new_batch()
    storage.create_ledger(batch, ledger_id, CODEC.master_key)
    live[ledger_id] = 0
    count = 0
    target = rng.randrange(1, LEDGER_ENTRIES_MAX)
    while count < target:
        record = storage.ledger(ledger_id)
        assert record is not None
        for entry_id in range(count, count + rng.randrange(1, 12)):
            storage.stage_entry(batch, record, entry_id, entry_id - 1, body_of(ledger_id, entry_id))
            count = entry_id + 1
        await storage.submit_durably(batch)
        batch = storage.new_batch()
        live[ledger_id] = count
        _print_line("entries", ledger_id, count)
        await storage.wait_capacity()
    if rng.random() < 0.3:
        record = storage.ledger(ledger_id)
        assert record is not None
        storage.stage_fence(batch, record)
        await storage.submit_durably(batch)
        _print_line("fenced", ledger_id)


async def _collect(storage: Storage, config: CompactionConfig) -> None:
    collector = GarbageCollector(storage, _all_live, compaction=config)
    number = 0
    while True:
        before = sum(one.stats.compacted_logs for one in storage.collectors)
        collector.force(major=True)
        await collector.run_round()
        number += 1
        after = sum(one.stats.compacted_logs for one in storage.collectors)
        assert not any(one.stats.quarantined for one in storage.collectors), "an entry log is quarantined"
        _print_line("round", number, after - before)
        await trio.sleep(0.02)


async def _all_live(ledger_ids: Sequence[int]) -> Collection[int]:
    return ledger_ids


async def live(root: Path, seed: int, first_ledger_id: int, kind: IndexKind, promises: Promises) -> None:
    """Check the promises, then write, fence, delete and compact until killed."""
    rng = random.Random(seed)
    config = config_below(root, kind)
    async with open_storage(RealDisk(), config) as storage, trio.open_nursery() as nursery:
        _print_line("checked", await _check(storage, promises))
        nursery.start_soon(_collect, storage, config.compaction)
        there = {
            ledger_id: count
            for ledger_id, count in promises.entries.items()
            if storage.ledger(ledger_id) is not None and ledger_id not in promises.deleting
        }
        ledger_id = first_ledger_id
        while True:
            async with trio.open_nursery() as writers:
                for _ in range(3):
                    writers.start_soon(_write, storage, rng, ledger_id, there)
                    ledger_id += 1
            while len(there) > LIVE_MAX:
                gone = rng.choice(list(there))
                del there[gone]
                _print_line("deleting", gone)
                await storage.delete_ledger(gone)
                await storage.flush()  # before this, a replay of the journal may restore it
                _print_line("deleted", gone)
                try:
                    await storage.read(gone, 0)
                except NoLedgerError:
                    continue
                raise AssertionError(f"ledger {gone} was deleted and can still be read")


# --- for tests ------------------------------------------------------------------------------------


def start(
    root: Path, seed: int, first_ledger_id: int, kind: IndexKind, promises: Promises
) -> subprocess.Popen[str]:
    """Start a victim on the directory that the earlier victims left."""
    file = root / "promises.json"
    file.write_text(promises.to_json())
    arguments = [str(root), str(seed), str(first_ledger_id), kind.name, str(file)]
    return subprocess.Popen(
        [sys.executable, __file__, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def main() -> None:
    """The victim's program."""
    root, seed, first_ledger_id, kind, file = sys.argv[1:]
    promises = Promises.from_json(Path(file).read_text())
    trio.run(live, Path(root), int(seed), int(first_ledger_id), IndexKind[kind], promises)


if __name__ == "__main__":
    main()
