"""Writing a log: the API of its one writer.

Inside: checking and taking records, waiting for their outcome.
Not inside: gathering (``batcher``), what is sent when, and what happens when a segment fails
(``writer_machine``), the tasks that do it (``writer_shell``), entry ids (``segment_writer``).
Always: records are written and get their outcome in the order of submission; a record gets one outcome,
durable or failed; no record submitted after a failed one becomes durable at a position before it; nothing is
measured or traced for a single record of a batch.

Source: DistributedLog, BKAsyncLogWriter.java, BKLogSegmentWriter.java. The default transaction id is that of
the write proxy: the wall clock in milliseconds, or the last id if that is greater.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from threading import get_ident

import trio

from dlog.config import WriterConfig
from dlog.errors import (
    BatchTooLongError,
    PositionConflictError,
    RecordOutcome,
    RecordTooLongError,
    TxidOutOfOrderError,
    TxidReusedError,
    WriteError,
    WriterClosedError,
    WriterOverloadedError,
    translated,
)
from dlog.format.arguments import as_dlsn, as_txid
from dlog.format.attributes import attributes_of, encode_attributes, not_shared, not_taken
from dlog.format.record import RECORD_BYTES_MAX, TXID_MAX, Record
from dlog.read.read_only_log import ReadOnlyLog
from dlog.statistics_names import APPEND, APPEND_MANY, FLUSH, FLUSHES
from dlog.write.batcher import Batch, encoded_bytes
from dlog.write.health import WriterHealth, WriterState
from dlog.write.own_thread import check_own_thread, in_own_thread, not_taken_now
from dlog.write.pending import Pending, settled_positions, wait_settled
from dlog.write.record_rooms import RecordRooms
from dlog.write.reopening import Reopener
from dlog.write.repeats import is_repeat_of
from dlog.write.trace_headers import TraceHeaders, marked
from dlog.write.writer_shell import WriterShell
from dlog.write.writer_state import Intake, Phase
from ledger.metadata_store.store import MetadataStore
from ledger.payloads import as_payload
from ledger.pickling import ProcessBound
from ledger.runtime.audit import audited_async
from ledger.runtime.clock import wall_ms
from ledger.runtime.statistics.tracing import Span
from ledger.runtime.tasks.failing_calls import checkpoint_after_error
from ledger.runtime.tasks.forks import RULE, call_in_child
from namespace.dlsn import DLSN

Buffer = bytes | bytearray | memoryview
Headers = Mapping[str, Buffer]

OVERLOAD_FACTOR = 4  # submit() refuses records beyond this many times the limit of wait_capacity()


class LogWriter(ProcessBound):
    """Appends records to a log. Made by ``Namespace.open_writer``; closing it completes the segment in use.

    It is fast when several tasks append: all records that are submitted while an entry is in flight share the
    next entry.
    """

    def __init__(
        self,
        log: str,
        shell: WriterShell,
        config: WriterConfig,
        *,
        begin: Callable[[Sequence[Batch]], Awaitable[WriterShell]],
        lookup: ReadOnlyLog,
        origin: str,
        wall_ms: Callable[[], int] = wall_ms,
        check_admin: Callable[[], Awaitable[object]] = trio.lowlevel.checkpoint,
        check_truncation: Callable[[], Awaitable[object]] = trio.lowlevel.checkpoint,
    ) -> None:
        self.log = log
        self._lookup = lookup
        # Each raises if the program may not seal or truncate the log.
        self._check_admin, self._check_truncation = check_admin, check_truncation
        self._begin = begin  # takes the lock and recovers
        self._reopening, self._closing, self._thread = trio.Lock(), trio.Event(), get_ident()
        self._reopener: Reopener | None = None
        self._config = config
        self._wall_ms = wall_ms
        self._newest: tuple[Batch, int] | None = None  # the record submitted last, with its slot
        self._found_last: DLSN | None = None  # the last record that the log had before, once it was looked up
        self._has_looked = False
        self.opened_count = 0  # how often it was opened; more than 1 after it was reopened
        self._use(shell)
        self._is_observed = lookup.recorder.observes  # calls are measured or traced
        # The first call of the provider: a writer without a usable key is not opened.
        self._rooms = RecordRooms(log, origin, config)
        self._sealer = self._rooms.sealer
        self.payload_bytes_max = self._rooms.payload_bytes_max  # a longer payload is refused
        self._submit_bytes_max = OVERLOAD_FACTOR * config.bytes_in_flight_max
        self._traces = TraceHeaders(lookup.recorder, self.payload_bytes_max, takes_any=self.keys_and_headers)
        call_in_child(self, LogWriter._refuse_in_child)

    def _use(self, shell: WriterShell) -> None:
        self._shell, self._machine, self._batcher = shell, shell.machine, shell.machine.batcher
        self._last_txid = shell.last_txid_before
        self._newest, self._found_last, self._has_looked = None, None, False
        self.opened_count += 1
        if self._reopener is not None:
            self._reopener.changed()

    def _refuse_in_child(self) -> None:
        """Refuse every later record: called in a forked child."""
        self._thread = get_ident()  # the only one there
        self._machine.refuse(WriterClosedError(self.log, RULE))

    def __repr__(self) -> str:
        return f"<LogWriter of {self.log!r}: {self._shell.describe()}, last txid {self._last_txid}>"

    @property
    def last_txid(self) -> int:
        """The transaction id of the record submitted last, or found last in the log; -1 if there is none."""
        return self._last_txid

    @property
    def bytes_in_flight(self) -> int:
        """Bytes of submitted records that are neither durable nor failed yet.

        A record counts 276 bytes besides its own: its header, and the objects that hold it.
        """
        return self._machine.waiting_bytes

    @property
    def bytes_in_flight_max(self) -> int:
        """``wait_capacity`` waits while at least this many bytes are in flight."""
        return self._config.bytes_in_flight_max

    @property
    def keys_and_headers(self) -> bool:
        """A record may have a key or headers; see ``WriterConfig.keys_and_headers``."""
        return bool(self._config.keys_and_headers)

    @property
    def oldest_pending_s(self) -> float:
        """The age of the oldest record that is neither durable nor failed, in seconds; 0.0 without one.

        It grows while bookies do not acknowledge, also while ``wait_capacity`` sees no reason to wait.
        """
        return self._machine.oldest_pending_s

    @property
    def state(self) -> WriterState:
        """What the writer does with a record that it gets now."""
        machine, is_over = self._machine, self._shell.finished.is_set()
        stopped = machine.stopped
        if self._closing.is_set() or isinstance(stopped, WriterClosedError):
            return WriterState.CLOSED if is_over or stopped is not None else WriterState.CLOSING
        if stopped is not None:
            comes_back = self._reopener is not None and self._reopener.will_reopen(stopped)
            return WriterState.REOPENING if comes_back else WriterState.FAILED
        if machine.intake is Intake.CLOSING:  # by ``seal``
            return WriterState.CLOSED if is_over else WriterState.CLOSING
        if machine.phase in (Phase.RECOVERING, Phase.MOVING):
            return WriterState.RECOVERING
        return WriterState.OPEN

    def health(self) -> WriterHealth:
        """State, reason and ages at this moment."""
        why = None if self.failure is None else self.failure.message
        return WriterHealth(self.log, self.state, self.oldest_pending_s, self.bytes_in_flight, why)

    @property
    def failure(self) -> WriteError | None:
        """Why the writer stopped last, with the outcome of no record; None while it is open.

        It stays while the writer is reopened.
        """
        return self._machine.stopped

    async def append(
        self,
        payload: bytes | bytearray | memoryview,
        *,
        txid: int | None = None,
        key: Buffer | None = None,
        headers: Headers | None = None,
        sequence: int | None = None,
    ) -> DLSN:
        """Write one record; return its position when it and every record before it are durable.

        Durable means synced to the disks of an ack quorum of bookies. If cancelled, the record may or may not
        be written; with ``submit`` a caller can find out later.

        Args:
            payload: At most ``PAYLOAD_BYTES_MAX`` bytes, 109 fewer with encryption; more if
                ``WriterConfig.record_bytes_max`` says so. Empty is allowed.
            txid: At least the id of the record before. None for the wall clock in milliseconds, or the last
                id if that is greater.
            key: Stored beside the payload, for ``Record.key``; an empty one is a key, too.
            headers: At most 64, for ``Record.headers``, in this order. A name has 1 to 255 bytes of UTF-8.
                Key and headers together have at most 32 KiB, and count as bytes of the payload.
            sequence: The number of the record at its producer, for a shared writer whose program may repeat
                an append after a restart: the log gets the record once. None: the next one.

        Raises:
            RecordTooLongError, TxidOutOfOrderError: The record was not written.
            SequenceReusedError: The producer's record with this number has another payload, key or headers.
            ConfigError: The writer takes no keys and headers (``WriterConfig.keys_and_headers``), or a number
                was given and it is not shared.
            ValueError: The key or the headers are beyond their limits.
            LogFencedError: Another writer took over; ``outcome`` says whether this record is written.
            LogWriteError: The writer had to stop; ``outcome`` says whether this record is written.
            WriterClosedError: The record was not written.
        """
        try:
            if sequence is not None:
                raise not_shared(self.log)
            attributes = None if key is None and headers is None else self._attributes(key, headers)
            if self._is_observed:
                return await self._append_observed(payload, txid, attributes)
            if self._machine.is_over_limit:
                payload = as_payload(payload)  # copied now: the caller may reuse its buffer during the wait
                await self.wait_capacity()
            batch, slot = self._take(payload, txid, attributes, waits=True)
        except Exception:
            await checkpoint_after_error()
            raise
        if batch.outcome is RecordOutcome.PENDING:
            settled = trio.Event()
            batch.on_settled(settled.set)
            await settled.wait()
        return batch.dlsn(slot)

    async def _append_observed(self, payload: Buffer, txid: int | None, attributes: bytes | None) -> DLSN:
        with self._appending() as span:
            attributes = self._traces.of_one(len(payload), attributes)
            if self._machine.is_over_limit:
                payload = as_payload(payload)
                await self.wait_capacity()
            return marked(span, await Pending(*self._take(payload, txid, attributes, waits=True)))

    @in_own_thread
    async def append_many(
        self,
        payloads: Iterable[bytes | bytearray | memoryview],
        *,
        txids: Iterable[int] | None = None,
        atomic: bool = False,
        keys: Iterable[Buffer | None] | None = None,
        headers: Iterable[Headers | None] | None = None,
        sequence: int | None = None,
    ) -> list[DLSN]:
        """Write records in order, in as few entries as possible; return their positions when all are durable.

        All records are checked before the first is written. No other record comes between them. If the call
        is cancelled or fails, any number of them, from the first on, may be written; with ``atomic``, all or
        none.

        Args:
            txids: One for each payload, never decreasing. None for one common id, chosen as in ``append``.
            atomic: Write them in one entry, so that the log gets all or none, also after a crash, and every
                reader sees all or none. An entry holds 1,044,467 bytes, 20 of them for each record's header.
            keys, headers: One for each payload; None for a record without. See ``append``.
            sequence: The number of the first record at its producer; the others follow. See ``append``.

        Raises:
            BatchTooLongError: ``atomic``, and the records do not fit in one entry. None was written.
            The errors of ``append``. The outcome is that of the first record that is not durable;
                ``durable`` has the positions of the records before it.
        """
        if sequence is not None:
            raise not_shared(self.log)
        payloads = payloads if isinstance(payloads, list) else list(payloads)
        attributes = self._attributes_of(len(payloads), keys, headers)
        with self._appending_many(len(payloads)):
            if self._machine.is_over_limit:
                payloads = [as_payload(each) for each in payloads]
                await self.wait_capacity()
            # No other task runs from here to the end of _take_many: the checked ids stay in order, and no
            # other record comes between these. The machine limits how much is in flight.
            records, ids = self._rooms.checked(payloads, txids, self._last_txid)
            if not records:
                return []
            attributes = self._traces.of_all(records, attributes, atomic=atomic)
            return await settled_positions(self._take_many(records, ids, attributes, atomic=atomic))

    @in_own_thread
    async def append_after(
        self,
        payload: bytes | bytearray | memoryview,
        last: DLSN | None,
        *,
        txid: int | None = None,
        key: Buffer | None = None,
        headers: Headers | None = None,
    ) -> DLSN:
        """Write one record if ``last`` is the position of the log's last record; see ``append``.

        So a caller that has read the log up to ``last`` writes only if nothing came in between: by a writer
        before this one, or by another task of this writer. It waits until the records submitted before are
        durable. If cancelled, the record may or may not be written.

        Args:
            last: None: the log has no record.

        Raises:
            PositionConflictError: The last record is another one. Nothing was written.
            The errors of ``append``.
        """
        with self._appending() as span:
            payload, attributes = as_payload(payload), self._attributes(key, headers)
            attributes = self._traces.of_one(len(payload), attributes)
            txids = None if txid is None else [txid]
            given: list[bytes | None] | None = None if attributes is None else [attributes]
            ranges = await self._take_after(last, [payload], txids, given, atomic=False)
            return marked(span, (await settled_positions(ranges))[0])

    @in_own_thread
    async def append_many_after(
        self,
        payloads: Iterable[bytes | bytearray | memoryview],
        last: DLSN | None,
        *,
        txids: Iterable[int] | None = None,
        keys: Iterable[Buffer | None] | None = None,
        headers: Iterable[Headers | None] | None = None,
    ) -> list[DLSN]:
        """Write an atomic batch if ``last`` is the position of the log's last record; see ``append_after``.

        Raises:
            PositionConflictError: The last record is another one. Nothing was written.
            The errors of ``append_many`` with ``atomic``.
        """
        records = [as_payload(each) for each in payloads]
        attributes = self._attributes_of(len(records), keys, headers)
        with self._appending_many(len(records)):
            attributes = self._traces.of_all(records, attributes, atomic=True)
            return await settled_positions(
                await self._take_after(last, records, txids, attributes, atomic=True)
            )

    @in_own_thread
    async def append_once(
        self,
        payload: bytes | bytearray | memoryview,
        *,
        txid: int,
        key: Buffer | None = None,
        headers: Headers | None = None,
    ) -> DLSN:
        """Write a record unless the log has one with this transaction id; return that record's position.

        The caller gives each record an id of its own, greater than those before. Then it may repeat an append
        whose outcome it does not know, also after a crash and with another writer: the log gets the record
        once. If cancelled, the record may or may not be written.

        Raises:
            TxidOutOfOrderError: The log has greater ids, and no record with this one that is not truncated.
            TxidReusedError: The record with this id has another payload, key or headers. Nothing was written.
            The errors of ``append`` and ``outcome``.
        """
        with self._appending() as span:
            payload, txid = as_payload(payload), as_txid(txid)
            attributes = self._attributes(key, headers)
            attributes = self._traces.of_one(len(payload), attributes)
            while self._machine.is_over_limit:
                await self.wait_capacity()
            if txid > self._last_txid:
                return marked(span, await Pending(*self._take(payload, txid, attributes, waits=True)))
            found = await self._find(txid, is_whole=True)
            if found is None:
                raise TxidOutOfOrderError(self.log, txid, self._last_txid)
            if not is_repeat_of(found, payload, self._rooms.opener, attributes):
                raise TxidReusedError(self.log, txid, found.dlsn)
            return marked(span, found.dlsn)

    @in_own_thread
    async def outcome(self, txid: int) -> DLSN | None:
        """The position of the log's first record with this transaction id; None if it has none.

        It settles an unknown outcome: after ``LogWriteError`` reopen the writer and ask it. None then means
        that the record is not in the log and never will be, or that it was truncated.

        Raises:
            LogFencedError, LogWriteError: The writer has stopped.
            LogUnavailableError, LogMetadataError, CorruptLogError
        """
        txid = as_txid(txid)
        if txid > self._last_txid:
            await trio.lowlevel.checkpoint()
            return None
        found = await self._find(txid)
        return None if found is None else found.dlsn

    async def _find(self, txid: int, *, is_whole: bool = False) -> Record | None:
        await self.flush()  # readers, and this call, see durable records only
        return await self._lookup.find_txid(txid, is_whole=is_whole)

    def submit(
        self,
        payload: bytes | bytearray | memoryview,
        *,
        txid: int | None = None,
        key: Buffer | None = None,
        headers: Headers | None = None,
        sequence: int | None = None,
    ) -> Pending:
        """Take one record without waiting. Await the result for the record's position.

        Call ``wait_capacity`` between submissions: it limits the memory in use.

        Args: as ``append``.

        Raises:
            ConfigError, ValueError: As ``append``; the record was not taken.
            RecordTooLongError, TxidOutOfOrderError, WriterOverloadedError, WriterClosedError: The record was
                not taken.
            LogFencedError, LogWriteError: The writer has stopped; the record was not taken.
        """
        if sequence is not None:
            raise not_shared(self.log)
        attributes = None if key is None and headers is None else self._attributes(key, headers)
        if self._is_observed:
            attributes = self._traces.of_one(len(payload), attributes)
        return Pending(*self._take(payload, txid, attributes))

    def _appending(self) -> AbstractContextManager[Span | None]:
        """Measure and trace an append of one record, if that is turned on; see ``Recorder.operation``."""
        return self._lookup.operation(APPEND, "append", operation_type="send")

    def _appending_many(self, count: int) -> AbstractContextManager[Span | None]:
        return self._lookup.operation(APPEND_MANY, "append_many", operation_type="send", message_count=count)

    def begin_append(
        self,
        payload: bytes | bytearray | memoryview,
        *,
        txid: int | None = None,
        key: Buffer | None = None,
        headers: Headers | None = None,
        sequence: int | None = None,
    ) -> Pending | None:
        """As ``append`` up to its wait for the outcome; None, with nothing taken, if it has to do more.

        For the faces without trio, whose callers wait in their own way; they call ``append`` then.
        """
        if sequence is not None:
            raise not_shared(self.log)
        if self._is_observed or self._machine.is_over_limit:
            return None
        attributes = None if key is None and headers is None else self._attributes(key, headers)
        return Pending(*self._take(payload, txid, attributes, waits=True))

    @in_own_thread
    async def wait_capacity(self) -> None:
        """Return when fewer than ``bytes_in_flight_max`` bytes are in flight; at once if they are already.

        Also waits while a slow replica makes the ledger hold twice as many bytes.

        Raises:
            LogFencedError, LogWriteError: The writer has stopped, and is not reopened by itself.
        """
        while True:
            try:
                return await self._shell.capacity.wait()
            except WriteError as exc:
                if self._reopener is None or not self._reopener.will_reopen(exc):
                    raise
            await self._reopener.wait_changed()

    @in_own_thread
    async def flush(self) -> None:
        """Return when every record submitted before is durable, and visible to a reader that looks.

        If cancelled, the records are written all the same.

        Raises:
            LogFencedError, LogWriteError: Some of the records are not durable; each has its own outcome. Also
                of records from before the writer was reopened, if no caller has got their errors.
        """
        self._lookup.counts[FLUSHES] += 1
        with self._lookup.operation(FLUSH):
            if unseen := [batch for batch in self._machine.failed if not batch.error_was_seen]:
                for batch in unseen:
                    batch.error_was_seen = True
                unseen[0].raise_error()
            if self._newest is None:
                await trio.lowlevel.checkpoint()
                return
            newest, _ = self._newest
            self._machine.flush()
            await wait_settled(newest)
            if newest.error is not None:
                newest.raise_error()
            await self._shell.make_visible(newest)

    async def truncate(self, first_kept: DLSN) -> DLSN | None:
        """Truncate the log: readers begin at ``first_kept``. Return the first position that is left.

        Truncated records are marked. Segments in which all are marked are deleted in the background
        (``WriterConfig.purge``). Only completed segments can be marked. So the returned
        position may lie before ``first_kept``: all records in the segment in use stay. None means that there
        is no segment yet. A truncated record stays truncated: a call with an earlier position changes
        nothing. If the call is cancelled or the connection is lost, some records may be truncated, from the
        first on; call it again.

        Raises:
            LogFencedError, LogWriteError, WriterClosedError: The writer has stopped.
            LogUnavailableError, LogMetadataError
            AccessDeniedError: The policy of the namespace does not allow it.
        """
        check_own_thread(self)
        first_kept = as_dlsn(first_kept)
        await self._check_truncation()
        with translated(self.log, "truncating it"):
            async with audited_async("truncate log", f"{self.log} before {first_kept}"):
                return await self._shell.truncate(first_kept)

    async def seal(self) -> None:
        """End the log for good: write all submitted records and the end-of-stream marker; close the writer.

        Readers return all records and then end (``LogReader.is_sealed``). No writer can be opened again. If
        the call is cancelled or fails with the outcome UNKNOWN, the log may be sealed or not:
        ``Namespace.seal_log`` finishes it.

        Raises:
            LogFencedError, LogWriteError, WriterClosedError: The writer has stopped.
            AccessDeniedError: The policy of the namespace does not allow it.
        """
        check_own_thread(self)
        await self._check_admin()
        machine = self._machine
        if machine.refusal is not None:
            raise machine.refusal.about(RecordOutcome.NOT_WRITTEN)
        async with audited_async("seal log", self.log):
            end = machine.seal(WriterClosedError(self.log, "it is sealed", "write to another log"))
            # Closing writes it, as it does every record, and completes the segment.
            await self.aclose()
            if end.error is not None:
                end.raise_error()
            if machine.stopped is not None:
                raise machine.stopped.about(end.outcome)

    async def aclose(self) -> None:
        """Write all submitted records, complete the segment in use and release the lock. Idempotent.

        If the call is cancelled, or bookies or metadata stay out of reach, the writer ends all the same. The
        next writer's recovery finds every durable record.

        Raises:
            LogFencedError, LogWriteError: Some submitted record is not durable.
        """
        check_own_thread(self)
        self._closing.set()
        if self._reopener is not None:
            self._reopener.close()
        await self._shell.aclose()

    def reopener(self, store: MetadataStore) -> Reopener:
        """What opens this writer again by itself; for ``operations.opening``, which runs its task."""
        self._reopener = Reopener(lambda: self._shell, self.reopen, self._config, store)
        return self._reopener

    async def reopen(self) -> None:
        """Take the log's lock again after the writer has stopped, and continue. Does nothing before that.

        First every record submitted before gets its outcome; records that fail are not written again. Then
        it does what opening does: it waits as long for the lock, and recovers the segments in progress.
        ``last_txid`` is that of the log afterwards. If the call is cancelled or fails, the writer stays
        stopped; call it again.

        Raises:
            WriterClosedError: The writer was closed.
            LogNotFoundError, EndOfStreamError (sealed), LogLockedError, LogFencedError, LogMetadataError
            LogUnavailableError, NamespaceLostError
        """
        check_own_thread(self)
        async with self._reopening:
            if self._machine.stopped is None and not self._closing.is_set():
                await trio.lowlevel.checkpoint()
                return
            if self._closing.is_set() or isinstance(self._machine.stopped, WriterClosedError):
                raise WriterClosedError(self.log)
            shell = await self._begin(await self._shell.end())
            self._use(shell)
            if self._closing.is_set():  # during the calls above
                await shell.aclose()
                raise WriterClosedError(self.log)

    async def _take_after(
        self,
        last: DLSN | None,
        payloads: list[bytes],
        txids: Iterable[int] | None,
        attributes: list[bytes | None] | None,
        *,
        atomic: bool,
    ) -> list[tuple[Batch, int, int]]:
        """Take records if the log's last one is at this position."""
        txids = None if txids is None else list(txids)
        while True:
            newest = await self._expect_last(last)
            # No other task runs from here until the records are taken; a signal handler may submit.
            records, ids = self._rooms.checked(payloads, txids, self._last_txid)
            if not records:
                return []
            if ranges := self._take_many(records, ids, attributes, atomic=atomic, after=(newest,)):
                return ranges

    async def _expect_last(self, last: DLSN | None) -> tuple[Batch, int] | None:
        """Return the newest record that this writer has taken, if the log's last one is at this position.

        There is no checkpoint after the check.
        """
        last = None if last is None else as_dlsn(last)
        while True:
            newest = self._newest
            if self._machine.is_over_limit:
                await self.wait_capacity()
            elif newest is None and not self._has_looked:
                self._found_last = await self._lookup.last_dlsn()
                self._has_looked = True
            elif newest is not None and not newest[0].is_settled:
                await self.flush()
            else:
                break
        actual = self._found_last if newest is None else Pending(*newest).dlsn
        if actual != last:
            raise PositionConflictError(self.log, last, actual)
        return newest

    @property
    def producer(self) -> str | None:
        """The name that the records of a shared writer carry; None: it is not shared."""
        return None

    @property
    def is_owner(self) -> bool:
        """True while this program writes the log itself; False while a shared writer forwards."""
        return True

    @property
    def forwarder_count(self) -> int:
        """How many programs forward to this one now."""
        return 0

    @property
    def last_sequence(self) -> int:
        """The number of the producer's last record: of those submitted here, and of those of before that the
        end of the log holds; -1: none, or the writer is not shared."""
        return -1

    def _attributes(self, key: Buffer | None, headers: Headers | None) -> bytes | None:
        attributes = encode_attributes(key, headers)
        if attributes is not None and not self._config.keys_and_headers:
            raise not_taken(self.log)
        return attributes

    def _attributes_of(
        self,
        count: int,
        keys: Iterable[Buffer | None] | None,
        headers: Iterable[Headers | None] | None,
    ) -> list[bytes | None] | None:
        return attributes_of(self.log, count, keys, headers, takes_any=self.keys_and_headers)

    def _take(
        self,
        payload: bytes | bytearray | memoryview,
        txid: int | None,
        attributes: bytes | None = None,
        *,
        waits: bool = False,
    ) -> tuple[Batch, int]:
        """Take one record. ``waits``: the caller is about to wait for it."""
        machine = self._machine
        if machine.in_step or get_ident() != self._thread:
            raise not_taken_now(self)
        try:
            machine.in_step = True  # as ``a_step``, without a call
            if machine.refusal is not None:
                raise machine.refusal.about(RecordOutcome.NOT_WRITTEN)
            if payload.__class__ is not bytes:
                payload = as_payload(payload)
            if len(payload) > self.payload_bytes_max:
                raise RecordTooLongError(len(payload), self.payload_bytes_max)
            last_txid = self._last_txid
            if txid is None:
                txid = max(last_txid, self._wall_ms())
            else:
                if txid.__class__ is not int:
                    txid = as_txid(txid)
                if not last_txid <= txid < TXID_MAX or txid < 0:
                    raise TxidOutOfOrderError(self.log, txid, last_txid)
            # A caller that waits has looked at the lower limit before, in this step.
            if not waits and machine.waiting_bytes > self._submit_bytes_max:
                raise WriterOverloadedError(self.log, machine.waiting_bytes, self._submit_bytes_max)
            if attributes is not None:
                payload, attributes = self._rooms.sealed(payload, txid, attributes)
            elif self._sealer is not None:
                payload = self._sealer.seal(payload, txid)
            try:
                if attributes is None:
                    taken = self._batcher.add(payload, txid)
                else:
                    taken = self._batcher.add_with(payload, txid, attributes)
                self._last_txid, self._newest = txid, taken
                if waits:
                    taken[0].is_wanted = True
                machine.pump_in_step(waits=waits)
            except BaseException as exc:
                self._shell.broken(exc)
                raise
            return taken
        finally:
            machine.in_step = False

    def _take_many(
        self,
        payloads: Sequence[bytes],
        txids: Sequence[int] | None,
        attributes: Sequence[bytes | None] | None = None,
        *,
        atomic: bool,
        after: tuple[tuple[Batch, int] | None] | None = None,
    ) -> list[tuple[Batch, int, int]]:
        """Take records that ``RecordRooms.checked`` saw.

        Args:
            after: The record that must be the newest; None: any. Returns [] if it is another one.
        """
        machine = self._machine
        if machine.in_step or get_ident() != self._thread:
            raise not_taken_now(self)
        try:
            machine.in_step = True
            if machine.refusal is not None:
                raise machine.refusal.about(RecordOutcome.NOT_WRITTEN)
            if after is not None and self._newest is not after[0]:
                return []
            # Signal handlers may have submitted since they were checked.
            if txids is None:
                txids = [max(self._last_txid, self._wall_ms())] * len(payloads)
            elif txids[0] < self._last_txid:
                raise TxidOutOfOrderError(self.log, txids[0], self._last_txid)
            payloads, attributes = self._rooms.all_sealed(payloads, txids, attributes)
            is_large = self._rooms.has_large(payloads)
            if atomic:
                size_bytes = encoded_bytes(payloads, attributes)
                # The control record with the keys and headers obeys the limit of a record.
                limit = self._batcher.entry_bytes_max if attributes is None else RECORD_BYTES_MAX
                if size_bytes > limit or is_large:
                    raise BatchTooLongError(self.log, len(payloads), size_bytes, limit)
            try:
                self._last_txid = txids[-1]
                if atomic:
                    ranges = [self._batcher.add_together(payloads, txids, attributes)]
                elif attributes is not None:
                    ranges = self._batcher.add_each(payloads, txids, attributes)
                elif is_large:
                    ranges = self._batcher.add_mixed(payloads, txids)
                else:
                    ranges = self._batcher.add_many(payloads, txids)
                batch, slot, count = ranges[-1]
                self._newest = batch, slot + count - 1
                batch.is_wanted = True
                machine.pump_in_step()
            except BaseException as exc:
                self._shell.broken(exc)
                raise
            return ranges
        finally:
            machine.in_step = False


