"""A bookie's store that is written once, hurt in one place, started and questioned.

Inside: making it, copying it, the judgement. Not inside: the places (``damage``).
The judge knows what was acknowledged and nothing of the case. It is content if the start is refused by an
error that names the file and a remedy, if each entry comes back as it was written or is told to be
unreadable (by the bookie, or by the digest that every client checks), and if what other ledgers share a log
with stays when a ledger is deleted. It is not if an acknowledged entry is denied, or is another one.
"""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import trio
from damage import (
    Field,
    database_fields,
    entries_of,
    entry_log_fields,
    journal_fields,
    mark_fields,
    page_file_fields,
    small_file_fields,
)

from bookie.admission import begin_admission
from bookie.compaction_rules import CompactionConfig
from bookie.cookie import Cookie
from bookie.disk import RealDisk, RealFile
from bookie.errors import (
    CookieError,
    DirectoryError,
    EntryUnreadableError,
    NoEntryError,
    NoLedgerError,
    StartError,
    StorageFailedError,
)
from bookie.gc import GarbageCollector
from bookie.index_kinds import IndexConfig, IndexKind
from bookie.journal_files import JournalConfig
from bookie.ledgers import UNKNOWN_KEY
from bookie.storage import Storage, StorageConfig, open_storage
from ledger.catalog import LedgerCatalog
from ledger.digest import DigestType, EntryCodec
from ledger.errors import CorruptEntryError
from ledger.metadata import Ensemble, LedgerMetadata
from ledger.paths import Layout
from namespace.memory import MemoryTree, open_memory_store

PASSWORD = b"matrix"
CODEC = EntryCodec(DigestType.CRC32C, PASSWORD)
NAME, ROOT = "b1:1", "/ledgers"
LAYOUT = Layout.HIERARCHICAL
LEDGERS = (1, 2, 3, 4)
FENCED = 3  # fenced before the checkpoint
FENCED_LATE = 4  # fenced behind it
DELETED = 2  # by the judge, to see what garbage collection takes along
STATES = ("killed", "stopped", "copying", "ready")  # the last two: killed in the midst of a compaction
READ_BYTES_MAX = 32 << 20  # asked for at once, whatever a length says
REMEDIES = (
    "start once",
    "bring",
    "move",
    "remove",
    "mount",
    "restore",
    "correct",
    "recover",
    "give",
    "replace",
    "rebuild",
)


def config_below(root: Path, kind: IndexKind) -> StorageConfig:
    """Small files, so that there are several of each."""
    journals: Any = (root / "journal",)
    ledgers: Any = (root / "ledgers",)
    return StorageConfig(
        journal_directories=journals,
        ledger_directories=ledgers,
        journal=JournalConfig(
            file_bytes_max=64 << 10, preallocate_bytes=64 << 10, group_bytes_max=8 << 10, spare_files_max=1
        ),
        entry_log_bytes_max=8 << 10,
        flush_interval_s=1000,
        index=IndexConfig(kind=kind),
        compaction=CompactionConfig(reserve_bytes=0),
    )


@attrs.define
class Truth:
    """What was acknowledged."""

    entries: dict[tuple[int, int], bytes] = attrs.field(factory=dict)
    fenced: set[int] = attrs.field(factory=set)
    lac_packets: dict[int, bytes] = attrs.field(factory=dict)
    ledgers_of_log: dict[str, dict[str, set[int]]] = attrs.field(factory=dict)  # of each kept store
    trees: dict[str, MemoryTree] = attrs.field(factory=dict)  # the metadata store that goes with each

    def last_entry_id(self, ledger_id: int) -> int:
        return max(entry for ledger, entry in self.entries if ledger == ledger_id)


class ModestFile(RealFile):
    """Notices who believes an absurd length."""

    def pread(self, size_bytes: int, offset: int) -> bytes:
        assert size_bytes <= READ_BYTES_MAX, f"{size_bytes} bytes were asked for at once"
        return super().pread(size_bytes, offset)

    def pread_cached(self, size_bytes: int, offset: int) -> bytes | None:
        assert size_bytes <= READ_BYTES_MAX, f"{size_bytes} bytes were asked for at once"
        return super().pread_cached(size_bytes, offset)


