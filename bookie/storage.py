"""The store of one bookie as one thing: stage, submit, read, flush; opened by replaying its journal.

Inside: who does what in which order. Not inside: formats, files (``journal``, ``entry_log``, ``index``),
protocol (``service``).
Always:
- an entry is in the write cache before it is in the journal, and a key or fence is journaled before any
  entry that depends on it;
- ``on_durable(None)`` means synced in the journal; from then on the entry survives any crash;
- the journal is forgotten up to a mark only when entry bytes, index and ledger data below it are synced,
  in that order (``checkpoint``);
- after the first failed write or sync nothing is acknowledged any more, ``wait_failed`` returns, and
  whoever runs the bookie stops it: the next start replays the journal.

Everything public is called on the loop. One thread writes the journal, one thread does everything else
that writes; reads that the page cache cannot answer use a few reader threads.

Source: BookieImpl.java, SingleDirectoryDbLedgerStorage.java; reference on bookie storage 2, 4, 8.
"""

from __future__ import annotations

import contextlib
import logging
import struct
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

import attrs
import trio

from bookie.checkpoint import Checkpoints
from bookie.disk import Disk, DiskThread, DiskUsage
from bookie.entry_log_reader import EntryLogReader
from bookie.entry_reads import EntryReads
from bookie.errors import FormatError, StartError, StorageFailedError
from bookie.group_commit import OnDurable
from bookie.journal import Journal, JournalFiles
from bookie.journal_format import (
    JournalMark,
    Predecessor,
    explicit_lac_record,
    fence_record,
    key_record,
)
from bookie.ledger_directory import LedgerDirectory
from bookie.ledgers import UNKNOWN_KEY, LedgerRecord
from bookie.replay import apply_records, read_journal
from bookie.storage_config import StorageConfig
from bookie.write_cache import ENTRY_OVERHEAD_BYTES, WriteCache

__all__ = ["LedgerRecord", "Storage", "StorageConfig", "open_storage"]

T = TypeVar("T")
log = logging.getLogger(__name__)

CURRENT = "current"  # the child of each configured directory that holds everything
_LAC_PACKET_IDS = struct.Struct(">qq")  # ledger id, LAC
_OVERHEAD_BYTES = ENTRY_OVERHEAD_BYTES + 4


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


@asynccontextmanager
async def open_storage(
    disk: Disk, config: StorageConfig, *, wall_ms: Callable[[], int] = _wall_ms
) -> AsyncIterator[Storage]:
    """Lock the directories, replay the journal, serve; on leaving, flush and give the locks back.

    Leaving waits for a checkpoint, cancelled or not, unless the storage has failed.

    Raises:
        DirectoryInUseError: Another process serves one of the directories.
        StartError: The stored data cannot be served as they are; nothing was changed.
        OSError: A directory cannot be read or written.
    """
    storage = Storage(disk, config)
    raised: BaseException | None = None
    try:
        await storage._start(wall_ms)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(storage._flush_regularly)
                try:
                    yield storage
                except BaseException as exc:  # kept as it is, not wrapped into the nursery's group
                    raised = exc
                nursery.cancel_scope.cancel()
        except BaseException:
            if raised is None:
                raise
    finally:
        with trio.CancelScope(shield=True):
            await storage._stop()
    if raised is not None:
        raise raised


