"""A bookie's storage to be killed: writes, fences, deletes and compacts without a pause. Also what its tests
share.

``python storage_victim.py DIRECTORY SEED FIRST_LEDGER INDEX PROMISES`` opens the storage, compares everything
that PROMISES says with what is there, prints ``checked N``, and goes on with new ledgers. Each line it prints
is a promise: ``entries L N`` once all entries of ledger L below N are durable, ``fenced L``, ``deleting L``
before it begins to delete a ledger and ``deleted L`` after the next checkpoint; ``round N M`` tells of
garbage collection and of the logs compacted. Anything wrong ends it with code 1 and a message.
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

from bookie.compaction_rules import CompactionConfig
from bookie.disk import RealDisk
from bookie.errors import NoLedgerError
from bookie.gc import GarbageCollector
from bookie.index_kinds import IndexConfig, IndexKind
from bookie.journal_files import JournalConfig
from bookie.storage import Storage, open_storage
from bookie.storage_config import StorageConfig
from ledger.digest import DigestType, EntryCodec

CODEC = EntryCodec(DigestType.CRC32C, b"kill")
LIVE_MAX = 24  # ledgers; beyond it one of them is deleted
LEDGER_ENTRIES_MAX = 120


def config_below(root: Path, kind: IndexKind) -> StorageConfig:
    """Two of everything, and so small that all of it turns over many times a second."""
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
    """What an entry must hold."""
    rng = random.Random(ledger_id * 1_000_003 + entry_id)
    return CODEC.pack(ledger_id, entry_id, entry_id - 1, 0, rng.randbytes(rng.choice((0, 20, 300, 2000))))


@attrs.define
class Promises:
    """What a victim has said so far."""

    entries: dict[int, int] = attrs.field(factory=dict)  # ledger -> how many are durable
    fenced: set[int] = attrs.field(factory=set)
    deleting: set[int] = attrs.field(factory=set)  # begun: it may be there or not
    deleted: set[int] = attrs.field(factory=set)
    checked: int = 0
    rounds: int = 0
    compacted: int = 0

    def hear(self, line: str) -> None:
        """Take one line of a victim's."""
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

    def written_down(self) -> str:
        """For the next victim."""
        return json.dumps(
            {
                "entries": sorted(self.entries.items()),
                "fenced": sorted(self.fenced),
                "deleting": sorted(self.deleting),
                "deleted": sorted(self.deleted),
            }
        )

    @classmethod
    def read(cls, text: str) -> Promises:
        """What an earlier victim has promised."""
        data = json.loads(text)
        return cls(dict(data["entries"]), set(data["fenced"]), set(data["deleting"]), set(data["deleted"]))


# --- the victim -----------------------------------------------------------------------------------


def _say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())  # one write: whole, or not at all


async def _check(storage: Storage, promises: Promises) -> int:
    checked = 0
    for ledger_id, count in promises.entries.items():
        record = storage.ledger(ledger_id)
        if ledger_id in promises.deleting:
            # Once it is said to be deleted it must never come back. Before that, some of it may be there: the
            # metadata store had denied it before, nobody reads it, and garbage collection takes the rest.
            assert record is None or ledger_id not in promises.deleted, f"ledger {ledger_id} is back"
            continue
        assert record is not None, f"ledger {ledger_id} is lost"
        assert record.master_key == CODEC.master_key, f"ledger {ledger_id} has another key"
        assert record.fenced or ledger_id not in promises.fenced, f"ledger {ledger_id} lost its fence"
        first = 0
        while first < count:
            bodies = await storage.read_run(ledger_id, first, count - first, 1 << 20)
            for entry_id, body in enumerate(bodies, first):
                assert body == body_of(ledger_id, entry_id), f"entry {ledger_id}:{entry_id} is another one"
            first += len(bodies)
        checked += count
    return checked


async def _write(storage: Storage, rng: random.Random, ledger_id: int, live: dict[int, int]) -> None:
    storage.create_ledger(ledger_id, CODEC.master_key)
    live[ledger_id] = 0
    count = 0
    target = rng.randrange(1, LEDGER_ENTRIES_MAX)
    while count < target:
        record = storage.ledger(ledger_id)
        assert record is not None
        for entry_id in range(count, count + rng.randrange(1, 12)):
            storage.stage_entry(record, entry_id, entry_id - 1, body_of(ledger_id, entry_id))
            count = entry_id + 1
        await storage.submit_durably()
        live[ledger_id] = count
        _say("entries", ledger_id, count)
        await storage.wait_room()
    if rng.random() < 0.3:
        record = storage.ledger(ledger_id)
        assert record is not None
        storage.stage_fence(record)
        await storage.submit_durably()
        _say("fenced", ledger_id)


async def _collect(storage: Storage, config: CompactionConfig) -> None:
    collector = GarbageCollector(storage, _all_live, compaction=config)
    number = 0
    while True:
        before = sum(one.figures.compacted_logs for one in storage.collectors)
        collector.force(major=True)
        await collector.run_round()
        number += 1
        after = sum(one.figures.compacted_logs for one in storage.collectors)
        assert not any(one.figures.quarantined for one in storage.collectors), "a log was put aside"
        _say("round", number, after - before)
        await trio.sleep(0.02)


async def _all_live(ledger_ids: Sequence[int]) -> Collection[int]:
    return ledger_ids


async def live(root: Path, seed: int, first_ledger_id: int, kind: IndexKind, promises: Promises) -> None:
    """Until killed."""
    rng = random.Random(seed)
    config = config_below(root, kind)
    async with open_storage(RealDisk(), config) as storage, trio.open_nursery() as nursery:
        _say("checked", await _check(storage, promises))
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
                _say("deleting", gone)
                await storage.delete_ledger(gone)
                await storage.flush()  # until then the journal may bring it back, and the next round takes it
                _say("deleted", gone)
                try:
                    await storage.read(gone, 0)
                except NoLedgerError:
                    continue
                raise AssertionError(f"ledger {gone} was deleted and can be read")


# --- its tests' part ------------------------------------------------------------------------------


def start(
    root: Path, seed: int, first_ledger_id: int, kind: IndexKind, promises: Promises
) -> subprocess.Popen[str]:
    """A victim over what the others left."""
    told = root / "promises.json"
    told.write_text(promises.written_down())
    arguments = [str(root), str(seed), str(first_ledger_id), kind.name, str(told)]
    return subprocess.Popen(
        [sys.executable, __file__, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def main() -> None:
    """See the module."""
    root, seed, first_ledger_id, kind, told = sys.argv[1:]
    promises = Promises.read(Path(told).read_text())
    trio.run(live, Path(root), int(seed), int(first_ledger_id), IndexKind[kind], promises)


if __name__ == "__main__":
    main()
