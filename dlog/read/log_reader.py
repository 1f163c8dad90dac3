"""Reading a log: its records in order, as an async iterator.

Inside: decoding fetched entries when the caller takes records, the reader's position, what several tasks see
that share a reader. Not inside: fetching entries (``read_ahead``), the decoder of a segment
(``segment_reader``), positioning (``read_only_log``).
Always: each record is returned once, in order, to exactly one caller; a cancelled call loses no record.

Source: DistributedLog, BKAsyncLogReader.java (docs/stream-format.md 7).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from dlog.config import ReaderConfig
from dlog.encryption import PayloadOpener
from dlog.errors import CorruptLogError, DLogError, EntryFormatError, NamespaceClosedError
from dlog.format.dlsn import DLSN
from dlog.format.record import Record
from dlog.metadata.cursor_nodes import Cursor
from dlog.read.cursors import ReaderCursor
from dlog.read.positioning import Start
from dlog.read.read_ahead import ReadAhead
from dlog.read.read_only_log import ReadOnlyLog
from ledger.tasks.forks import RULE, call_in_child
from ledger.tasks.service_tasks import open_service_tasks


class LogReader:
    """An async iterator of the records of a log. Made by ``Namespace.open_reader``.

    Iteration ends at ``end``, at the present end of the log if opened with ``follow=False``, and at the end
    of a sealed log (``is_sealed``). Taking a record that is decoded already is no checkpoint.
    """

    def __init__(
        self,
        log: ReadOnlyLog,
        config: ReaderConfig,
        *,
        end: DLSN | None,
        follow: bool,
        cursor: ReaderCursor | None = None,
    ) -> None:
        self.log = log.name
        self.is_sealed = False
        self._ahead = ReadAhead(log, config, end=end, follow=follow, position=lambda: self.position)
        self._end = end
        self._opener = None if config.encryption is None else PayloadOpener(log.name, config.encryption)
        self._undecryptable: DLogError | None = None  # the error of the record at ``position``
        self._expand_bytes_max = config.read_bytes_max
        self._txid_min = -1  # records before the first one with this transaction id are dropped
        self._position: DLSN | None = None
        self._is_closed = False
        self._records: list[Record] = []  # decoded
        self._index = 0  # of the first record that is not returned yet
        self._is_forked = False
        self._cursor = cursor
        call_in_child(self, LogReader._refuse_in_child)

    def _refuse_in_child(self) -> None:
        """Refuse to fetch: called in a forked child."""
        self._is_forked = True

    def _check_process(self) -> None:
        if self._is_forked:
            raise NamespaceClosedError(f"reader of log {self.log!r}: {RULE}")

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "at its end" if self._ahead.is_over else "following"
        return f"<LogReader of {self.log!r} at {self.position}, {state}>"

    @property
    def position(self) -> DLSN | None:
        """The start for a new reader that continues after the records returned so far; None for the log's
        first record."""
        if self._index:
            return self._records[self._index - 1].dlsn.next_slot()
        return self._position

    def __aiter__(self) -> LogReader:
        return self

    async def __anext__(self) -> Record:
        index = self._index
        if index == len(self._records):
            if not await self._refill():
                raise StopAsyncIteration
            index = self._index
        self._index = index + 1
        return self._records[index]

    async def read_batch(self, records_max: int, *, wait_s: float | None = None) -> list[Record] | None:
        """Return the next records, at most ``records_max``; wait at most ``wait_s`` seconds for the first.

        An empty list means that no record came within ``wait_s``: call again. None means the end: ``end`` was
        reached, the log is sealed, or a reader that does not follow has returned all records. A cancelled
        call loses no record: the next call returns them.

        Args:
            records_max: At least 1.
            wait_s: None waits without limit, so that the result is a record or the end.

        Raises:
            CorruptLogError: Stored bytes are damaged; ``position`` says where.
            DecryptionError, EncryptionKeyError: The record at the position does not decrypt.
            LogTruncatedError: The records at the position were truncated.
            LogReaderStalledError: Reading failed for longer than ``ReaderConfig.retry_timeout_s``.
            LogNotFoundError: The log was deleted.
            LogMetadataError: The nodes of the log contradict each other.
            NamespaceLostError: The session with the metadata store ended.

        Each later call raises the same error; ``position`` stays valid.
        """
        if records_max < 1:
            raise ValueError(f"records_max={records_max}: at least 1")
        if self._index == len(self._records):
            if (ready := self._ready()) is not None:
                await trio.lowlevel.checkpoint()
                ready = self._ready()  # another task may have been here
            if ready is None:
                with trio.move_on_after(float("inf") if wait_s is None else wait_s):
                    ready = await self._refill()
            if not ready:
                return [] if ready is None else None
        records = self._records[self._index : self._index + records_max]
        self._index += len(records)
        return records

    @property
    def cursor(self) -> Cursor | None:
        """The cursor as this reader last read or committed it; None if it was never committed."""
        return None if self._cursor is None else self._cursor.seen

    async def commit(self, last: DLSN | None = None) -> Cursor | None:
        """Move the reader's cursor behind a record: a later reader with this cursor continues there.

        The cursor only moves forward: for a record before it, nothing is changed. If the call is cancelled,
        or the metadata store stays out of reach, the cursor may or may not be moved; call it again.

        Args:
            last: The last record that was consumed; None: the last one that this reader returned.

        Returns:
            The cursor; None if there is nothing to commit yet.

        Raises:
            ValueError: The reader was opened without a cursor, or ``last`` was not returned yet.
            CursorConflictError: Another reader has moved the cursor. Each later call raises the same error.
            LogNotFoundError, LogUnavailableError, AccessDeniedError
        """
        if last is not None and (self.position is None or last >= self.position):
            raise ValueError(f"log {self.log!r}: {last} was not returned yet, so it cannot be committed")
        return await self.commit_to(self.position if last is None else last.next_slot())

    async def commit_to(self, position: DLSN | None) -> Cursor | None:
        """Like ``commit``, by the first record that is not consumed, such as an earlier ``position``."""
        if self._cursor is None:
            raise ValueError(f"log {self.log!r}: the reader has no cursor; open it with cursor=NAME")
        if position is None:
            return self._cursor.seen
        if self.position is None or position > self.position:
            raise ValueError(f"log {self.log!r}: the reader has not come to {position} yet")
        return await self._cursor.commit(position)

    async def aclose(self) -> None:
        """End the reader. Idempotent; leaving ``async with`` calls it."""
        self._is_closed = True
        self._ahead.chunks.clear()
        self._position = self.position
        self._records, self._index = [], 0
        self._ahead.wake()
        await trio.lowlevel.checkpoint()

    async def _begin(self, start: DLSN | int | Start) -> ReadAhead:
        """Find the start; return what fetches from there."""
        self._position = await self._ahead.locate(start)
        if isinstance(start, int):
            self._txid_min = start
        return self._ahead

    async def _refill(self) -> bool:
        """Decode records into ``_records``, waiting if none are fetched yet; False at the end."""
        self._check_process()  # first: a child that runs its copy of the loop takes events of the parent
        await trio.lowlevel.checkpoint()
        while (ready := self._ready()) is None:
            await self._ahead.wait_change()
        return ready

    def _ready(self) -> bool | None:
        """True if records can be returned, False at the end, None if neither is known yet.

        Raises the error that ended the fetching task, after the records before it.
        """
        self._check_process()
        if self._is_closed:
            raise NamespaceClosedError(f"reader of log {self.log!r}: it was closed; open another one")
        if self._index < len(self._records):
            return True
        if self._undecryptable is not None:
            raise self._undecryptable
        while self._ahead.chunks and not self.is_sealed:
            if self._decode_next():
                return True
        if self.is_sealed:
            return False
        if self._ahead.error is not None:
            raise self._ahead.error
        return False if self._ahead.is_over else None

    def _decode_next(self) -> bool:
        chunk = self._ahead.chunks[0]
        segment = chunk.segment
        first_entry_id = segment.next_entry_id
        # Compressed entries leave the chunk bit by bit, or one read could expand to many times its size.
        expand_until = segment.expanded_bytes + self._expand_bytes_max
        records: list[Record] = []
        try:
            for entry in chunk.entries:
                segment.decode(entry, records)
                if segment.is_sealed or segment.expanded_bytes >= expand_until:
                    break
        except EntryFormatError as exc:
            if segment.next_entry_id > first_entry_id:
                # The records before the damage are good. The damaged entry stays: each later call raises.
                del chunk.entries[: segment.next_entry_id - first_entry_id]
                return self._deliver(records)
            if not self._ahead.is_past_end(segment.position):
                raise CorruptLogError(self.log, segment.position, str(exc)) from exc
        else:
            decoded = segment.next_entry_id - first_entry_id
            if decoded < len(chunk.entries) and not segment.is_sealed:
                del chunk.entries[:decoded]
                return self._deliver(records)
        self._ahead.drop_first()
        self.is_sealed = segment.is_sealed
        return self._deliver(records)

    def _deliver(self, records: list[Record]) -> bool:
        if self._txid_min >= 0:
            count = next((i for i, each in enumerate(records) if each.txid >= self._txid_min), len(records))
            if count:
                # A new reader that starts at ``position`` does not know the transaction id.
                self._position = records[count - 1].dlsn.next_slot()
                del records[:count]
            if records:
                self._txid_min = -1
        if self._end is not None:
            while records and records[-1].dlsn > self._end:
                records.pop()
        if self._index:
            self._position = self._records[self._index - 1].dlsn.next_slot()
            self._records, self._index = [], 0
        if self._opener is not None:
            records = self._decrypted(self._opener, records)
        if not records:
            return False
        self._records, self._index = records, 0
        return True

    def _decrypted(self, opener: PayloadOpener, records: list[Record]) -> list[Record]:
        """The records with their payloads; those before the first that does not decrypt."""
        decrypted: list[Record] = []
        for record in records:
            try:
                payload = opener.open(record.payload, record.txid, record.dlsn)
            except DLogError as exc:
                self._undecryptable = exc
                if decrypted:
                    break
                self._position = record.dlsn
                raise
            decrypted.append(Record(record.dlsn, record.txid, payload, record.sequence_id))
        return decrypted


@asynccontextmanager
async def open_log_reader(
    log: ReadOnlyLog,
    config: ReaderConfig,
    *,
    start: DLSN | int | Start,
    end: DLSN | None = None,
    follow: bool = True,
    cursor: ReaderCursor | None = None,
) -> AsyncIterator[LogReader]:
    """Open a reader; see ``Namespace.open_reader``."""
    reader = LogReader(log, config, end=end, follow=follow, cursor=cursor)
    ahead = await reader._begin(start)
    async with open_service_tasks() as tasks:
        tasks.start_soon(ahead.run)
        try:
            yield reader
        finally:
            reader._is_closed = True
            ahead.wake()
