"""A bookie's store that is written once, damaged in one place, started and checked.

Inside: writing the store, copying it, checking it. Not inside: the fields (``damage``).
The check knows what was acknowledged, and not what was damaged. It passes if the start is refused with an
error that names the file and a remedy; if each entry is returned as it was written, or is reported as
unreadable by the bookie, or fails the digest check of a client; and if the deletion of a ledger does not
delete the entries of others in the same log. It fails if an acknowledged entry is denied or is replaced by
another one.
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

from bookie.cluster.startup_check import begin_startup_check
from bookie.disk.real_disk import RealDisk, RealFile
from bookie.errors import (
    CookieError,
    DirectoryError,
    EntryUnreadableError,
    NoEntryError,
    NoLedgerError,
    StartError,
    StorageFailedError,
)
from bookie.gc.collector import GarbageCollector
from bookie.gc.compaction_rules import CompactionConfig
from bookie.identity.cookie import Cookie
from bookie.index.index_factory import IndexConfig, IndexKind
from bookie.journal.files import JournalConfig
from bookie.ledger_metadata.cluster_nodes import ClusterNodes
from bookie.ledger_record import UNKNOWN_KEY
from bookie.storage.config import StorageConfig
from bookie.storage.opening import open_storage
from bookie.storage.storage import Storage
from ledger.catalog.catalog import LedgerCatalog
from ledger.catalog.paths import Layout
from ledger.digest import DigestType, EntryCodec
from ledger.errors import CorruptEntryError
from ledger.metadata import Ensemble, LedgerMetadata
from ledger.metadata_store.memory import MemoryTree, open_memory_store
from tests.fakes.damage import (
    Field,
    database_fields,
    entries_of,
    entry_log_fields,
    journal_fields,
    mark_fields,
    page_file_fields,
    small_file_fields,
)

PASSWORD = b"matrix"
CODEC = EntryCodec(DigestType.CRC32C, PASSWORD)
NAME, ROOT = "b1:1", "/ledgers"
LAYOUT = Layout.HIERARCHICAL
LEDGERS = (1, 2, 3, 4)
FENCED = 3  # fenced before the checkpoint
FENCED_LATE = 4  # fenced after the checkpoint
DELETED = 2  # deleted by the check, so that garbage collection has work
STATES = ("killed", "stopped", "copying", "ready")  # the last two: killed during a compaction
READ_BYTES_MAX = 32 << 20  # the greatest read, whatever a damaged length claims
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
    """A configuration with small files, so that there are several of each type."""
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
class AcknowledgedState:
    """The acknowledged entries, fences and LAC packets."""

    entries: dict[tuple[int, int], bytes] = attrs.field(factory=dict)
    fenced: set[int] = attrs.field(factory=set)
    lac_packets: dict[int, bytes] = attrs.field(factory=dict)
    ledgers_of_log: dict[str, dict[str, set[int]]] = attrs.field(factory=dict)  # by kept store
    trees: dict[str, MemoryTree] = attrs.field(factory=dict)  # the metadata of each kept store

    def last_entry_id(self, ledger_id: int) -> int:
        return max(entry for ledger, entry in self.entries if ledger == ledger_id)


class BoundedReadFile(RealFile):
    """A file that fails a read of an absurd length."""

    def pread(self, size_bytes: int, offset: int) -> bytes:
        assert size_bytes <= READ_BYTES_MAX, f"one read of {size_bytes} bytes"
        return super().pread(size_bytes, offset)

    def pread_cached(self, size_bytes: int, offset: int) -> bytes | None:
        assert size_bytes <= READ_BYTES_MAX, f"one read of {size_bytes} bytes"
        return super().pread_cached(size_bytes, offset)


class BoundedReadDisk(RealDisk):
    """The real disk with such files."""

    def open(
        self, path: Path, *, create: bool = False, write: bool = False, direct: bool = False
    ) -> RealFile:
        file = super().open(path, create=create, write=write, direct=direct)
        assert isinstance(file, RealFile)
        file.__class__ = BoundedReadFile
        return file


class CompactionWatch(RealDisk):
    """Copies the store before a compaction's log gets its second name, and after it loses its first."""

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


# --- writing the store ------------------------------------------------------------------------------------


@asynccontextmanager
async def opened(
    disk: RealDisk, tree: MemoryTree, root: Path, config: StorageConfig
) -> AsyncIterator[Storage]:
    """The storage as a bookie opens it: with its cookie, and after the startup check."""
    cookie = Cookie(NAME, (str(root / "journal"),), (str(root / "ledgers"),), (), None)
    async with open_memory_store(tree) as store:
        nodes = ClusterNodes(lambda: store, ROOT, LAYOUT)
        startup_check = await begin_startup_check(nodes, disk, cookie, config)
        async with open_storage(disk, config, wall_ms=lambda: 1000) as storage:
            await startup_check.complete(storage)
            yield storage
        await startup_check.mark_clean_stop()


