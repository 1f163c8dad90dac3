"""The store of one bookie as one thing: stage, submit, read, flush; opened by replaying its journal.

Inside: who does what in which order; epochs over all directories; which ledger lives where.
Not inside: formats, files (``journal``, ``entry_log``, ``index``), what belongs to one ledger directory
(``directory_store``) or to the journals alone (``journals``), protocol (``service``).
Always:
- an entry is in the write cache before it is in the journal, and a key or fence is journaled before any
  entry that depends on it;
- ``on_durable(None)`` means synced in the journal; from then on the entry survives any crash;
- a journal is forgotten up to a mark only when entry bytes, index and ledger data below it are synced, in
  that order, in every ledger directory (``checkpoint``);
- a ledger that has data in a directory stays there; only a new one goes where its id says;
- after the first failed write or sync nothing is acknowledged any more, ``wait_failed`` returns, and
  whoever runs the bookie stops it: the next start replays the journal.

Everything public is called on the loop. One thread writes each journal, one thread does everything else
that writes in a ledger directory; reads that the page cache cannot answer use a few reader threads.

Source: BookieImpl.java, DbLedgerStorage.java; reference on bookie storage 2, 4, 8.
"""

from __future__ import annotations

import contextlib
import logging
import struct
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import trio

from bookie.checkpoint import Marks
from bookie.directory_set import DirectorySet
from bookie.directory_store import DirectoryStore
from bookie.disk import Disk, DiskUsage
from bookie.epochs import Epochs
from bookie.errors import NoLedgerError, StartError, StorageFailedError
from bookie.group_commit import OnDurable
from bookie.journal_format import (
    explicit_lac_record,
    fence_record,
    key_record,
)
from bookie.journals import Journals
from bookie.last_mark import LastMarks, greatest_marks
from bookie.ledgers import UNKNOWN_KEY, LedgerRecord
from bookie.log_collector import LogCollector
from bookie.replay import apply_records
from bookie.scrubber import scrub_before_serving
from bookie.storage_config import CURRENT, LOCK, StorageConfig
from bookie.write_cache import ENTRY_OVERHEAD_BYTES

__all__ = ["LedgerRecord", "Storage", "StorageConfig", "open_storage"]

log = logging.getLogger(__name__)

_LAC_PACKET_IDS = struct.Struct(">qq")  # ledger id, LAC
_OVERHEAD_BYTES = ENTRY_OVERHEAD_BYTES + 4