class ModestDisk(RealDisk):
    """The real one with such files."""

    def open(
        self, path: Path, *, create: bool = False, write: bool = False, direct: bool = False
    ) -> RealFile:
        file = super().open(path, create=create, write=write, direct=direct)
        assert isinstance(file, RealFile)
        file.__class__ = ModestFile
        return file


class CompactionWatch(RealDisk):
    """Takes a copy of the store before a log's copy gets its second name, and after it lost its first."""

    def __init__(self, take: Callable[[str], None]) -> None:
        super().__init__()
        self._take = take

    def link(self, old: Path, new: Path) -> None:
        if new.suffix == ".compacted":
            self._take("copying")
        super().link(old, new)

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        if path.suffix == ".compacting":
            self._take("ready")


# --- making it ------------------------------------------------------------------------------------


@asynccontextmanager
async def opened(
    disk: RealDisk, tree: MemoryTree, root: Path, config: StorageConfig
) -> AsyncIterator[Storage]:
    """The storage as a bookie opens it: with its cookie, and after its doubts have been cleared."""
    cookie = Cookie(NAME, (str(root / "journal"),), (str(root / "ledgers"),), (), None)
    async with open_memory_store(tree) as store:
        admission = await begin_admission(store, ROOT, LAYOUT, disk, cookie, config)
        async with open_storage(disk, config, wall_ms=lambda: 1000) as storage:
            await admission.complete(storage)
            yield storage
        await admission.stopped()


def make_store(root: Path, kept: Path, kind: IndexKind) -> Truth:
    """Write a store below ``root``; ``kept/killed`` is what a SIGKILL leaves, ``kept/stopped`` a stop."""
    truth = Truth()
    trio.run(_write_store, root, kept, kind, truth)
    for which in STATES:
        truth.ledgers_of_log[which] = {
            path.name: {ledger for _, _, ledger, _ in entries_of(path.read_bytes())}
            for path in (kept / which / "ledgers/current").glob("*.log")
        }
    return truth


async def _write_store(root: Path, kept: Path, kind: IndexKind, truth: Truth) -> None:
    config, tree = config_below(root, kind), MemoryTree(lambda: 1000)
    async with open_memory_store(tree) as store:
        await store.create(ROOT)
    async with opened(RealDisk(), tree, root, config) as storage:
        # Recorded only now: a new bookie puts in limbo what names it, as another may have borne its name.
        async with open_memory_store(tree) as store:
            for ledger_id in LEDGERS:
                metadata = LedgerMetadata(
                    ensemble_size=1,
                    write_quorum=1,
                    ack_quorum=1,
                    ensembles=(Ensemble(0, (NAME,)),),
                    password=PASSWORD,
                )
                await LedgerCatalog(store, ROOT, LAYOUT).create(metadata, ledger_id)
                storage.create_ledger(ledger_id, CODEC.master_key)
        for first in (0, 4):
            await _add(storage, truth, first, first + 4)
            await storage.flush()
    async with opened(RealDisk(), tree, root, config) as storage:
        await _fence(storage, truth, FENCED)
        await _add(storage, truth, 8, 10, lac_of=1)
        await storage.flush()
        await _add(storage, truth, 10, 12)
        await _fence(storage, truth, FENCED_LATE)
        await _add(storage, truth, 12, 14, lac_of=2)
        await _add(storage, truth, 14, 16)
        shutil.copytree(root, kept / "killed")
        truth.trees["killed"] = copy.deepcopy(tree)
    shutil.copytree(root, kept / "stopped")
    truth.trees["stopped"] = copy.deepcopy(tree)

    def take(which: str) -> None:
        if which not in truth.trees:
            shutil.copytree(root, kept / which)
            truth.trees[which] = copy.deepcopy(tree)

    async with opened(CompactionWatch(take), tree, root, config) as storage:
        await storage.delete_ledger(DELETED)
        await storage.flush()
        collector = GarbageCollector(storage, _all_live, compaction=config.compaction)
        collector.force(major=True)
        await collector.run_round()