def make_store(root: Path, kept: Path, kind: IndexKind) -> AcknowledgedState:
    """Write a store below ``root``; copies of its states are below ``kept``, named as in ``STATES``."""
    acknowledged = AcknowledgedState()
    trio.run(_write_store, root, kept, kind, acknowledged)
    for which in STATES:
        acknowledged.ledgers_of_log[which] = {
            path.name: {ledger for _, _, ledger, _ in entries_of(path.read_bytes())}
            for path in (kept / which / "ledgers/current").glob("*.log")
        }
    return acknowledged


async def _write_store(root: Path, kept: Path, kind: IndexKind, acknowledged: AcknowledgedState) -> None:
    config, tree = config_below(root, kind), MemoryTree(lambda: 1000)
    async with open_memory_store(tree) as store:
        await store.create(ROOT)
    async with opened(RealDisk(), tree, root, config) as storage:
        # Recorded only now: a new bookie puts ledgers that name it in limbo, since an earlier bookie may have
        # had its name.
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
                batch = storage.new_batch()
                storage.create_ledger(batch, ledger_id, CODEC.master_key)
                await storage.submit_durably(batch)
        for first in (0, 4):
            await _add(storage, acknowledged, first, first + 4)
            await storage.flush()
    async with opened(RealDisk(), tree, root, config) as storage:
        await _fence(storage, acknowledged, FENCED)
        await _add(storage, acknowledged, 8, 10, lac_of=1)
        await storage.flush()
        await _add(storage, acknowledged, 10, 12)
        await _fence(storage, acknowledged, FENCED_LATE)
        await _add(storage, acknowledged, 12, 14, lac_of=2)
        await _add(storage, acknowledged, 14, 16)
        shutil.copytree(root, kept / "killed")
        acknowledged.trees["killed"] = copy.deepcopy(tree)
    shutil.copytree(root, kept / "stopped")
    acknowledged.trees["stopped"] = copy.deepcopy(tree)

    def take(which: str) -> None:
        if which not in acknowledged.trees:
            shutil.copytree(root, kept / which)
            acknowledged.trees[which] = copy.deepcopy(tree)

    async with opened(CompactionWatch(take), tree, root, config) as storage:
        await storage.delete_ledger(DELETED)
        await storage.flush()
        collector = GarbageCollector(storage, _all_live, compaction=config.compaction)
        collector.force(major=True)
        await collector.run_round()


async def _add(
    storage: Storage, acknowledged: AcknowledgedState, first: int, stop: int, *, lac_of: int = 0
) -> None:
    """Add one batch of entries for each ledger."""
    for ledger_id in LEDGERS:
        record = storage.ledger(ledger_id)
        assert record is not None
        batch = storage.new_batch()
        for entry_id in range(first, stop):
            payload = bytes([ledger_id, entry_id]) * (100 + 67 * ledger_id + entry_id)
            body = CODEC.pack(ledger_id, entry_id, entry_id - 1, 0, payload)
            storage.stage_entry(batch, record, entry_id, entry_id - 1, body)
            acknowledged.entries[ledger_id, entry_id] = body
        if ledger_id == lac_of:
            acknowledged.lac_packets[ledger_id] = CODEC.pack_lac(ledger_id, stop - 1)
            storage.stage_explicit_lac(batch, record, acknowledged.lac_packets[ledger_id])
        await storage.submit_durably(batch)


async def _fence(storage: Storage, acknowledged: AcknowledgedState, ledger_id: int) -> None:
    record = storage.ledger(ledger_id)
    assert record is not None
    batch = storage.new_batch()
    storage.stage_fence(batch, record)
    acknowledged.fenced.add(ledger_id)
    await storage.submit_durably(batch)


# --- the fields to damage -----------------------------------------------------------------------------


def fields_of(store: Path, *, pieces: int) -> Iterator[Field]:
    """Every field of every file below ``store``."""
    mark = (store / "ledgers/current/lastMark").read_bytes()
    journal_id, mark_offset = int.from_bytes(mark[:8], "big"), int.from_bytes(mark[8:16], "big")
    for path in sorted(store.rglob("*")):
        if not path.is_file():
            continue
        below_current = path.relative_to(store).parts[2:]
        if below_current[:1] in (("dlog",), ("ledgers",), ("locations",)):
            continue  # the marks against Apache's bookie, which ours makes again and never reads for data
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


# --- the check --------------------------------------------------------------------------------


@attrs.define
class CheckReport:
    """The outcomes of one case, and violations of the contract."""

    outcomes: set[str] = attrs.field(factory=set)  # those of the table; empty: the damage had no effect
    unreadable: set[tuple[int, int]] = attrs.field(factory=set)
    reads_count: int = 0  # number of complete reads of the store
    violations: list[str] = attrs.field(factory=list)  # behaviour that is never allowed

    def __str__(self) -> str:
        return " / ".join(sorted(self.outcomes)) or "harmless"


def check_store(
    config: StorageConfig, acknowledged: AcknowledgedState, which: str, damaged: Path
) -> CheckReport:
    """Start a copy of the store ``which`` twice, and read all entries."""
    report = CheckReport()
    trio.run(_check_store, config, acknowledged, which, damaged, report)
    return report