def prepare_many(
    writer: LogWriter,
    payloads: Sequence[bytes],
    keys: Sequence[bytes] | None = None,
    headers: Sequence[Headers | None] | None = None,
) -> Callable[[], list[tuple[Batch, int, int]]]:
    """Check records; return what takes them, for a sharded writer. No other task may run before that.

    Raises: as ``LogWriter.append_many``; nothing was written.
    """
    attributes = writer._attributes_of(len(payloads), keys, headers)
    records, txids = writer._rooms.checked(payloads, None, writer.last_txid)
    attributes = writer._traces.of_all(records, attributes, atomic=False)
    writer._rooms.check_each(records, attributes)
    return lambda: writer._take_many(records, txids, attributes, atomic=False)


# For the owner of a shared log, who writes the records of other programs by its own writer.


def take_stamped(
    writer: LogWriter,
    payloads: Sequence[bytes],
    txids: Sequence[int] | None,
    attributes: Sequence[bytes],
    *,
    atomic: bool,
) -> list[tuple[Batch, int, int]]:
    """Take records with their encoded attributes, as ``LogWriter.append_many`` does.

    Returns:
        (batch, first slot, count) for each batch that got some, in order.

    Raises: as ``LogWriter.append_many``; nothing was taken.
    """
    records, ids = writer._rooms.checked(payloads, txids, writer.last_txid)
    return writer._take_many(records, ids, attributes, atomic=atomic)


async def expect_last(writer: LogWriter, last: DLSN | None) -> None:
    """See ``LogWriter.append_after``: no checkpoint lies between the check and the return."""
    await writer._expect_last(last)


def is_over_limit(writer: LogWriter) -> bool:
    """True if ``LogWriter.wait_capacity`` would wait."""
    return writer._machine.is_over_limit


def carries_trace(writer: LogWriter) -> bool:
    """True if the records of this writer carry the span that is current."""
    return writer._traces.is_carried


async def wait_stopped(writer: LogWriter) -> WriteError | None:
    """Return the reason when the writer has stopped; None once it is closed."""
    return await writer._shell.wait_stopped()
