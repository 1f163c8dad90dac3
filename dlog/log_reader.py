"""Reading a log: records in order, from one segment to the next, at the tail as they come.

Inside: one task that fetches entries ahead of the caller, within a bound; decoding them when the caller takes
them; following the list of segments. Not inside: decoding itself (``segment_reader``), positioning
(``log_source``).
Always: a segment is left only when its ledger is closed, was read to its end, and cannot be replaced by
another of the same number, so nothing is skipped; waiting is never blind: a lost watch is made up for by
listing again, and failing reads end in LogReaderStalledError.

Source: DistributedLog, BKLogReadHandler.java, ReadAheadEntryReader.java (reference section 5);
apache/distributedlog issue 244 and apache/bookkeeper issues 2898 and 1973 are what the rules above keep out.
"""

from __future__ import annotations

import enum
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import attrs
import trio

from dlog.config import ReaderConfig
from dlog.errors import (
    CorruptLogError,
    DLogError,
    EntryFormatError,
    LogMetadataError,
    LogReaderStalledError,
    LogTruncatedError,
    LogUnavailableError,
    NamespaceClosedError,
    NamespaceLostError,
)
from dlog.log_source import LogSource
from dlog.nursery import open_service_tasks
from dlog.positioning import Start
from dlog.record import Record
from dlog.segment_reader import SegmentReader
from ledger.errors import NoSuchLedgerError
from ledger.handle import ReadHandle
from namespace.dlsn import DLSN
from namespace.segment import LogSegment

T = TypeVar("T")

logger = logging.getLogger(__name__)

RETRY_PAUSE_FACTOR_MAX = 16


class _Fetched(enum.Enum):
    """How far a segment was fetched."""

    ALL = "to its end, which is decided"
    ENOUGH = "as far as the caller wants"
    REPLACED = "not at all: another ledger took its place"


@attrs.frozen
class _Chunk:
    """Entries fetched and not yet taken."""

    segment: SegmentReader
    entries: list[bytes]
    size_bytes: int