async def _add(storage: Storage, truth: Truth, first: int, stop: int, *, lac_of: int = 0) -> None:
    """A group for each ledger."""
    for ledger_id in LEDGERS:
        record = storage.ledger(ledger_id)
        assert record is not None
        for entry_id in range(first, stop):
            payload = bytes([ledger_id, entry_id]) * (100 + 67 * ledger_id + entry_id)
            body = CODEC.pack(ledger_id, entry_id, entry_id - 1, 0, payload)
            storage.stage_entry(record, entry_id, entry_id - 1, body)
            truth.entries[ledger_id, entry_id] = body
        if ledger_id == lac_of:
            truth.lac_packets[ledger_id] = CODEC.pack_lac(ledger_id, stop - 1)
            storage.stage_explicit_lac(record, truth.lac_packets[ledger_id])
        await storage.submit_durably()


async def _fence(storage: Storage, truth: Truth, ledger_id: int) -> None:
    record = storage.ledger(ledger_id)
    assert record is not None
    storage.stage_fence(record)
    truth.fenced.add(ledger_id)
    await storage.submit_durably()


# --- what can be hurt -----------------------------------------------------------------------------


def fields_of(store: Path, *, pieces: int) -> Iterator[Field]:
    """Every field of every file below ``store``."""
    mark = (store / "ledgers/current/lastMark").read_bytes()
    journal_id, mark_offset = int.from_bytes(mark[:8], "big"), int.from_bytes(mark[8:16], "big")
    for path in sorted(store.rglob("*")):
        if not path.is_file():
            continue
        file, data = str(path.relative_to(store)), path.read_bytes()
        if store.name in ("copying", "ready"):
            if path.suffix in (".compacting", ".compacted"):
                yield from entry_log_fields(file, data)
        elif path.suffix == ".idx":
            yield from page_file_fields(file, data)
        elif path.parent.name == "index":
            yield from database_fields(file, data, pieces)
        elif path.suffix == ".txn":
            below = mark_offset if int(path.stem, 16) == journal_id else 0
            yield from journal_fields(file, data, below)
        elif path.suffix == ".log":
            yield from entry_log_fields(file, data)
        elif path.name == "lastMark":
            yield from mark_fields(file)
        else:
            kind = "spare journal" if path.name.startswith("spare-") else path.name
            yield from small_file_fields(file, data[:4096], kind)


# --- the judgement --------------------------------------------------------------------------------


@attrs.define
class Verdict:
    """What came of it."""

    outcomes: set[str] = attrs.field(factory=set)  # of the table; empty: as if nothing had happened
    unreadable: set[tuple[int, int]] = attrs.field(factory=set)
    asked: int = 0  # how often everything was asked for
    wrongs: list[str] = attrs.field(factory=list)  # what must never be

    def __str__(self) -> str:
        return " / ".join(sorted(self.outcomes)) or "harmless"


def judge(config: StorageConfig, truth: Truth, which: str, damaged: Path) -> Verdict:
    """Start a copy of the store ``which`` twice, and ask for everything."""
    verdict = Verdict()
    trio.run(_judge, config, truth, which, damaged, verdict)
    return verdict


async def _judge(config: StorageConfig, truth: Truth, which: str, damaged: Path, verdict: Verdict) -> None:
    root = config.ledger_directories[0].parent
    tree = copy.deepcopy(truth.trees[which])
    gone = {DELETED} if which in ("copying", "ready") else set[int]()
    for start in range(2):
        try:
            async with opened(ModestDisk(), tree, root, config) as storage:
                await _question(storage, truth, verdict, gone)
                if start == 0:
                    await storage.delete_ledger(DELETED)
                    gone.add(DELETED)
                    await _collect(damaged, storage, truth.ledgers_of_log[which], verdict)
                    unreadable = verdict.unreadable.copy()
                    await _question(storage, truth, verdict, gone)
                    if more := verdict.unreadable - unreadable:
                        verdict.wrongs.append(f"garbage collection made {sorted(more)} unreadable")
        except (StartError, CookieError, DirectoryError, StorageFailedError) as exc:
            has_started = start == 1 or bool(verdict.asked)
            if has_started and not isinstance(exc, StorageFailedError):
                verdict.wrongs.append(f"started once, and then not again: {exc}")
            verdict.outcomes.add("the bookie stops" if has_started else "start refused")
            message = str(exc)
            if damaged.name not in message and f"{damaged.parent.name}" not in message:
                verdict.wrongs.append(f"the refusal does not name {damaged.name}: {message}")
            if not any(remedy in message.lower() for remedy in REMEDIES):
                verdict.wrongs.append(f"the refusal names no remedy: {message}")
            return
        except AssertionError:
            raise
        except Exception as exc:
            verdict.wrongs.append(f"start {start}: {type(exc).__name__}: {exc}")
            return