@asynccontextmanager
async def open_storage(
    disk: Disk, config: StorageConfig, *, wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
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
                for store in storage._stores:
                    nursery.start_soon(store.scrubber.run)
                nursery.start_soon(storage._journals.sync_regularly, config.sync_interval_s)
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
        self._ledgers: dict[int, LedgerRecord] = {}
        self._journals = Journals(
            disk,
            [path / CURRENT for path in config.journal_directories],
            config.journal,
            on_answered=self._answered,
        )
        directories = [path / CURRENT for path in config.ledger_directories]
        index_directories = [path / CURRENT for path in config.index_directories] or directories
        self._stores = [
            DirectoryStore(
                disk,
                number,
                directory,
                index_directory,
                config,
                on_flushed=lambda directory, epoch: self._epochs.flushed_in(directory, epoch),
                on_failed=self._fail,
            )
            for number, (directory, index_directory) in enumerate(
                zip(directories, index_directories, strict=True)
            )
        ]
        self._directory_set = DirectorySet(disk, directories, accepts_losses=config.accepts_losses)
        self._last_marks = LastMarks(disk, directories, len(self._journals))
        self._epochs = Epochs(
            self._stores,
            self._journals.files,
            self._last_marks,
            on_failed=self._fail,
            on_room=self._wake_for_room,
        )
        self._seal_at_bytes = config.write_cache_bytes_max // 2
        self._failure: BaseException | None = None
        self._failed = trio.Event()
        self._room = trio.Event()
        self._is_room_wanted = False
        self._is_dirty = trio.Event()
        self._unlocks: list[Callable[[], None]] = []
        self._is_serving = False

    def __repr__(self) -> str:
        state = "failed" if self._failure else "open"
        places = ", ".join(str(store.directory) for store in self._stores)
        return f"<Storage {places} {state}, {len(self._ledgers)} ledgers>"

    # --- writing ---

    def ledger(self, ledger_id: int) -> LedgerRecord | None:
        """What is known of a ledger; None: nothing."""
        return self._ledgers.get(ledger_id)

    def ledger_ids(self) -> list[int]:
        """All ledgers known here, ascending."""
        return sorted(self._ledgers)

    @property
    def progress(self) -> object:
        """Differs from what it was if anything was written since."""
        return self._journals.marks

    def create_ledger(self, ledger_id: int, master_key: bytes) -> LedgerRecord:
        """Make a ledger known and stage its key record.

        Also binds the key of a ledger whose record has ``UNKNOWN_KEY``: one whose key record was lost.
        """
        assert ledger_id >= 0
        record = self._ledgers.get(ledger_id)
        if record is None:
            record = self._make(ledger_id, master_key)
        else:
            assert record.master_key == UNKNOWN_KEY, f"ledger {ledger_id} has a key already"
            record.master_key = master_key
        self._stores[record.directory].dirty[ledger_id] = record
        record.staged.append(key_record(ledger_id, master_key))
        return record

    def _make(self, ledger_id: int, master_key: bytes) -> LedgerRecord:
        record = LedgerRecord(ledger_id, master_key)
        record.first_epoch = self._epochs.epoch + 1
        store = self._store_for_new(ledger_id)
        record.directory = store.number
        store.ledgers[ledger_id] = record
        self._know(record)
        return record

    def _know(self, record: LedgerRecord) -> None:
        record.staged = self._journals.staged_for(record.ledger_id)
        self._ledgers[record.ledger_id] = record

    def _store_for_new(self, ledger_id: int) -> DirectoryStore:
        for store in self._stores:
            if ledger_id in store.deleting:
                return store  # a ledger is never in two directories, not even while its old self goes
        return self._stores[ledger_id % len(self._stores)]

    def stage_entry(self, ledger: LedgerRecord, entry_id: int, lac: int, body: bytes) -> None:
        """Put an entry into the write cache and the staged run. Readable at once, durable later."""
        entries = ledger.active
        if entries is None:
            entries = self._stores[ledger.directory].cache.begin(ledger)
        entries[entry_id] = body
        if entry_id > ledger.last_entry_id:
            ledger.last_entry_id = entry_id
        if lac > ledger.lac:
            ledger.lac = lac
        ledger.staged.append(body)

    def stage_fence(self, ledger: LedgerRecord) -> None:
        """Fence a ledger: from now on in memory, for good once the staged run is durable."""
        ledger.fenced = True
        self._stores[ledger.directory].dirty[ledger.ledger_id] = ledger
        ledger.staged.append(fence_record(ledger.ledger_id))

    def stage_explicit_lac(self, ledger: LedgerRecord, body: bytes) -> None:
        """Keep a LAC packet, of at least 16 bytes, in place of the last one."""
        _, lac = _LAC_PACKET_IDS.unpack_from(body)
        ledger.explicit_lac = body
        ledger.lac = max(ledger.lac, lac)
        self._stores[ledger.directory].dirty[ledger.ledger_id] = ledger
        ledger.staged.append(explicit_lac_record(ledger.ledger_id, body))

    def await_ledger(self, ledger_id: int) -> None:
        """Let the next run be answered only after all earlier ones that held records of this ledger."""
        self._journals.await_ledger(ledger_id)

    def enter_limbo(self, ledger_id: int, master_key: bytes, *, fenced: bool) -> None:
        """Entries of this ledger may be missing here; if ``fenced``, its fence too. Flush to make it last.

        Before anybody is served. A ledger that is known keeps its key, unless it is ``UNKNOWN_KEY``.
        """
        record = self._ledgers.get(ledger_id) or self._make(ledger_id, UNKNOWN_KEY)
        record.master_key = record.master_key or master_key
        record.limbo = True
        record.fenced |= fenced
        self._stores[record.directory].dirty[ledger_id] = record

    def leave_limbo(self, ledger: LedgerRecord) -> None:
        """All this bookie should have of the ledger is durable here. Lasts from the next ``flush``."""
        ledger.limbo = False
        if self._ledgers.get(ledger.ledger_id) is ledger:  # not deleted meanwhile
            self._stores[ledger.directory].dirty[ledger.ledger_id] = ledger

    def submit(self, on_durable: OnDurable, *, sync: bool = True) -> None:
        """Hand the staged run to the journals; without one, wait for all that was submitted before.

        ``on_durable`` is called on the loop, once: with None when the run is synced, and everything before
        it of its ledgers and of those awaited (``sync=False``: written), or with the error after which
        nothing is acknowledged. It must not raise. Runs of the same ledgers are answered in order.
        """
        if self._failure is not None:
            self._journals.drop_staged()
            trio.lowlevel.current_trio_token().run_sync_soon(on_durable, self._failure)
            return
        count, body_bytes = self._journals.submit(on_durable, sync=sync)
        epochs = self._epochs
        epochs.active_bytes += body_bytes + _OVERHEAD_BYTES * count
        if epochs.active_bytes >= self._seal_at_bytes:
            epochs.seal(self._journals.marks)
        elif not self._is_dirty.is_set():
            self._is_dirty.set()

    async def submit_durably(self) -> None:
        """Hand over the staged run; return when it is synced. A cancelled call has handed it over.

        Raises ``StorageFailedError``: it may be lost.
        """
        answered = trio.Event()
        self.submit(lambda _: answered.set())
        await answered.wait()
        self._check_alive()

    async def wait_room(self) -> None:
        """Return when the write cache and the journal's queue have room; at once, if they have.

        Raises ``StorageFailedError`` once nothing can be written any more.
        """
        while not self._has_room():
            self._is_room_wanted = True
            await self._room.wait()
        self._check_alive()

    def _has_room(self) -> bool:
        return self._failure is not None or (
            self._epochs.active_bytes + self._epochs.sealed_bytes < self._config.write_cache_bytes_max
            and self._journals.queued_bytes < self._config.journal_queue_bytes_max
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
        return None if record is None else self._stores[record.directory].reads.read_cached(record, entry_id)

    async def read(self, ledger_id: int, entry_id: int) -> bytes:
        """The entry's body.

        Raises:
            NoLedgerError: The ledger is unknown.
            NoEntryError: The entry was never stored here.
            EntryUnreadableError: It was, and it cannot be read.
        """
        return await self._store_of(ledger_id).reads.read(ledger_id, entry_id)

    async def read_run(self, ledger_id: int, first: int, count_max: int, size_bytes_max: int) -> list[bytes]:
        """Bodies of consecutive entries from ``first``: at least one, until one is missing or a limit met.

        ``size_bytes_max`` counts each body and 4 bytes; the first is returned whatever its size.
        Raises as ``read`` does, for the first entry.
        """
        return await self._store_of(ledger_id).reads.read_run(ledger_id, first, count_max, size_bytes_max)

    async def entry_ids(self, ledger_id: int) -> list[int]:
        """Ids of all entries of a ledger stored here, ascending.

        ``NoLedgerError``; ``EntryUnreadableError`` if the index fails.
        """
        return await self._store_of(ledger_id).reads.entry_ids(ledger_id)

    def _store_of(self, ledger_id: int) -> DirectoryStore:
        record = self._ledgers.get(ledger_id)
        if record is None:
            raise NoLedgerError(ledger_id)
        return self._stores[record.directory]

    # --- the rest of a ledger's life, and of the bookie's ---

    async def delete_ledger(self, ledger_id: int) -> None:
        """Forget a ledger and its entries, durably on return; no error if it is unknown.

        Its bytes in entry logs go later, with ``remove_dead_logs``. A cancelled call deletes all the same.
        """
        self._check_alive()
        record = self._ledgers.pop(ledger_id, None)
        if record is None:
            return
        freed_bytes, deleted = self._stores[record.directory].forget_ledger(record)
        self._epochs.active_bytes = max(0, self._epochs.active_bytes - freed_bytes)
        await deleted.wait()
        self._check_alive()

    async def remove_dead_logs(self) -> list[int]:
        """Delete complete entry logs in which no known ledger has entries; their ids, which are counted for
        each ledger directory."""
        removed: list[int] = []
        for collector in self.collectors:
            self._check_alive()
            removed += await collector.remove_dead()
        return removed

    @property
    def collectors(self) -> Sequence[LogCollector]:
        """What garbage collection sees of each ledger directory."""
        return [store.collector for store in self._stores]

    async def flush(self) -> None:
        """Checkpoint: return when all that was durable in the journals is in ledger storage, and marked.

        Raises ``StorageFailedError``. A cancelled call leaves the checkpoint to go on by itself.
        """
        self._check_alive()
        if self._journals.has_unsynced:
            await self._journals.sync()
            self._check_alive()
        marks = self._journals.marks
        if marks != self._epochs.marks or not all(store.is_clean for store in self._stores):
            self._epochs.seal(marks)
        await self._epochs.wait_marked()

    async def wait_failed(self) -> BaseException:
        """Return the error after which nothing is acknowledged; the bookie must stop then."""
        await self._failed.wait()
        assert self._failure is not None
        return self._failure

    def disk_usage(self) -> DiskUsage:
        """Of the file systems that hold the entry logs, together, each counted once."""
        usages = [self._disk.usage(store.directory) for store in self._stores]
        several = list({usage.device or -at: usage for at, usage in enumerate(usages)}.values())
        return DiskUsage(sum(u.total_bytes for u in several), sum(u.free_bytes for u in several))

    # --- what must happen by itself; on the loop ---

    async def _flush_regularly(self) -> None:
        with contextlib.suppress(StorageFailedError):  # wait_failed tells whoever must know
            while True:
                await self._is_dirty.wait()
                await trio.sleep(self._config.flush_interval_s)
                self._is_dirty = trio.Event()
                await self.flush()

    def _answered(self, error: StorageFailedError | None) -> None:
        if error is not None:
            self._fail(error, "the journal")
        self._wake_for_room()

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise StorageFailedError(f"the storage has failed: {self._failure}") from self._failure

    def _fail(self, error: BaseException, doing: str) -> None:
        if self._failure is None:
            log.error("%s failed: %s", doing, error)
            if not isinstance(error, StorageFailedError):
                failure = StorageFailedError(f"{doing} failed: {error}")
                failure.__cause__ = error
                error = failure
            self._failure = error
            self._failed.set()
        self._epochs.fail(self._failure)
        self._room.set()

    # --- start and stop; on the loop ---

    async def _start(self, wall_ms: Callable[[], int]) -> None:
        for store in self._stores:
            store.start_thread()
        found, journal_ids = await self._stores[0].thread.call(self._look)
        marks = greatest_marks(found)
        self._epochs.start_from(marks)
        for store, stored in zip(self._stores, found, strict=True):
            await store.open(max(stored))
            for ledger_id, record in store.ledgers.items():
                if (known := self._ledgers.get(ledger_id)) is not None:
                    raise StartError(
                        f"ledger {ledger_id} is in {self._stores[known.directory].directory} and in"
                        f" {store.directory}: one of them is an old copy, or another bookie's. Configure the"
                        " directories this bookie was last run with"
                    )
                self._know(record)
        await self._stores[0].thread.call(self._directory_set.stamp)
        ends = await self._journals.replay(
            journal_ids,
            marks,
            self._replay,
            wall_ms=wall_ms,
            skip_damaged=self._config.skip_damaged_journal,
            accepts_losses=self._config.accepts_losses,
        )
        # All that was replayed becomes durable before a mark moves: until then a crash replays it again. With
        # the marks files go, of which a full disk needs one.
        self._epochs.seal(ends)
        await self._epochs.wait_marked()
        await self._journals.start()
        self._epochs.seal(self._journals.marks)
        await self._epochs.wait_marked()
        if self._config.scrub.on_start:
            await scrub_before_serving([store.scrubber for store in self._stores])
        self._is_serving = True

    def _look(self) -> tuple[list[Marks], list[list[int]]]:
        """Take the locks; the marks that stand in each ledger directory, the files of each journal."""
        config = self._config
        for path in dict.fromkeys(
            (*config.journal_directories, *config.ledger_directories, *config.index_directories)
        ):
            self._disk.make_directory(path / CURRENT)
            self._unlocks.append(self._disk.lock(path / CURRENT / LOCK))
        self._directory_set.check()
        return self._last_marks.read(), [files.scan() for files in self._journals.files]

    async def _replay(self, records: Sequence[bytes]) -> None:
        apply_records(self, records)
        self._journals.drop_staged()  # it is in the journal already
        self._epochs.active_bytes += sum(map(len, records)) + _OVERHEAD_BYTES * len(records)
        if self._epochs.active_bytes >= self._seal_at_bytes:
            self._epochs.seal(self._epochs.marks)
            await self._epochs.wait_marked()

    async def _stop(self) -> None:
        """Checkpoint if that can still be done, close everything, give the locks back."""
        try:
            if self._is_serving and self._failure is None:
                self.submit(lambda _: None)  # what was staged and not submitted is nobody's acknowledgement
                await self._journals.sync()
                with contextlib.suppress(StorageFailedError):  # logged; the journal has it all
                    await self.flush()
            await self._journals.aclose()
            for store in self._stores:
                await store.aclose(has_failed=self._failure is not None)
        finally:
            while self._unlocks:
                self._unlocks.pop()()
