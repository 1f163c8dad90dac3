"""The store of one bookie: stage records, submit them, read entries, checkpoint.

Inside: the order of all this over several journals and ledger directories; which ledger lives where.
Not inside: starting and stopping (``opening``); formats and files (``journal``, ``entrylog``, ``index``);
one ledger directory (``directory_store``), the journals (``journals``); the protocol (``bookie.requests``).
Always:
- an entry is in the write cache before it is in the journal, and a key or fence is journaled before any
  entry that depends on it;
- ``on_durable(None)`` means synced in the journal; from then on the entry survives any crash;
- a journal is forgotten up to a mark only when entry bytes, index and ledger data below it are synced, in
  that order, in every ledger directory (``checkpointer``);
- a ledger that has data in a directory stays there; only a new one goes where its id says;
- after the first failed write or sync nothing is acknowledged any more, ``wait_failed`` returns, and the
  bookie stops. The next start replays the journal.

Everything public is called on the loop. One thread writes each journal. One thread does everything else that
writes in a ledger directory. A few reader threads serve the reads that the page cache cannot.

Source: BookieImpl.java, DbLedgerStorage.java; docs/storage-format.md 8, 12.1.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

import trio

from bookie.disk.disk import Disk, DiskUsage
from bookie.errors import NoLedgerError, StorageFailedError
from bookie.gc.log_collector import LogCollector
from bookie.journal import replay
from bookie.journal.checkpoint import Marks
from bookie.journal.format import explicit_lac_record, fence_record, key_record
from bookie.journal.group_commit import OnDurable, WriteBatch
from bookie.journal.journals import Journals
from bookie.journal.last_mark import LastMarks
from bookie.journal.replay import apply_records
from bookie.ledger_record import UNKNOWN_KEY, LedgerRecord, SharedKeys, lac_of_packet
from bookie.storage.checkpointer import Checkpointer
from bookie.storage.config import StorageConfig
from bookie.storage.directory_store import DirectoryStore
from bookie.storage.entry_places import EntryPlace, IdentifyLog
from bookie.storage.failure import Failure
from bookie.storage.write_cache import ENTRY_OVERHEAD_BYTES
from ledger.packed_entries import PackedEntries

GROUP_BYTES = 3 << 20  # of the journal, at most; the smallest piece that can be flushed
_OVERHEAD_BYTES = ENTRY_OVERHEAD_BYTES + 4


class Storage:
    """See the module. Opened by ``opening.open_storage``."""

    def __init__(
        self,
        disk: Disk,
        config: StorageConfig,
        stores: Sequence[DirectoryStore],
        journals: Journals,
        last_marks: LastMarks,
        marks: Marks,
        failure: Failure,
    ) -> None:
        """``marks``: the marks found on disk, after which the journals are still to be replayed."""
        self.stores = stores
        self.identify_log: IdentifyLog | None = None  # set if the clients can open the entry logs
        self.journals = journals
        self.failure = failure
        self.checkpointer = Checkpointer(
            stores, journals.files, last_marks, marks, failure, on_flushed=self._wake_writers
        )
        self._journals_count = len(journals)
        self._disk = disk
        self._config = config
        # Of one directory it is the same dictionary: two would cost 50 bytes more for each ledger.
        self._ledgers: dict[int, LedgerRecord] = stores[0].ledgers if len(stores) == 1 else {}
        self._keys = SharedKeys()
        self.limbo_count = 0  # ledgers in limbo
        self.read_bytes = 0  # of entries that were read, from memory or from disk
        self.capacity_waits = 0
        for store in stores:
            for record in store.ledgers.values():
                record.master_key = self._keys.share(record.master_key)
                self._add_record(record)
                self.limbo_count += record.limbo
        self._seal_at_bytes = config.write_cache_bytes_max // 2
        self._has_space = trio.Event()
        self._is_waiting_for_space = False
        self._is_dirty = trio.Event()
        failure.call_back(self._wake_writers)

    def __repr__(self) -> str:
        state = "failed" if self.failure.error else "open"
        places = ", ".join(str(store.directory) for store in self.stores)
        return f"<Storage {places} {state}, {len(self._ledgers)} ledgers>"

    @property
    def full(self) -> OSError | None:
        """The lack of space that this start has met: nothing is flushed until the storage is opened again."""
        return self.failure.full

    @property
    def takes_records(self) -> bool:
        """False if the journals have no space for a record, not even in reserve."""
        return self.failure.full is None or self.journals.can_write

    @property
    def backlog_bytes(self) -> int:
        """Bytes of entries that are not flushed, with their overhead in memory."""
        return self.checkpointer.active_bytes + self.checkpointer.sealed_bytes

    @property
    def start_bytes(self) -> int:
        """Bytes that another start on this full disk needs: for the backlog, or for a piece of it."""
        backlog_bytes = self.backlog_bytes
        return min(backlog_bytes, GROUP_BYTES) if self.checkpointer.gives_back else backlog_bytes

    # --- writing ---

    def new_batch(self) -> WriteBatch:
        """An empty batch to be filled by the methods that stage, then submitted.

        Both in one step of the loop: a later record of a ledger must not be submitted before an earlier one.
        """
        return WriteBatch(self._journals_count)

    def ledger(self, ledger_id: int) -> LedgerRecord | None:
        """The ledger's record; None if this bookie does not know the ledger."""
        return self._ledgers.get(ledger_id)

    @property
    def ledgers_count(self) -> int:
        return len(self._ledgers)

    def ledger_ids(self) -> list[int]:
        """The ids of all known ledgers, ascending."""
        return sorted(self._ledgers)

    @property
    def progress(self) -> object:
        """A value that changes when something is written."""
        return self.journals.marks

    def create_ledger(self, batch: WriteBatch, ledger_id: int, master_key: bytes) -> LedgerRecord:
        """Create a ledger and stage its key record.

        Also binds the key of a ledger that has ``UNKNOWN_KEY`` because its key record was lost.
        """
        # ``ClientSession`` and ``replay`` refuse both before.
        if ledger_id < 0:
            raise ValueError(f"ledger id {ledger_id}")
        record = self._ledgers.get(ledger_id)
        if record is not None and record.master_key != UNKNOWN_KEY:
            raise ValueError(f"ledger {ledger_id} has a key already")
        journaled = key_record(ledger_id, master_key)
        try:
            if record is None:
                record = self._new_record(ledger_id, master_key)
            else:
                record.master_key = master_key
            self.stores[record.directory].dirty[ledger_id] = record
            batch.records[record.journal].append(journaled)
        except Exception as exc:
            raise self.failure.half_made(exc, f"creating ledger {ledger_id}") from exc
        return record

    def _new_record(self, ledger_id: int, master_key: bytes) -> LedgerRecord:
        record = LedgerRecord(ledger_id, self._keys.share(master_key))
        record.first_checkpoint_id = self.checkpointer.begun_id + 1
        store = self._store_for_new(ledger_id)
        record.directory = store.number
        store.ledgers[ledger_id] = record
        self._add_record(record)
        return record

    def _add_record(self, record: LedgerRecord) -> None:
        record.journal = self.journals.number_of(record.ledger_id)
        self._ledgers[record.ledger_id] = record

    def _store_for_new(self, ledger_id: int) -> DirectoryStore:
        for store in self.stores:
            if ledger_id in store.deleting:
                return store  # never in two directories, not even while the deletion is under way
        return self.stores[ledger_id % len(self.stores)]

    def stage_entry(
        self, batch: WriteBatch, ledger: LedgerRecord, entry_id: int, lac: int, body: bytes
    ) -> None:
        """Put an entry into the write cache and the batch. Readable at once, durable later."""
        # An entry in the cache and not in the batch would be acknowledged when it is sent again.
        try:
            entries = ledger.active
            if entries is None:
                entries = self.stores[ledger.directory].cache.begin(ledger)
            entries[entry_id] = body
            if entry_id > ledger.last_entry_id:
                ledger.last_entry_id = entry_id
            if ledger.lac < lac < entry_id:  # ``credible_lac``, at the price of a comparison
                ledger.lac = lac
            batch.records[ledger.journal].append(body)
        except Exception as exc:
            raise self.failure.half_made(exc, f"staging entry {ledger.ledger_id}:{entry_id}") from exc

    def stage_fence(self, batch: WriteBatch, ledger: LedgerRecord) -> None:
        """Fence a ledger: in memory from now on, for good once the batch is durable."""
        journaled = fence_record(ledger.ledger_id)
        try:
            ledger.fenced = True
            self.stores[ledger.directory].dirty[ledger.ledger_id] = ledger
            batch.records[ledger.journal].append(journaled)
        except Exception as exc:
            raise self.failure.half_made(exc, f"fencing ledger {ledger.ledger_id}") from exc

    def stage_explicit_lac(self, batch: WriteBatch, ledger: LedgerRecord, body: bytes) -> None:
        """Store a LAC packet, of at least 16 bytes, in place of the last one."""
        lac = lac_of_packet(body)
        journaled = explicit_lac_record(ledger.ledger_id, body)
        try:
            ledger.explicit_lac = body
            ledger.lac = max(ledger.lac, lac)
            self.stores[ledger.directory].dirty[ledger.ledger_id] = ledger
            batch.records[ledger.journal].append(journaled)
        except Exception as exc:
            raise self.failure.half_made(exc, f"staging the LAC of ledger {ledger.ledger_id}") from exc

    def hint_lac(self, ledger: LedgerRecord, body: bytes) -> bool:
        """Keep a LAC packet in memory if it raises the LAC; False if not. A restart may forget it."""
        lac = lac_of_packet(body)
        if lac <= ledger.lac:
            return False
        ledger.explicit_lac, ledger.lac = body, lac
        return True

    def enter_limbo(self, ledger_id: int, master_key: bytes, *, fenced: bool) -> None:
        """Put a ledger in limbo: acknowledged entries may be missing; with ``fenced``, its fence too.

        Called before the bookie serves. Durable after the next ``flush``. A known ledger keeps its key,
        unless that is ``UNKNOWN_KEY``.
        """
        record = self._ledgers.get(ledger_id) or self._new_record(ledger_id, UNKNOWN_KEY)
        record.master_key = record.master_key or master_key
        self.limbo_count += not record.limbo
        record.limbo = True
        record.fenced |= fenced
        self.stores[record.directory].dirty[ledger_id] = record

    def leave_limbo(self, ledger: LedgerRecord) -> None:
        """End a ledger's limbo, since all its entries are durable here. Durable after the next ``flush``."""
        was_in_limbo, ledger.limbo = ledger.limbo, False
        if self._ledgers.get(ledger.ledger_id) is ledger:  # not deleted meanwhile
            self.limbo_count -= was_in_limbo
            self.stores[ledger.directory].dirty[ledger.ledger_id] = ledger

    def submit(self, batch: WriteBatch, on_durable: OnDurable, *, sync: bool = True) -> None:
        """Hand a batch to the journals; an empty one waits for all that was submitted before.

        ``on_durable`` is called on the loop, once. It gets None when the batch is synced, together with all
        earlier records of its ledgers and of awaited ledgers (``sync=False``: when they are written). It gets
        the error if the storage fails. It must not raise. Batches of the same ledgers are acknowledged in
        order.
        """
        if self.failure.error is not None:
            trio.lowlevel.current_trio_token().run_sync_soon(on_durable, self.failure.error)
            return
        try:
            count, body_bytes = self.journals.submit(batch, on_durable, sync=sync)
            checkpointer = self.checkpointer
            checkpointer.active_bytes += body_bytes + _OVERHEAD_BYTES * count
            if checkpointer.active_bytes >= self._seal_at_bytes and self.failure.full is None:
                checkpointer.begin(self.journals.marks)
            elif not self._is_dirty.is_set():
                self._is_dirty.set()
        except Exception as exc:
            raise self.failure.half_made(exc, "handing a batch to the journals") from exc

    async def submit_durably(self, batch: WriteBatch) -> None:
        """Submit a batch; return when it is synced. A cancelled call has submitted it.

        Raises ``StorageFailedError`` if the storage fails; the batch may be lost then.
        """
        acknowledged = trio.Event()
        self.submit(batch, lambda _: acknowledged.set())
        await acknowledged.wait()
        self.failure.check()

    @property
    def must_wait(self) -> bool:
        """True if ``wait_capacity`` would wait, or raise."""
        return self.failure.error is not None or not self._has_capacity()

    async def wait_capacity(self) -> None:
        """Return when the write cache and the journals' queues are below their limits.

        Without a checkpoint if they are already. Raises ``StorageFailedError`` if the storage has failed.
        """
        if not self._has_capacity():
            self.capacity_waits += 1
            while not self._has_capacity():
                self._is_waiting_for_space = True
                await self._has_space.wait()
        if self.failure.error is not None:
            self.failure.check()

    def _has_capacity(self) -> bool:
        checkpointer = self.checkpointer
        # On a full disk nothing is flushed, and only what the journal has in reserve is added.
        return bool(self.failure.error or self.failure.full) or (
            checkpointer.active_bytes + checkpointer.sealed_bytes < self._config.write_cache_bytes_max
            and self.journals.queued_bytes < self._config.journal_queue_bytes_max
        )

    def _wake_writers(self) -> None:
        if self._is_waiting_for_space and self._has_capacity():
            self._is_waiting_for_space = False
            self._has_space.set()
            self._has_space = trio.Event()

    def on_acknowledged(self, error: StorageFailedError | None) -> None:
        """The journals have acknowledged a group, or have failed. It must not raise."""
        if error is not None:
            self.failure.report(error, "the journal")
        if self._is_waiting_for_space:
            self._wake_writers()

    # --- reading ---

    def read_cached(self, ledger_id: int, entry_id: int) -> bytes | None:
        """The entry's body if it is in memory."""
        record = self._ledgers.get(ledger_id)
        if record is None:
            return None
        body = self.stores[record.directory].reads.read_cached(record, entry_id)
        if body is not None:
            self.read_bytes += len(body)
        return body

    async def read(self, ledger_id: int, entry_id: int) -> bytes:
        """The entry's body.

        Raises:
            NoLedgerError: The ledger is unknown.
            NoEntryError: The entry was never stored here.
            EntryUnreadableError: The entry was stored here and cannot be read.
        """
        body = await self._store_of(ledger_id).reads.read(ledger_id, entry_id)
        self.read_bytes += len(body)
        return body

    def find_entry(self, ledger: LedgerRecord, entry_id: int) -> bytes | bool:
        """The entry's body if it is in the write cache; True if it is on disk only; False if it is not here.

        Waits for the disk only if the index does.
        """
        return self.stores[ledger.directory].reads.find(ledger, entry_id)

    async def read_stored(self, ledger: LedgerRecord, entry_id: int) -> bytes | None:
        """The body on disk that the index names on return, damaged or not.

        Not from the write cache. None if the index names none, or if its bytes are lost. No checkpoint
        follows the last look at the index.

        Raises ``EntryUnreadableError`` if a later read may succeed.
        """
        return await self.stores[ledger.directory].reads.read_stored(ledger, entry_id)

    async def read_batch(
        self, ledger_id: int, first: int, count_max: int, size_bytes_max: int
    ) -> Sequence[bytes]:
        """Bodies of consecutive entries from ``first``, until an entry is missing or a limit is reached.

        ``size_bytes_max`` counts each body and 4 bytes. The first body is returned even if it is larger. More
        than half of the limit is enough if it takes one read. ``PackedEntries`` if no copy was needed.
        Raises as ``read`` does, for the first entry.
        """
        reads = self._store_of(ledger_id).reads
        bodies = await reads.read_batch(ledger_id, first, count_max, size_bytes_max)
        packed = bodies.packed if isinstance(bodies, PackedEntries) else None
        self.read_bytes += sum(map(len, bodies)) if packed is None else len(packed)
        return bodies

    async def place(
        self, ledger: LedgerRecord, first: int, count_max: int, size_bytes_max: int
    ) -> EntryPlace | None:
        """Where consecutive entries from ``first`` lie, for a reader of the entry log itself.

        None if the first one is in memory, they are few, or an entry here is known to be damaged. Compaction
        may move them at any time. Not all ids and lengths are checked. Raises ``EntryUnreadableError`` if the
        index fails, or an entry is not where it says.
        """
        return await self.stores[ledger.directory].reads.place(ledger, first, count_max, size_bytes_max)

    async def entry_ids(self, ledger_id: int) -> list[int]:
        """Ids of all entries of a ledger stored here, ascending.

        Raises ``NoLedgerError``, or ``EntryUnreadableError`` if the index fails.
        """
        return await self._store_of(ledger_id).reads.entry_ids(ledger_id)

    async def availability(self, ledger_id: int) -> bytes:
        """The ids of all entries of a ledger stored here, as the protocol encodes them.

        Raises ``NoLedgerError``, or ``EntryUnreadableError`` if the index fails.
        """
        return await self._store_of(ledger_id).reads.availability(ledger_id)

    def _store_of(self, ledger_id: int) -> DirectoryStore:
        record = self._ledgers.get(ledger_id)
        if record is None:
            raise NoLedgerError(ledger_id)
        return self.stores[record.directory]

    # --- deletion, checkpoints, failure ---

    async def delete_ledger(self, ledger_id: int) -> None:
        """Delete a ledger and its entries. Durable on return; no error if the ledger is unknown.

        ``remove_dead_logs`` frees its bytes in the entry logs later. A cancelled call deletes the ledger as
        well. Raises ``StorageFailedError`` if the storage fails.
        """
        await self.delete_ledgers([ledger_id])

    async def delete_ledgers(self, ledger_ids: Iterable[int]) -> None:
        """As ``delete_ledger`` for each, with one sync of each directory. All are forgotten at once."""
        self.failure.check()
        records: dict[int, list[LedgerRecord]] = {}
        for ledger_id in dict.fromkeys(ledger_ids):
            if (record := self._ledgers.get(ledger_id)) is not None:
                records.setdefault(record.directory, []).append(record)
        deletions: list[trio.Event] = []
        try:
            for directory, gone in records.items():
                freed_bytes, deleted = self.stores[directory].forget_ledgers(gone)
                for record in gone:
                    self._ledgers.pop(record.ledger_id, None)  # it may be the store's dictionary
                    self.limbo_count -= record.limbo
                self.checkpointer.dropped(freed_bytes)
                deletions.append(deleted)
        except Exception as exc:
            raise self.failure.half_made(exc, "deleting ledgers") from exc
        for deleted in deletions:
            await deleted.wait()
        self.failure.check()

    async def remove_dead_logs(self) -> list[int]:
        """Delete complete entry logs in which no known ledger has entries.

        Returns:
            The ids of the deleted logs. Each ledger directory numbers its own logs.
        """
        removed: list[int] = []
        for collector in self.collectors:
            self.failure.check()
            removed += await collector.remove_dead()
        return removed

    @property
    def collectors(self) -> Sequence[LogCollector]:
        """The garbage collector of each ledger directory."""
        return [store.collector for store in self.stores]

    async def flush(self) -> None:
        """Checkpoint: return when everything in the journals is in the ledger directories, and marked.

        Raises ``StorageFailedError`` if the storage fails. A cancelled call does not stop the checkpoint.
        """
        self.failure.check()
        if self.failure.full is not None:
            raise StorageFailedError("the disk is full: nothing can be flushed") from self.failure.full
        if self.journals.has_unsynced:
            await self.journals.sync()
            self.failure.check()
        marks = self.journals.marks
        if marks != self.checkpointer.marks or not all(store.is_clean for store in self.stores):
            try:
                self.checkpointer.begin(marks)
            except Exception as exc:
                raise self.failure.half_made(exc, "beginning a checkpoint") from exc
        await self.checkpointer.wait_marked()

    async def flush_regularly(self) -> None:
        """Checkpoint some time after each change, until cancelled or until the storage fails."""
        with contextlib.suppress(StorageFailedError):  # ``wait_failed`` reports it
            while True:
                await self._is_dirty.wait()
                await trio.sleep(self._config.flush_interval_s)
                self._is_dirty = trio.Event()
                await self.flush()

    async def wait_failed(self) -> StorageFailedError:
        """Wait for the error after which nothing is acknowledged. The bookie must stop then."""
        return await self.failure.wait()

    def disk_usages(self) -> Sequence[DiskUsage]:
        """The file system of each ledger directory."""
        return [self._disk.usage(store.directory) for store in self.stores]

    def journal_usages(self) -> Sequence[DiskUsage]:
        """The file system of each journal directory."""
        return [self._disk.usage(files.directory) for files in self.journals.files]

    def disk_usage(self) -> DiskUsage:
        """The sums of the file systems that hold the entry logs, each counted once."""
        usages = self.disk_usages()
        several = list({usage.device or -at: usage for at, usage in enumerate(usages)}.values())
        return DiskUsage(sum(u.total_bytes for u in several), sum(u.free_bytes for u in several))

    # --- replay ---

    async def replay(self, records: Sequence[bytes], marks: Marks) -> None:
        """Apply records of a journal, and checkpoint when the write cache is full.

        The marks move with it: on a full disk the next start must not write the same entries once more. Where
        that gives space of the journals back, each piece is flushed.

        Args:
            marks: Up to where each journal is applied with these records.
        """
        apply_records(self, self.new_batch(), records)  # dropped: the records are in the journal already
        checkpointer = self.checkpointer
        checkpointer.active_bytes += sum(map(len, records)) + _OVERHEAD_BYTES * len(records)
        seal_at_bytes = replay.PIECE_BYTES if checkpointer.gives_back else self._seal_at_bytes
        if checkpointer.active_bytes >= seal_at_bytes and self.failure.full is None:
            checkpointer.begin(marks)
            await checkpointer.wait_marked()
