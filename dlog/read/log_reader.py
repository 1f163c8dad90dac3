"""Reading a log: its records in order, as an async iterator.

Inside: decoding fetched entries when the caller takes records, the reader's position, what several tasks see
that share a reader. Not inside: fetching entries (``read_ahead``), the decoder of a segment
(``segment_reader``), positioning (``read_only_log``).
Always: each record is returned once, in order, to exactly one caller; a cancelled call loses no record;
nothing is measured or traced for a record that is decoded already.

Source: DistributedLog, BKAsyncLogReader.java (docs/stream-format.md 7).
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial
from threading import get_ident
from typing import Literal, overload

import trio

from dlog.config import ReaderConfig
from dlog.encryption import PayloadOpener
from dlog.errors import (
    CorruptLogError,
    DLogError,
    EntryFormatError,
    LogReaderIdleError,
    LogTruncatedError,
    NamespaceClosedError,
)
from dlog.format.arguments import as_dlsn
from dlog.format.record import Record, RecordWithAttributes
from dlog.read.columns import RecordRun
from dlog.read.cursors import ReaderCursor
from dlog.read.gap_finder import GapFinder
from dlog.read.gaps import Gap, Missing, check_gaps
from dlog.read.positioning import LATEST, Start
from dlog.read.read_ahead import ReadAhead
from dlog.read.read_only_log import ReadOnlyLog
from dlog.read.record_batch import RecordBatch, Untaken
from dlog.statistics_names import READERS_OPENED, RECEIVE, RECORDS_READ
from ledger.pickling import ProcessBound
from ledger.runtime.statistics.tracing import MESSAGE_COUNT, Span
from ledger.runtime.tasks.failing_calls import fails_at_checkpoint
from ledger.runtime.tasks.forks import RULE, call_in_child
from ledger.runtime.tasks.service_tasks import open_service_tasks
from ledger.runtime.tasks.trio_only import check_thread
from namespace.cursor_nodes import Cursor
from namespace.dlsn import DLSN

BATCH_RECORDS = 65_536
COLUMNS_RECORDS_MIN = 32  # in an entry: columns make their records faster from here on
IDLE = (
    "no entry came, not even a control record; the writer is gone or out of reach, or has no keep_alive_s"
    " below the reader's idle_timeout_s"
)
SECOND_LOOKS_MAX = 3  # in a row, of data that seem to be gone and then are not


class LogReader(ProcessBound):
    """An async iterator of the records of a log. Made by ``Namespace.open_reader``.

    Iteration ends at ``end``, at the present end of the log if opened with ``follow=False``, and at the end
    of a sealed log (``is_sealed``). Taking a record that is decoded already is no checkpoint.
    """

    def __init__(
        self,
        log: ReadOnlyLog,
        config: ReaderConfig,
        *,
        end: DLSN | int | Start | None,
        follow: bool,
        cursor: ReaderCursor | None = None,
        gaps: bool = False,
    ) -> None:
        self.log, self._log, self._counts = log.name, log, log.counts
        self._is_observed = log.recorder.observes  # batches and waits are measured or traced
        self.gaps = gaps  # as it was opened
        log.counts[READERS_OPENED] += 1
        self.is_sealed = False
        self._txid_max = end if isinstance(end, int) else None  # the first greater one ends the reader
        self._is_past_end = False  # that record was decoded
        log.gaps_ok = gaps
        self._new_ahead = partial(
            ReadAhead,
            log,
            config,
            # Records up to LATEST were visible, so they are waited for, also from a bookie with an older LAC.
            follow=follow or end is LATEST,
            position=lambda: self.position,
            reports_gone=gaps,
        )
        self._ahead = self._new_ahead(end=None if isinstance(end, int) else end)
        self._spawn: Callable[[ReadAhead], None]  # starts its task
        self._gap_finder = GapFinder(log) if gaps else None
        self._gap: Gap | None = None  # the last one that was returned
        self._retry_pause_s, self._idle_timeout_s = config.retry_pause_s, config.idle_timeout_s
        self._idle_error_s = -math.inf  # when LogReaderIdleError was raised last
        self._clock = trio.lowlevel.current_clock()
        self._passing = trio.Lock()  # held while a gap is passed
        self._second_looks = 0  # at one position
        self._opener: PayloadOpener | None = None
        self._encryption = config.encryption
        self._undecryptable: DLogError | None = None  # the error of the record at ``position``
        self._expand_bytes_max = config.read_bytes_max
        self._txid_min = -1  # records before the first one with this transaction id are dropped
        self._position: DLSN | None = None
        self._is_closed = False
        self._untaken = Untaken()  # decoded
        self._next: Iterator[Record] = iter(())  # ``_untaken.records``
        self._is_forked, self._thread = False, get_ident()
        self._cursor = cursor
        call_in_child(self, LogReader._refuse_in_child)

    def _refuse_in_child(self) -> None:
        """Refuse to fetch: called in a forked child."""
        self._is_forked = True

    def _check_caller(self) -> None:
        if self._is_forked:
            raise NamespaceClosedError(f"reader of log {self.log!r}: {RULE}")
        check_thread(self._thread, f"reader of log {self.log!r}")

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "at its end" if self._ahead.is_over else "following"
        return f"<LogReader of {self.log!r} at {self.position}, {state}>"

    @property
    def position(self) -> DLSN | None:
        """The start for a new reader that continues after the records returned so far; None for the log's
        first record."""
        last = self._untaken.last_taken
        return self._position if last is None else last.next_slot()

    @property
    def idle_s(self) -> float:
        """Seconds since the last entry of the log arrived, control records included.

        A writer with ``WriterConfig.keep_alive_s`` sends one at least so often, so a much greater value means
        that it is gone or out of reach. Entries arrive ahead of the records that are returned.
        """
        return self._clock.current_time() - self._ahead.active_s

    def __aiter__(self) -> LogReader:
        return self

    async def __anext__(self) -> Record:
        while True:
            try:
                for record in self._next:
                    return record
            except MemoryError:
                self._take_again()
                raise
            if not self._untaken and not await (
                self._refill_observed() if self._is_observed else self._refill()
            ):
                raise StopAsyncIteration
            self._next = self._untaken.begin()

    async def read_batch(self, records_max: int, *, wait_s: float | None = None) -> RecordBatch | None:
        """Return the next records, at most ``records_max``; wait at most ``wait_s`` seconds for the first.

        The batch is a sequence of records, stored as columns. It holds the records of one read of
        ``ReaderConfig.read_bytes_max`` at most. An empty batch means that no record came within ``wait_s``:
        call again. None means the end: ``end`` was reached, the log is sealed, or a reader that does not
        follow has returned all records. A cancelled call loses no record: the next call returns them.

        Args:
            records_max: At least 1.
            wait_s: None waits without limit, so that the result is a record or the end.

        Raises:
            CorruptLogError: Stored bytes are damaged; ``position`` says where.
            DecryptionError, EncryptionKeyError: The record at the position does not decrypt.
            LogTruncatedError: The records at the position were truncated.
            LogReaderIdleError: No entry arrived for ``ReaderConfig.idle_timeout_s``.
            LogReaderStalledError: Reading failed for longer than ``ReaderConfig.retry_timeout_s``.
            LogNotFoundError: The log was deleted.
            LogMetadataError: The nodes of the log contradict each other.
            NamespaceLostError: The session with the metadata store ended.

        Each later call raises the same error; ``position`` stays valid. After LogReaderIdleError a later call
        waits as long again.
        """
        records = await self._read_records(records_max, wait_s=wait_s, columns=True)
        return None if records is None else RecordBatch.of(records)

    async def read_records(self, records_max: int, *, wait_s: float | None = None) -> list[Record] | None:
        """As ``read_batch``, but a list of records: faster for a caller that uses each as an object."""
        records = await self._read_records(records_max, wait_s=wait_s, columns=False)
        return None if records is None else list(records)

    async def read_batch_or_gap(
        self, records_max: int, *, wait_s: float | None = None
    ) -> RecordBatch | Gap | None:
        """As ``read_batch``, but data that are missing for good are returned as a ``Gap``, not raised.

        The reader then continues after the gap. Data that are out of reach now are never a gap: they are
        waited for, then raised as ``LogReaderStalledError``. A gap before the next record is looked for also
        beyond ``wait_s``.

        Raises:
            ValueError: The reader was opened without ``gaps=True``.
        """
        check_gaps(f"log {self.log!r}", self.gaps)
        found = await self._records_or_gap(records_max, wait_s=wait_s, columns=True)
        if isinstance(found, Missing):
            return found.gap
        return None if found is None else RecordBatch.of(found)

    async def _records_or_gap(
        self, records_max: int, *, wait_s: float | None, columns: bool
    ) -> Sequence[Record] | Missing | None:
        while True:
            ahead = self._ahead
            try:
                return await self._read_records(records_max, wait_s=wait_s, columns=columns)
            except DLogError as exc:
                error = exc
            if (gap := await self._gap_after(ahead, error)) is not None:
                return Missing(gap, error)

    @overload
    def batches(
        self, records_max: int = ..., *, gaps: Literal[False] = ...
    ) -> AsyncIterator[RecordBatch]: ...
    @overload
    def batches(self, records_max: int = ..., *, gaps: Literal[True]) -> AsyncIterator[RecordBatch | Gap]: ...
    async def batches(
        self, records_max: int = BATCH_RECORDS, *, gaps: bool = False
    ) -> AsyncIterator[RecordBatch | Gap]:
        """Iterate over batches of at most ``records_max`` records, each with one or more, until the end.

        It raises as ``read_batch``; with ``gaps=True`` as ``read_batch_or_gap``, whose gaps it returns.
        """
        read = self.read_batch_or_gap if gaps else self.read_batch
        while (batch := await read(records_max)) is not None:
            yield batch

    @fails_at_checkpoint
    async def _read_records(
        self, records_max: int, *, wait_s: float | None, columns: bool
    ) -> Sequence[Record] | None:
        """As ``read_batch``.

        Args:
            columns: Decode entries to columns; False: to what is faster if all become objects.
        """
        if not self._is_observed:
            return await self._take_records(records_max, wait_s, columns)
        with self._receiving() as span:
            records = await self._take_records(records_max, wait_s, columns)
            if span is not None:
                span.set_attribute(MESSAGE_COUNT, len(records or ()))
                self._link(span, records or ())
        return records

    async def _take_records(
        self, records_max: int, wait_s: float | None, columns: bool
    ) -> Sequence[Record] | None:
        if records_max < 1:
            raise ValueError(f"records_max={records_max}: at least 1")
        self._check_caller()
        if not self._untaken:
            if (ready := self._ready(columns)) is not None:
                await trio.lowlevel.checkpoint()
                ready = self._ready(columns)  # another task may have been here
            if ready is None:
                if wait_s is None:
                    ready = await self._refill(columns)
                else:
                    with trio.move_on_after(wait_s):
                        ready = await self._refill(columns)
            if not ready:
                return [] if ready is None else None
        records = self._untaken.take(records_max)
        self._next = self._untaken.records
        return records

    @property
    def cursor(self) -> Cursor | None:
        """The cursor as this reader last read or committed it; None if it was never committed."""
        return None if self._cursor is None else self._cursor.seen

    async def commit(self, last: DLSN | None = None) -> Cursor | None:
        """Move the reader's cursor after a record: a later reader with this cursor continues there.

        The cursor only moves forward: for a record before it, nothing is changed. If the call is cancelled,
        or the metadata store stays out of reach, the cursor may or may not be moved; call it again.

        Args:
            last: The last record that was consumed; None: the last one that this reader returned.

        Returns:
            The cursor; None if there is nothing to commit yet.

        Raises:
            ValueError: The reader was opened without a cursor, or ``last`` was not returned yet.
            AccessDeniedError: The policy gives no right to commit this cursor.
            CursorConflictError: Another reader has moved the cursor. Each later call raises the same error.
            LogNotFoundError, LogUnavailableError, AccessDeniedError
        """
        if last is not None and (self.position is None or as_dlsn(last) >= self.position):
            raise ValueError(f"log {self.log!r}: {last} was not returned yet, so it cannot be committed")
        return await self.commit_to(self.position if last is None else self.resume_after(last))

    async def commit_to(self, position: DLSN | None) -> Cursor | None:
        """Like ``commit``, by the first record that is not consumed, such as an earlier ``position``."""
        if self._cursor is None:
            raise ValueError(f"log {self.log!r}: the reader has no cursor; open it with cursor=NAME")
        if position is None:
            return self._cursor.seen
        if self.position is None or as_dlsn(position) > self.position:
            raise ValueError(f"log {self.log!r}: the reader has not come to {position} yet")
        return await self._cursor.commit(position)

    def resume_after(self, last: DLSN) -> DLSN:
        """Where reading continues after a record, or after the last gap that this reader returned."""
        return self._gap.resume if self._gap is not None and last == self._gap.last else last.next_slot()

    async def aclose(self) -> None:
        """End the reader. Idempotent; leaving ``async with`` calls it."""
        if not self._is_forked:
            self._check_caller()
        self._is_closed = True
        self._ahead.chunks.clear()
        self._position = self.position
        self._hold(())
        self._ahead.wake()
        await trio.lowlevel.checkpoint()

    async def _begin(self, start: DLSN | int | Start) -> ReadAhead:
        """Find the start; return what fetches from there."""
        if self._encryption is not None:
            self._opener = PayloadOpener(self.log, self._encryption, origin=await self._ahead.origin())
        try:
            self._position = await self._ahead.locate(start)
        except LogTruncatedError as exc:
            if self._gap_finder is None or not isinstance(start, DLSN):
                raise
            self._position, self._ahead.error = start, exc
        if isinstance(start, int):
            self._txid_min = start
        return self._ahead

    async def _gap_after(self, ahead: ReadAhead, error: DLogError) -> Gap | None:
        """Continue after the gap at which ``ahead`` failed, and return it.

        None: continue without a gap, since another task has passed it, or the data can be read after all.
        Raises the error if nothing is known to be missing.
        """
        async with self._passing:
            if self._ahead is not ahead:
                return None
            assert self._gap_finder is not None  # opened with gaps
            gap = await self._gap_finder.gap(error, self.position)
            if gap is None:
                self._second_looks += 1
                match error:
                    case CorruptLogError(position=DLSN() as at) if self._second_looks <= SECOND_LOOKS_MAX:
                        await trio.sleep(self._retry_pause_s)
                        await self._continue_at(at)
                        return None
                raise error
            await self._continue_at(gap.resume)
            self._gap, self._second_looks = gap, 0
            return gap

    async def _continue_at(self, position: DLSN) -> None:
        """Fetch from a position on. If cancelled, nothing has changed."""
        ahead = self._new_ahead(end=self._ahead.end)
        try:
            await ahead.locate(position)
        except LogTruncatedError as exc:
            ahead.error = exc
        self._ahead.stop()
        self._ahead = ahead
        self._position = position
        self._hold(())
        self._spawn(ahead)

    @fails_at_checkpoint
    async def _refill(self, columns: bool = False) -> bool:
        """Decode records into ``_records``, waiting if none are fetched yet; False at the end."""
        # ``_ready`` first: it refuses a child, whose copy of the loop would take events of the parent.
        if self._ready(columns) is not None:
            await trio.lowlevel.checkpoint()  # another task may take the records meanwhile
        while (ready := self._ready(columns)) is None:
            if self._idle_timeout_s is None:
                await self._ahead.wait_change()
                continue
            until_s = max(self._ahead.active_s, self._idle_error_s) + self._idle_timeout_s
            if trio.current_time() >= until_s:
                self._idle_error_s = trio.current_time()
                raise LogReaderIdleError(self.log, self.position, self.idle_s, IDLE)
            with trio.move_on_at(until_s):
                await self._ahead.wait_change()
        return ready

    async def _refill_observed(self) -> bool:
        with self._receiving() as span:
            is_found = await self._refill()
            if span is not None:
                found = self._untaken.rest() if is_found else ()
                span.set_attribute(MESSAGE_COUNT, len(found))
                self._link(span, found)
        return is_found

    def _link(self, span: Span, records: Sequence[Record]) -> None:
        """Link the span with those in which the records were written."""
        if isinstance(records, RecordBatch):
            headers = records.headers if records.has_attributes else list[Mapping[str, bytes]]
        else:
            with_some = [each for each in records if isinstance(each, RecordWithAttributes)]
            headers = partial(list, (each.headers for each in with_some))
        self._log.recorder.link(span, headers)

    def _receiving(self) -> AbstractContextManager[Span | None]:
        return self._log.operation(RECEIVE, "receive", operation_type="receive")

    def _ready(self, columns: bool) -> bool | None:
        """True if records can be returned, False at the end, None if neither is known yet.

        Raises the error that ended the fetching task, after the records before it.
        """
        self._check_caller()
        if self._is_closed:
            raise NamespaceClosedError(f"reader of log {self.log!r}: it was closed; open another one")
        if self._untaken:
            return True
        if self._undecryptable is not None:
            raise self._undecryptable
        while self._ahead.chunks and not (self.is_sealed or self._is_past_end):
            if self._decode_next(columns):
                return True
        if self.is_sealed or self._is_past_end:
            return False
        if self._ahead.error is not None:
            raise self._ahead.error
        return False if self._ahead.is_over else None

    def _decode_next(self, columns: bool) -> bool:
        chunk = self._ahead.chunks[0]
        segment = chunk.segment
        first_entry_id = segment.next_entry_id
        # Compressed entries leave the chunk bit by bit, or one read could expand to many times its size.
        expand_until = segment.expanded_bytes + self._expand_bytes_max
        records: list[Record] = []
        runs: list[RecordRun] = []
        columns = self._opener is None and (columns or segment.last_entry_records >= COLUMNS_RECORDS_MIN)
        try:
            for entry in chunk.entries:
                if columns:
                    segment.decode_columns(entry, runs)
                else:
                    segment.decode(entry, records)
                if segment.is_sealed or segment.expanded_bytes >= expand_until:
                    break
        except EntryFormatError as exc:
            if segment.next_entry_id > first_entry_id:
                # The records before the damage are good. The damaged entry stays: each later call raises.
                del chunk.entries[: segment.next_entry_id - first_entry_id]
                return self._deliver(RecordBatch(runs) if columns else records)
            if not self._ahead.is_past_end(segment.position):
                raise CorruptLogError(self.log, segment.position, str(exc)) from None
        else:
            decoded = segment.next_entry_id - first_entry_id
            if decoded < len(chunk.entries) and not segment.is_sealed:
                del chunk.entries[:decoded]
                return self._deliver(RecordBatch(runs) if columns else records)
        self._ahead.drop_first()
        self.is_sealed = segment.is_sealed
        return self._deliver(RecordBatch(runs) if columns else records)

    def _deliver(self, records: Sequence[Record]) -> bool:
        if self._txid_min >= 0:
            txid_min = self._txid_min
            count = next((i for i, txid in enumerate(_txids(records)) if txid >= txid_min), len(records))
            if count:
                # A new reader that starts at ``position`` does not know the transaction id.
                self._position = records[count - 1].dlsn.next_slot()
                records = records[count:]
            if records:
                self._txid_min = -1
        records = self._ahead.cut(records)
        if self._txid_max is not None:
            txid_max = self._txid_max
            kept = next((i for i, txid in enumerate(_txids(records)) if txid > txid_max), None)
            if kept is not None:
                records = records[:kept]
                self._is_past_end = True
                self._ahead.stop()
        self._position = self.position
        self._hold(())
        if self._opener is not None:
            records = self._decrypted(self._opener, records)
        if not records:
            return False
        self._hold(records)
        self._counts[RECORDS_READ] += len(records)
        return True

    def _take_again(self) -> None:
        """Return the record that did not fit into memory, and those after it, by later calls."""
        rest = self._untaken.rest(again=True)
        self._position = Untaken(rest).first
        self._hold(rest)

    def _hold(self, records: Sequence[Record]) -> None:
        self._untaken, self._next = Untaken(records), iter(())

    def _decrypted(self, opener: PayloadOpener, records: Sequence[Record]) -> list[Record]:
        """The records with their payloads; those before the first that does not decrypt."""
        decrypted: list[Record] = []
        for record in records:
            try:
                decrypted.append(opener.open_record(record))
            except DLogError as exc:
                self._undecryptable = exc
                if decrypted:
                    break
                self._position = record.dlsn
                raise
        return decrypted


def _txids(records: Sequence[Record]) -> Sequence[int]:
    return records.txids if isinstance(records, RecordBatch) else [each.txid for each in records]


@asynccontextmanager
async def open_log_reader(
    log: ReadOnlyLog,
    config: ReaderConfig,
    *,
    start: DLSN | int | Start,
    end: DLSN | int | Start | None = None,
    follow: bool = True,
    cursor: ReaderCursor | None = None,
    gaps: bool = False,
) -> AsyncIterator[LogReader]:
    """Open a reader; see ``Namespace.open_reader``."""
    reader = LogReader(log, config, end=end, follow=follow, cursor=cursor, gaps=gaps)
    ahead = await reader._begin(start)
    async with open_service_tasks() as tasks:
        reader._spawn = lambda ahead: tasks.start_soon(ahead.run)
        reader._spawn(ahead)
        try:
            yield reader
        finally:
            reader._is_closed = True
            reader._ahead.wake()


def end_of(reader: LogReader) -> DLSN | Start | None:
    """Where a reader ends; a position once that is known, unless it is a transaction id. For shards."""
    return reader._ahead.end


async def read_turn(
    reader: LogReader, records_max: int, *, wait_s: float | None = None, columns: bool, gaps: bool
) -> Sequence[Record] | Missing | None:
    """As ``LogReader.read_batch``, or a gap; None at the end. For a reader of several shards, and iterators.

    Args:
        columns: Decode entries to columns; False: to what is faster if all become objects.
    """
    read = reader._records_or_gap if gaps else reader._read_records
    return await read(records_max, wait_s=wait_s, columns=columns)