async def _collect(
    damaged: Path, storage: Storage, ledgers_of_log: dict[str, set[int]], verdict: Verdict
) -> None:
    """Garbage collection, then compaction; a log that was moved whole may go, one that is hurt may not."""
    collector = GarbageCollector(storage, _all_live, compaction=CompactionConfig(reserve_bytes=0))
    await collector.run_round()
    is_live = bool(ledgers_of_log.get(damaged.name, set()) - {DELETED})
    if is_live and damaged.name not in await trio.to_thread.run_sync(os.listdir, damaged.parent):
        verdict.wrongs.append("the damaged log, which holds live ledgers, was taken for a dead one")
    collector.force(major=True)
    await collector.run_round()


async def _all_live(ledger_ids: Sequence[int]) -> Collection[int]:
    return ledger_ids


async def _question(storage: Storage, truth: Truth, verdict: Verdict, gone: set[int]) -> None:
    verdict.asked += 1
    for (ledger_id, entry_id), body in truth.entries.items():
        if ledger_id in gone:
            continue
        where = f"entry {ledger_id}:{entry_id}"
        try:
            stored = await storage.read(ledger_id, entry_id)
        except EntryUnreadableError:
            verdict.outcomes.add("I/O error for the entry")
            verdict.unreadable.add((ledger_id, entry_id))
            continue
        except (NoEntryError, NoLedgerError) as exc:
            record = storage.ledger(ledger_id)
            if record is not None and record.limbo:
                verdict.outcomes.add("denied to nobody (limbo)")
                continue
            verdict.wrongs.append(f"{where} is denied: {exc}")
            continue
        if stored != body:
            try:
                CODEC.unpack(stored, ledger_id, entry_id)
            except CorruptEntryError:
                verdict.outcomes.add("the client's digest finds it")
            else:
                verdict.wrongs.append(f"{where} is another one")
    for ledger_id in LEDGERS:
        if ledger_id not in gone:
            await _question_ledger(storage, truth, verdict, ledger_id)


async def _question_ledger(storage: Storage, truth: Truth, verdict: Verdict, ledger_id: int) -> None:
    record = storage.ledger(ledger_id)
    if record is None:
        verdict.wrongs.append(f"ledger {ledger_id} is not known")
        return
    if record.limbo:
        verdict.outcomes.add("ledgers in limbo")
        return
    last = truth.last_entry_id(ledger_id)
    if record.master_key not in (CODEC.master_key, UNKNOWN_KEY):
        verdict.wrongs.append(f"ledger {ledger_id} has another key")
    if ledger_id in truth.fenced and not record.fenced:
        verdict.wrongs.append(f"ledger {ledger_id} lost its fence")
    if ledger_id not in truth.fenced and record.fenced:
        verdict.outcomes.add("ledgers fenced")
    if record.last_entry_id != last:
        verdict.wrongs.append(f"ledger {ledger_id} ends at {record.last_entry_id}, not at {last}")
    if record.lac > max(last - 1, ledger_id in truth.lac_packets and last):
        verdict.wrongs.append(f"ledger {ledger_id} has LAC {record.lac}")
    packet = truth.lac_packets.get(ledger_id)
    if packet is not None and record.explicit_lac != packet:
        verdict.outcomes.add("explicit LAC lost")
    try:
        listed = set(await storage.entry_ids(ledger_id))
    except EntryUnreadableError:
        verdict.outcomes.add("I/O error for the entry")
        return
    missing = {entry for ledger, entry in truth.entries if ledger == ledger_id} - listed
    if missing:
        verdict.wrongs.append(f"ledger {ledger_id}: entries {sorted(missing)} are not listed")