class LogReader:
    """An async iterator of the records of a log. Made by ``Namespace.open_reader``.

    Iteration ends at ``end``, at the present end of the log if opened with ``follow=False``, and at the end
    of a sealed log (``is_sealed``). While records are at hand, taking one is no checkpoint.
    """

    def __init__(
        self,
        source: LogSource,
        config: ReaderConfig,
        *,
        end: DLSN | None,
        follow: bool,
    ) -> None:
        self.log = source.log
        self._source, self._config = source, config
        self._end, self._follow = end, follow
        self._segments: tuple[LogSegment, ...] = ()
        self._list_changed = trio.Event()
        self._start: DLSN | None = None
        self._txid_min = -1  # records before the first with this transaction id are not wanted
        self._position: DLSN | None = None
        # Filled by the fetching task, emptied by the caller.
        self._chunks: deque[_Chunk] = deque()
        self._ahead_bytes = 0
        self._is_over = False  # nothing more will be fetched
        self._error: DLogError | None = None  # told once the chunks before it are taken
        self._is_closed = False
        self._news, self._room = trio.Event(), trio.Event()
        self._records: list[Record] = []
        self._index = 0
        self.is_sealed = False

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "at its end" if self._is_over else "following"
        return f"<LogReader of {self.log!r} at {self.position}, {state}>"

    @property
    def position(self) -> DLSN | None:
        """Where a new reader would go on after the records returned so far; None: at the log's first
        record."""
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

    async def read_batch(self, records_max: int, *, wait_s: float | None = None) -> list[Record]:
        """The next records, as many as are at hand; waits until there is one, at most ``wait_s`` seconds.

        An empty list means that time is up, or that there will be no more. If cancelled, no record is lost:
        the next call returns what this one would have.

        Raises:
            CorruptLogError, LogTruncatedError, LogReaderStalledError, LogNotFoundError, LogMetadataError,
            NamespaceLostError: Also from every later call; ``position`` is still good.
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
                return []
        records = self._records[self._index : self._index + records_max]
        self._index += len(records)
        return records

    async def aclose(self) -> None:
        """Take no more. Idempotent; leaving ``async with`` does it."""
        self._is_closed = True
        self._chunks.clear()
        self._position = self.position
        self._records, self._index = [], 0
        self._tell_news()
        await trio.lowlevel.checkpoint()

    # The caller's side.

    async def _refill(self) -> bool:
        """Have undelivered records in ``_records``; False at the end. Waits if there are none at hand."""
        await trio.lowlevel.checkpoint()
        while (ready := self._ready()) is None:
            await self._news.wait()
        return ready

    def _tell_news(self) -> None:
        """Wake all who wait; each looks for itself what is left to it."""
        self._news.set()
        self._news = trio.Event()

    def _ready(self) -> bool | None:
        """Whether records are at hand; False at the end, None if that is not known yet. Raises what ended
        reading."""
        if self._is_closed:
            raise NamespaceClosedError(f"reader of log {self.log!r}: it was closed; open another one")
        if self._index < len(self._records):
            return True
        while self._chunks and not self.is_sealed:
            if self._decode_next():
                return True
        if self.is_sealed:
            return False
        if self._error is not None:
            raise self._error
        return False if self._is_over else None

    def _decode_next(self) -> bool:
        chunk = self._chunks[0]
        segment = chunk.segment
        first_entry_id = segment.next_entry_id
        records: list[Record] = []
        try:
            for entry in chunk.entries:
                segment.decode(entry, records)
                if segment.is_sealed:
                    break
        except EntryFormatError as exc:
            if segment.next_entry_id > first_entry_id:
                # What comes before the damage is good. The rest stays, to be refused by each later call.
                del chunk.entries[: segment.next_entry_id - first_entry_id]
                return self._deliver(records)
            if not self._is_past_end(segment.position):
                raise CorruptLogError(self.log, segment.position, str(exc)) from exc
        self._chunks.popleft()
        self._ahead_bytes -= chunk.size_bytes
        self._room.set()
        self.is_sealed = segment.is_sealed
        return self._deliver(records)

    def _deliver(self, records: list[Record]) -> bool:
        if self._txid_min >= 0:
            count = next((i for i, each in enumerate(records) if each.txid >= self._txid_min), len(records))
            if count:
                # A reader that goes on from here knows nothing of the transaction id.
                self._position = records[count - 1].dlsn.next_slot()
                del records[:count]
            if records:
                self._txid_min = -1
        if self._end is not None:
            while records and records[-1].dlsn > self._end:
                records.pop()
        if self._index:
            self._position = self._records[self._index - 1].dlsn.next_slot()
        if not records:
            return False
        self._records, self._index = records, 0
        return True

    # The fetching task.

    async def _locate(self, start: DLSN | int | Start) -> None:
        """Find the start, before anything is promised to the caller."""
        await self._list()
        if isinstance(start, int):
            self._txid_min = start

        async def locate() -> DLSN | None:
            try:
                return await self._source.locate(self._segments, start)
            except LogUnavailableError:
                # Perhaps what was listed is gone: a recovery deletes a segment that it finds empty.
                await self._list()
                raise

        self._start = self._position = await self._persistently(locate)

    async def _fetch(self) -> None:
        """Fetch until the end; for a task."""
        try:
            await self._follow_segments()
        except DLogError as exc:
            self._error = exc
        self._is_over = True
        self._tell_news()

    async def _follow_segments(self) -> None:
        start = self._start
        while not self._is_past_end(start):
            segment = self._next_segment(start)
            if segment is None:
                if not self._follow:
                    return
                await self._wait_list_change()
                continue
            if start is None:
                start = segment.first_dlsn
            match await self._fetch_segment(segment, start):
                case _Fetched.ALL:
                    start = segment.first_dlsn.next_segment()
                case _Fetched.REPLACED:
                    await self._pause_and_list()
                case _Fetched.ENOUGH:
                    return

    def _is_past_end(self, position: DLSN | None) -> bool:
        return self._end is not None and position is not None and position > self._end

    def _next_segment(self, start: DLSN | None) -> LogSegment | None:
        if start is None:
            return self._segments[0] if self._segments else None
        for segment in self._segments:
            if segment.segment_seqno == start.segment_seqno:
                return segment
        if self._segments and self._segments[0].segment_seqno > start.segment_seqno:
            raise LogTruncatedError(self.log, start, self._segments[0].first_dlsn)
        return None

    async def _fetch_segment(self, segment: LogSegment, start: DLSN) -> _Fetched:
        handle = await self._persistently(lambda: self._opened(segment))
        if handle is None:
            return _Fetched.REPLACED
        async with handle:
            reader = SegmentReader(
                segment.segment_seqno,
                await self._persistently(lambda: self._source.start_sequence_id(self._segments, segment)),
                start=None if start == segment.first_dlsn else start,
                enveloped=segment.enveloped,
                check_positions=self._config.check_positions,
            )
            next_entry_id = first_entry_id = reader.next_entry_id
            is_fresh = self._follow
            while not self._is_past_end(DLSN(segment.segment_seqno, next_entry_id, 0)):
                is_closed, last = handle.is_closed, handle.last_confirmed
                reader.confirmed(last, closed=is_closed)
                if next_entry_id <= last:
                    entries = await self._fetch_entries(handle, next_entry_id, last)
                    self._push(reader, entries)
                    next_entry_id += len(entries)
                elif is_closed:
                    if last >= 0 or not self._listed(segment).in_progress:
                        # Only here is a segment left behind: its end is decided, and was read.
                        return _Fetched.ALL
                    # An empty segment in progress is not completed by a recovery but deleted, and its number
                    # used again. Leaving it now would skip the one that takes its place.
                    if not self._follow:
                        await self._list()
                        if self._is_still_there(segment) and self._listed(segment).in_progress:
                            return _Fetched.ENOUGH
                    else:
                        await self._wait_list_change()
                    if not self._is_still_there(segment):
                        return _Fetched.REPLACED
                elif not is_fresh:
                    await self._persistently(lambda: self._refreshed(handle))
                    is_fresh = True
                elif not self._follow:
                    return _Fetched.ENOUGH
                else:
                    await self._wait_more(handle, last)
                    if not self._is_still_there(segment):
                        if next_entry_id > first_entry_id:
                            raise LogMetadataError(
                                f"log {self.log!r}: segment {segment.segment_seqno} was read up to entry "
                                f"{next_entry_id - 1} and is not in the log any more; open a new reader"
                            )
                        # A writer died before its first entry, and the next one used the number again.
                        return _Fetched.REPLACED
            return _Fetched.ENOUGH

    async def _opened(self, segment: LogSegment) -> ReadHandle | None:
        with self._source.translated(f"opening segment {segment.segment_seqno}"):
            try:
                return await self._source.open(segment)
            except NoSuchLedgerError:
                await self._list()
                if self._is_still_there(segment):
                    raise
                return None

    async def _refreshed(self, handle: ReadHandle) -> None:
        with self._source.translated("asking for the end of the log"):
            await handle.read_last_confirmed()

    async def _fetch_entries(self, handle: ReadHandle, first: int, last: int) -> list[bytes]:
        while self._ahead_bytes >= self._config.read_ahead_bytes_max:
            self._room = trio.Event()
            await self._room.wait()

        async def read() -> list[bytes]:
            with self._source.translated(f"reading entry {first} of ledger {handle.ledger_id}"):
                return await handle.read_payloads(first, last, size_bytes_max=self._config.read_bytes_max)

        return await self._persistently(read)

    def _push(self, reader: SegmentReader, entries: list[bytes]) -> None:
        size_bytes = sum(map(len, entries))
        self._chunks.append(_Chunk(reader, entries, size_bytes))
        self._ahead_bytes += size_bytes
        self._tell_news()

    def _listed(self, segment: LogSegment) -> LogSegment:
        """The segment as it was listed last."""
        return next((each for each in self._segments if each.ledger_id == segment.ledger_id), segment)

    def _is_still_there(self, segment: LogSegment) -> bool:
        return any(each.ledger_id == segment.ledger_id for each in self._segments)

    async def _wait_more(self, handle: ReadHandle, last: int) -> None:
        """Until there is an entry after ``last``, the ledger is closed, or the segments have changed."""
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                await self._list_changed.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            with self._source.translated("waiting for more"):
                await handle.wait_last_confirmed_beyond(last, timeout_s=self._config.relist_interval_s)
            nursery.cancel_scope.cancel()
        if handle.last_confirmed <= last and not handle.is_closed:
            # Woken by the list, or idle for long: a watch can be lost, a list cannot.
            await self._list()

    async def _wait_list_change(self) -> None:
        with trio.move_on_after(self._config.relist_interval_s):
            await self._list_changed.wait()
        await self._list()

    async def _pause_and_list(self) -> None:
        await trio.sleep(self._config.retry_pause_s)
        await self._list()

    async def _list(self) -> None:
        async def list_now() -> tuple[LogSegment, ...]:
            self._list_changed = trio.Event()
            return await self._source.segments(known=self._segments, watch=self._list_changed)

        self._segments = await self._persistently(list_now)

    async def _persistently(self, step: Callable[[], Awaitable[T]]) -> T:
        """Try until it works, for as long as patience lasts."""
        began_s = trio.current_time()
        pause_s = self._config.retry_pause_s
        while True:
            try:
                return await step()
            except NamespaceLostError:
                raise
            except LogUnavailableError as exc:
                stalled_s = trio.current_time() - began_s
                if stalled_s + pause_s > self._config.patience_s:
                    raise LogReaderStalledError(self.log, self.position, stalled_s, str(exc)) from exc
                logger.info("log %s: reader at %s tries again: %s", self.log, self.position, exc)
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_PAUSE_FACTOR_MAX * self._config.retry_pause_s)


@asynccontextmanager
async def open_log_reader(
    source: LogSource,
    config: ReaderConfig,
    *,
    start: DLSN | int | Start,
    end: DLSN | None = None,
    follow: bool = True,
) -> AsyncIterator[LogReader]:
    """Open a reader; see ``Namespace.open_reader``."""
    reader = LogReader(source, config, end=end, follow=follow)
    await reader._locate(start)
    async with open_service_tasks() as tasks:
        tasks.start_soon(reader._fetch)
        try:
            yield reader
        finally:
            reader._is_closed = True
            reader._tell_news()