async def _check_store(
    config: StorageConfig, acknowledged: AcknowledgedState, which: str, damaged: Path, report: CheckReport
) -> None:
    root = config.ledger_directories[0].parent
    tree = copy.deepcopy(acknowledged.trees[which])
    deleted = {DELETED} if which in ("copying", "ready") else set[int]()
    for start in range(2):
        try:
            async with opened(BoundedReadDisk(), tree, root, config) as storage:
                await _read_all(storage, acknowledged, report, deleted)
                if start == 0:
                    await storage.delete_ledger(DELETED)
                    deleted.add(DELETED)
                    await _collect(damaged, storage, acknowledged.ledgers_of_log[which], report)
                    unreadable = report.unreadable.copy()
                    await _read_all(storage, acknowledged, report, deleted)
                    if more := report.unreadable - unreadable:
                        report.violations.append(f"garbage collection made {sorted(more)} unreadable")
        except (StartError, CookieError, DirectoryError, StorageFailedError) as exc:
            has_started = start == 1 or bool(report.reads_count)
            if has_started and not isinstance(exc, StorageFailedError):
                report.violations.append(f"started once, but not a second time: {exc}")
            report.outcomes.add("the bookie stops" if has_started else "start refused")
            message = str(exc)
            if damaged.name not in message and f"{damaged.parent.name}" not in message:
                report.violations.append(f"the refusal does not name {damaged.name}: {message}")
            if not any(remedy in message.lower() for remedy in REMEDIES):
                report.violations.append(f"the refusal names no remedy: {message}")
            return
        except AssertionError:
            raise
        except Exception as exc:
            report.violations.append(f"start {start}: {type(exc).__name__}: {exc}")
            return


async def _collect(
    damaged: Path, storage: Storage, ledgers_of_log: dict[str, set[int]], report: CheckReport
) -> None:
    """Collect garbage, then compact. A damaged log with live ledgers must not be deleted as dead."""
    collector = GarbageCollector(storage, _all_live, compaction=CompactionConfig(reserve_bytes=0))
    await collector.run_round()
    is_live = bool(ledgers_of_log.get(damaged.name, set()) - {DELETED})
    if is_live and damaged.name not in await trio.to_thread.run_sync(os.listdir, damaged.parent):
        report.violations.append("the damaged log has live ledgers and was deleted as dead")
    collector.force(major=True)
    await collector.run_round()


async def _all_live(ledger_ids: Sequence[int]) -> Collection[int]:
    return ledger_ids


async def _read_all(
    storage: Storage, acknowledged: AcknowledgedState, report: CheckReport, deleted: set[int]
) -> None:
    report.reads_count += 1
    for (ledger_id, entry_id), body in acknowledged.entries.items():
        if ledger_id in deleted:
            continue
        where = f"entry {ledger_id}:{entry_id}"
        try:
            stored = await storage.read(ledger_id, entry_id)
        except EntryUnreadableError:
            report.outcomes.add("I/O error for the entry")
            report.unreadable.add((ledger_id, entry_id))
            continue
        except (NoEntryError, NoLedgerError) as exc:
            record = storage.ledger(ledger_id)
            if record is not None and record.limbo:
                report.outcomes.add("not denied (limbo)")
                continue
            report.violations.append(f"{where} is denied: {exc}")
            continue
        if stored != body:
            try:
                CODEC.unpack(stored, ledger_id, entry_id)
            except CorruptEntryError:
                report.outcomes.add("detected by the client's digest")
            else:
                report.violations.append(f"{where} is another one")
    for ledger_id in LEDGERS:
        if ledger_id not in deleted:
            await _check_ledger(storage, acknowledged, report, ledger_id)


async def _check_ledger(
    storage: Storage, acknowledged: AcknowledgedState, report: CheckReport, ledger_id: int
) -> None:
    record = storage.ledger(ledger_id)
    if record is None:
        report.violations.append(f"ledger {ledger_id} is not known")
        return
    if record.limbo:
        report.outcomes.add("ledgers in limbo")
        return
    last = acknowledged.last_entry_id(ledger_id)
    if record.master_key not in (CODEC.master_key, UNKNOWN_KEY):
        report.violations.append(f"ledger {ledger_id} has another key")
    if ledger_id in acknowledged.fenced and not record.fenced:
        report.violations.append(f"ledger {ledger_id} lost its fence")
    if ledger_id not in acknowledged.fenced and record.fenced:
        report.outcomes.add("ledgers fenced")
    if record.last_entry_id != last:
        report.violations.append(f"ledger {ledger_id} ends at {record.last_entry_id}, not at {last}")
    if record.lac > max(last - 1, ledger_id in acknowledged.lac_packets and last):
        report.violations.append(f"ledger {ledger_id} has LAC {record.lac}")
    packet = acknowledged.lac_packets.get(ledger_id)
    if packet is not None and record.explicit_lac != packet:
        report.outcomes.add("explicit LAC lost")
    try:
        listed = set(await storage.entry_ids(ledger_id))
    except EntryUnreadableError:
        report.outcomes.add("I/O error for the entry")
        return
    missing = {entry for ledger, entry in acknowledged.entries if ledger == ledger_id} - listed
    if missing:
        report.violations.append(f"ledger {ledger_id}: entries {sorted(missing)} are not listed")