class Storage:
    """See the module. Made by ``open_storage``."""

    def __init__(self, disk: Disk, config: StorageConfig) -> None:
        self._disk = disk
        self._config = config
        self._journal_directory = config.journal_directories[0] / CURRENT
        self._directory = config.ledger_directories[0] / CURRENT
        self._ledgers: dict[int, LedgerRecord] = {}
        self._cache = WriteCache()
        self._seal_at_bytes = config.write_cache_bytes_max // 2
        self._run: list[bytes] = []  # staged, not submitted
        self._dirty: dict[int, LedgerRecord] = {}  # ledger data changed since the last seal
        self._deleting: dict[int, int] = {}  # ledgers whose index is still to be deleted, how often
        self._checkpoints = Checkpoints(1)
        self._marked_epoch = 0  # flushed, and its mark written
        self._failure: BaseException | None = None
        self._failed = trio.Event()
        self._room = trio.Event()
        self._is_room_wanted = False
        self._progress = trio.Event()
        self._is_dirty = trio.Event()
        self._files = JournalFiles(disk, self._journal_directory, config.journal)
        self._store = LedgerDirectory(
            disk, self._directory, self._files, log_bytes_max=config.entry_log_bytes_max
        )
        self._reader = EntryLogReader(disk, self._directory)
        # Made by _start:
        self._thread: DiskThread
        self._reads: EntryReads
        self._journal: Journal | None = None
        self._is_serving = False

    def __repr__(self) -> str:
        state = "failed" if self._failure else "open"
        return f"<Storage {self._directory} {state}, {len(self._ledgers)} ledgers>"

    # --- writing ---

    def ledger(self, ledger_id: int) -> LedgerRecord | None:
        """What is known of a ledger; None: nothing."""
        return self._ledgers.get(ledger_id)

    def ledger_ids(self) -> list[int]:
        """All ledgers known here, ascending."""
        return sorted(self._ledgers)

    def create_ledger(self, ledger_id: int, master_key: bytes) -> LedgerRecord:
        """Make a ledger known and stage its key record.

        Also binds the key of a ledger whose record has ``UNKNOWN_KEY``: one whose key record was lost.
        """
        assert ledger_id >= 0
        record = self._ledgers.get(ledger_id)
        if record is None:
            record = self._ledgers[ledger_id] = LedgerRecord(ledger_id, master_key)
            record.first_epoch = self._checkpoints.epoch + 1
        else:
            assert record.master_key == UNKNOWN_KEY, f"ledger {ledger_id} has a key already"
            record.master_key = master_key
        self._dirty[ledger_id] = record
        self._run.append(key_record(ledger_id, master_key))
        return record

    def stage_entry(self, ledger: LedgerRecord, entry_id: int, lac: int, body: bytes) -> None:
        """Put an entry into the write cache and the staged run. Readable at once, durable later."""
        entries = ledger.active
        if entries is None:
            entries = self._cache.begin(ledger)
        entries[entry_id] = body
        if entry_id > ledger.last_entry_id:
            ledger.last_entry_id = entry_id
        if lac > ledger.lac:
            ledger.lac = lac
        self._run.append(body)

    def stage_fence(self, ledger: LedgerRecord) -> None:
        """Fence a ledger: from now on in memory, for good once the staged run is durable."""
        ledger.fenced = True
        self._dirty[ledger.ledger_id] = ledger
        self._run.append(fence_record(ledger.ledger_id))

    def stage_explicit_lac(self, ledger: LedgerRecord, body: bytes) -> None:
        """Keep a LAC packet, of at least 16 bytes, in place of the last one."""
        _, lac = _LAC_PACKET_IDS.unpack_from(body)
        ledger.explicit_lac = body
        ledger.lac = max(ledger.lac, lac)
        self._dirty[ledger.ledger_id] = ledger
        self._run.append(explicit_lac_record(ledger.ledger_id, body))

    def enter_limbo(self, ledger_id: int, master_key: bytes, *, fenced: bool) -> None:
        """Entries of this ledger may be missing here; if ``fenced``, its fence too. Flush to make it last.

        Before anybody is served. A ledger that is known keeps its key, unless it is ``UNKNOWN_KEY``.
        """
        record = self._ledgers.setdefault(ledger_id, LedgerRecord(ledger_id, UNKNOWN_KEY))
        record.master_key = record.master_key or master_key
        record.limbo = True
        record.fenced |= fenced
        self._dirty[ledger_id] = record

    def leave_limbo(self, ledger: LedgerRecord) -> None:
        """All this bookie should have of the ledger is durable here. Lasts from the next ``flush``."""
        ledger.limbo = False
        if self._ledgers.get(ledger.ledger_id) is ledger:  # not deleted meanwhile
            self._dirty[ledger.ledger_id] = ledger

    def submit(self, on_durable: OnDurable, *, sync: bool = True) -> None:
        """Hand the staged run to the journal; without one, wait for all that was submitted before.

        ``on_durable`` is called on the loop, once, in order of submission: with None when the run and
        everything before it is synced (``sync=False``: written), or with the error after which
        nothing is acknowledged. It must not raise.
        """
        run = self._run
        self._run = []
        if self._failure is not None:
            trio.lowlevel.current_trio_token().run_sync_soon(on_durable, self._failure)
            return
        assert self._journal is not None
        count = len(run)
        body_bytes = sum(map(len, run))
        self._journal.submit(run, body_bytes + 4 * count, on_durable, sync=sync)
        self._cache.active_bytes += body_bytes + _OVERHEAD_BYTES * count
        if self._cache.active_bytes >= self._seal_at_bytes:
            self._seal(self._journal.mark)
        elif not self._is_dirty.is_set():
            self._is_dirty.set()

    async def wait_room(self) -> None:
        """Return when the write cache and the journal's queue have room; at once, if they have.

        Raises ``StorageFailedError`` once nothing can be written any more.
        """
        while not self._has_room():
            self._is_room_wanted = True
            await self._room.wait()
        self._check_alive()

    def _has_room(self) -> bool:
        assert self._journal is not None
        return self._failure is not None or (
            self._cache.active_bytes + self._cache.sealed_bytes < self._config.write_cache_bytes_max
            and self._journal.queued_bytes < self._config.journal_queue_bytes_max
        )

    def _wake_for_room(self) -> None:
        if self._is_room_wanted and self._has_room():
            self._is_room_wanted = False
            self._room.set()
            self._room = trio.Event()

    # --- reading ---

    def read_cached(self, ledger_id: int, entry_id: int) -> bytes | None:
        """The entry if it is in memory."""
        record = self._ledgers.get(ledger_id)
        return None if record is None else self._reads.read_cached(record, entry_id)

    async def read(self, ledger_id: int, entry_id: int) -> bytes:
        """The entry's body.

        Raises:
            NoLedgerError: The ledger is unknown.
            NoEntryError: The entry was never stored here.
            EntryUnreadableError: It was, and it cannot be read.
        """
        return await self._reads.read(ledger_id, entry_id)

    async def read_run(self, ledger_id: int, first: int, count_max: int, size_bytes_max: int) -> list[bytes]:
        """Bodies of consecutive entries from ``first``: at least one, until one is missing or a limit met.

        ``size_bytes_max`` counts each body and 4 bytes; the first is returned whatever its size.
        Raises as ``read`` does, for the first entry.
        """
        return await self._reads.read_run(ledger_id, first, count_max, size_bytes_max)

    async def entry_ids(self, ledger_id: int) -> list[int]:
        """Ids of all entries of a ledger stored here, ascending. ``NoLedgerError``."""
        return await self._reads.entry_ids(ledger_id)

    # --- the rest of a ledger's life, and of the bookie's ---

    async def delete_ledger(self, ledger_id: int) -> None:
        """Forget a ledger and its entries, durably on return; no error if it is unknown.

        Its bytes in entry logs go later, with ``remove_dead_logs``. A cancelled call deletes all the same.
        """
        self._check_alive()
        record = self._ledgers.pop(ledger_id, None)
        if record is None:
            return
        self._cache.drop_ledger(record)
        self._reads.drop_ledger(ledger_id)
        self._dirty.pop(ledger_id, None)
        self._store.index.forget_cached()
        self._deleting[ledger_id] = self._deleting.get(ledger_id, 0) + 1
        deleted = trio.Event()

        def done(_: None, error: BaseException | None) -> None:
            # In the callback, not after the wait: the flush of a ledger made anew may be next in line.
            if error is not None:
                self._fail(error, "deleting a ledger")
            elif self._deleting[ledger_id] > 1:
                self._deleting[ledger_id] -= 1
            else:
                del self._deleting[ledger_id]
            deleted.set()

        # Behind the flush of every cache sealed so far, so that none of them brings it back.
        self._thread.submit(partial(self._store.delete_ledger, ledger_id), done)
        await deleted.wait()
        self._check_alive()

    async def remove_dead_logs(self) -> list[int]:
        """Delete complete entry logs in which no known ledger has entries; their ids."""
        is_live = set(self._ledgers).__contains__
        removed = await self._in_thread(partial(self._store.remove_dead_logs, is_live))
        for log_id in removed:
            self._reader.forget(log_id)
        return removed

    async def flush(self) -> None:
        """Checkpoint: return when all that was durable in the journal is in ledger storage, and marked.

        Raises ``StorageFailedError``. A cancelled call leaves the checkpoint to go on by itself.
        """
        self._check_alive()
        assert self._journal is not None
        if self._journal.has_unsynced:
            synced = trio.Event()
            self._journal.submit([], 0, lambda _: synced.set(), sync=True)
            await synced.wait()
            self._check_alive()
        mark = self._journal.mark
        if not self._cache.is_empty or self._dirty or mark > self._checkpoints.mark:
            self._seal(mark)
        await self._wait_marked(self._checkpoints.epoch)

    async def wait_failed(self) -> BaseException:
        """Return the error after which nothing is acknowledged; the bookie must stop then."""
        await self._failed.wait()
        assert self._failure is not None
        return self._failure

    def disk_usage(self) -> DiskUsage:
        """Of the file system that holds the entry logs."""
        return self._disk.usage(self._directory)

    # --- checkpoints; on the loop ---

    def _seal(self, mark: JournalMark) -> None:
        for record in self._cache.records():
            self._dirty[record.ledger_id] = record
        ledgers = [(ledger_id, record.stored()) for ledger_id, record in self._dirty.items()]
        self._dirty.clear()
        sealed = self._cache.seal(self._checkpoints.begin(mark), ledgers, mark)
        self._thread.submit(partial(self._store.flush, sealed), partial(self._flushed, sealed.epoch))

    def _flushed(self, epoch: int, _: None, error: BaseException | None) -> None:
        if error is not None:
            self._fail(error, "flushing to the entry logs")
            return
        self._cache.remove_flushed(epoch)
        self._store.index.forget_cached()
        mark = self._checkpoints.completed(0, epoch)
        if mark is None:
            self._marked(epoch, None, None)
        else:
            self._thread.submit(partial(self._store.write_mark, mark), partial(self._marked, epoch))
        self._wake_for_room()

    def _marked(self, epoch: int, _: None, error: BaseException | None) -> None:
        if error is not None:
            self._fail(error, "writing lastMark")
            return
        self._marked_epoch = max(self._marked_epoch, epoch)
        self._progress.set()
        self._progress = trio.Event()

    async def _wait_marked(self, epoch: int) -> None:
        while self._marked_epoch < epoch:
            self._check_alive()
            await self._progress.wait()
        self._check_alive()

    async def _flush_regularly(self) -> None:
        with contextlib.suppress(StorageFailedError):  # wait_failed tells whoever must know
            while True:
                await self._is_dirty.wait()
                await trio.sleep(self._config.flush_interval_s)
                self._is_dirty = trio.Event()
                await self.flush()

    async def _in_thread(self, job: Callable[[], T]) -> T:
        """A job that writes, in the storage thread. Its error is the storage's failure."""
        self._check_alive()
        try:
            return await self._thread.call(job)
        except OSError as exc:
            self._fail(exc, "writing")
            raise StorageFailedError(f"{self._directory}: {exc}") from exc

    def _answered(self, error: StorageFailedError | None) -> None:
        if error is not None:
            self._fail(error, "the journal")
        self._wake_for_room()

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise StorageFailedError(f"the storage has failed: {self._failure}") from self._failure

    def _fail(self, error: BaseException, doing: str) -> None:
        if self._failure is None:
            log.error("%s: %s failed: %s", self._directory, doing, error)
            if not isinstance(error, StorageFailedError):
                failure = StorageFailedError(f"{self._directory}: {doing} failed: {error}")
                failure.__cause__ = error
                error = failure
            self._failure = error
            self._failed.set()
        self._progress.set()
        self._room.set()

    # --- start and stop; on the loop ---

    async def _start(self, wall_ms: Callable[[], int]) -> None:
        self._thread = self._disk.start_thread("bookie-storage")
        mark, journal_ids = await self._thread.call(
            partial(self._store.open, rebuild_index=self._config.rebuild_index)
        )
        self._checkpoints = Checkpoints(1, mark)
        index = self._store.index
        self._reads = EntryReads(
            self._disk, self._ledgers, self._deleting, self._cache, index, self._reader, self._config.reads
        )
        try:
            for ledger_id, data in index.ledgers():
                self._ledgers[ledger_id] = LedgerRecord(ledger_id, **attrs.asdict(data))
        except FormatError as exc:
            raise StartError(
                f"{self._directory}: {exc}. The index is damaged: move the directory 'index' away and start"
                " once with rebuild_index, which fences every ledger found"
            ) from exc
        end = await read_journal(
            self._disk,
            self._journal_directory,
            journal_ids,
            mark,
            self._replay,
            skip_damaged=self._config.skip_damaged_journal,
        )
        # All that was replayed becomes durable before the mark moves: until then a crash replays it again.
        self._seal(mark)
        await self._wait_marked(self._checkpoints.epoch)
        last_id = max(end.last_id, mark.journal_id)
        journal = self._journal = Journal(
            self._disk,
            self._files,
            self._config.journal,
            next_id=last_id + 1 if last_id else wall_ms() + 1,
            previous=Predecessor(end.mark.journal_id, end.mark.offset),
            on_answered=self._answered,
        )
        await journal.start()
        self._seal(journal.mark)
        await self._wait_marked(self._checkpoints.epoch)
        self._is_serving = True

    async def _replay(self, records: Sequence[bytes]) -> None:
        apply_records(self, records)
        self._cache.active_bytes += sum(map(len, records)) + _OVERHEAD_BYTES * len(records)
        self._run.clear()  # it is in the journal already
        if self._cache.active_bytes >= self._seal_at_bytes:
            self._seal(self._checkpoints.mark)
            await self._wait_marked(self._checkpoints.epoch)

    async def _stop(self) -> None:
        """Checkpoint if that can still be done, close everything, give the locks back."""
        try:
            if self._is_serving and self._failure is None:
                self.submit(lambda _: None)  # what was staged and not submitted is nobody's acknowledgement
                assert self._journal is not None
                answered = trio.Event()
                self._journal.submit([], 0, lambda _: answered.set(), sync=True)
                await answered.wait()
                with contextlib.suppress(StorageFailedError):  # logged; the journal has it all
                    await self.flush()
            if self._journal is not None:
                await self._journal.aclose()
            if hasattr(self, "_thread"):
                try:
                    await self._thread.call(partial(self._store.close, has_failed=self._failure is not None))
                except OSError as exc:
                    log.error("%s: closing failed: %s", self._directory, exc)
                await self._thread.aclose()
        finally:
            self._reader.close()
