"""Fetching the entries of a log ahead of the caller, from one segment to the next and at the tail.

Inside: the one task that fetches, within a limit of bytes; following the list of segments; retries.
Not inside: records (``log_reader``, ``segment_reader``), positions (``read_only_log``).
Always: the task leaves a segment only when its ledger is closed, was read to its end, and cannot be replaced
by another ledger of the same number, so no record is skipped; the task lists the segments again at intervals,
so a lost watch delays it but does not stop it; reads that keep failing end in ``LogReaderStalledError``, in
``LogTruncatedError`` if their segment was truncated and purged, and in ``CorruptLogError`` if no replica will
return the entry, so that waiting helps nobody.

Source: DistributedLog, BKLogReadHandler.java, ReadAheadEntryReader.java (docs/stream-format.md 7). The rules
above prevent apache/distributedlog issue 244 and apache/bookkeeper issues 1973 and 2898.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NoReturn, TypeVar

import attrs
import trio

from dlog.config import ReaderConfig
from dlog.contained import contained_error
from dlog.errors import (
    CorruptLogError,
    DLogError,
    EntryFormatError,
    LogMetadataError,
    LogReaderStalledError,
    LogTruncatedError,
    LogUnavailableError,
    SegmentGapError,
    translated,
)
from dlog.format.large_record import parts_before
from dlog.format.record import Record
from dlog.read.gaps import is_gone
from dlog.read.positioning import Start, last_before
from dlog.read.read_only_log import ReadOnlyLog, why_gone
from dlog.read.segment_reader import SegmentReader
from dlog.retry_policy import RetryPolicy
from dlog.statistics_names import BYTES_FETCHED, ENTRIES_FETCHED
from ledger.errors import LedgerReadError, NoSuchLedgerError
from ledger.handle import ReadHandle
from ledger.runtime.tasks.background import open_background
from namespace.dlsn import DLSN
from namespace.heal_node import Heal, in_same_segment
from namespace.segments.segment import LogSegment, TruncationStatus
from namespace.segments.truncation import first_left

T = TypeVar("T")
RELIST_FACTOR_MAX = 6  # how much rarer than at first an idle reader lists the segments in the end


@attrs.frozen
class Chunk:
    """Entries of one segment, fetched and not yet decoded."""

    segment: SegmentReader
    entries: list[bytes]
    size_bytes: int


class _Fetched(enum.Enum):
    """How far a segment was fetched."""

    ALL = "to its end, which is decided"
    ENOUGH = "as far as the caller wants"
    REPLACED = "not at all: another ledger took its place"


class ReadAhead:
    """Fetches entries into ``chunks``. Call ``locate``, then run ``run`` in a task.

    Args:
        end: The last position to fetch, inclusive; LATEST: the last one visible when ``locate`` is called;
            None for no end.
        follow: Wait for new entries at the end of the log; False to stop there.
        position: The caller's position, for errors and log lines.
        reports_gone: Raise CorruptLogError at once for data that no bookie or no metadata has; False: only if
            they are missing once more after a pause, by the newest metadata.
    """

    def __init__(
        self,
        log: ReadOnlyLog,
        config: ReaderConfig,
        *,
        end: DLSN | Start | None,
        follow: bool,
        position: Callable[[], DLSN | None],
        reports_gone: bool = False,
    ) -> None:
        self.chunks: deque[Chunk] = deque()
        self.size_bytes = 0  # of the chunks
        self.is_over = False  # nothing more will be fetched
        self.active_s = trio.current_time()  # when the last entry arrived, or fetching could continue
        self.error: DLogError | None = None  # why the task ended; raised after the chunks before it
        self._log, self._config, self._counts = log, config, log.counts
        self._end, self._follow, self._position = end, follow, position
        self._reports_gone = reports_gone
        self._gone_at: DLSN | None = None  # where data were missing by one look
        self._cancelling = trio.CancelScope()
        self._retry_policy = RetryPolicy(timeout_s=config.retry_timeout_s, pause_s=config.retry_pause_s)
        self._segments: tuple[LogSegment, ...] = ()
        self._left: LogSegment | None = None  # the segment that was read to its end last
        self._heals: tuple[Heal, ...] = ()  # the ledgers that were replaced by others, as far as needed
        self._list_changed = trio.Event()
        self._relisted = trio.Event()  # a new ``_list_changed`` is in place
        self._relist_after_s = config.relist_interval_s
        self._start: DLSN | None = None
        self._resume_at: DLSN | None = None  # in a segment whose ledger was replaced by an equal one
        self._changed, self._capacity = trio.Event(), trio.Event()
        self._waiting: ReadHandle | None = None  # while the task waits for more of a segment

    # For the caller's tasks.

    async def locate(self, start: DLSN | int | Start) -> DLSN | None:
        """Find the position of a start; see ``ReadOnlyLog.locate``. ``run`` begins there."""
        await self._list()
        if isinstance(self._end, Start):
            self._end = last_before(await self._located(self._end))
        self._start = await self._located(start)
        return self._start

    async def origin(self) -> str:
        """The name that the log's records are bound to; see ``ReadOnlyLog.origin``."""
        return await self._persistently(self._log.origin)

    async def _located(self, start: DLSN | int | Start) -> DLSN | None:
        async def locate() -> DLSN | None:
            try:
                return await self._log.locate(self._segments, start)
            except LogUnavailableError:
                # A recovery deletes a segment that it finds empty: the list may name a ledger that is gone.
                await self._list()
                raise

        return await self._persistently(locate)

    @property
    def end(self) -> DLSN | Start | None:
        """The last position to fetch; a DLSN once ``locate`` has found LATEST."""
        return self._end

    async def wait_change(self) -> None:
        """Return after the next chunk, the end of the task, or ``wake``."""
        await self._changed.wait()

    def wake(self) -> None:
        """Wake every task in ``wait_change``; each looks again at the state."""
        self._changed.set()
        self._changed = trio.Event()

    def drop_first(self) -> None:
        """Remove the first chunk; its entries are decoded."""
        if self.size_bytes >= self._config.read_ahead_bytes_max:
            self.active_s = trio.current_time()  # fetching stood still, so no entry could arrive
        self.size_bytes -= self.chunks.popleft().size_bytes
        self._capacity.set()

    def is_past_end(self, position: DLSN | None) -> bool:
        """True if the position, or None for the log's first record, lies after the last one to fetch."""
        return isinstance(self._end, DLSN) and (position or DLSN(0, 0, 0)) > self._end

    def cut(self, records: Sequence[Record]) -> Sequence[Record]:
        """The records up to the last one to fetch."""
        if not isinstance(self._end, DLSN) or not records or records[-1].dlsn <= self._end:
            return records
        return records[: bisect_right(records, self._end, key=lambda record: record.dlsn)]

    def stop(self) -> None:
        """Fetch no more."""
        self._cancelling.cancel()

    # The fetching task.

    async def run(self) -> None:
        """Fetch until the end; for a task. If ``error`` is set, there is nothing to fetch."""
        if self.error is None:
            try:
                with self._cancelling:
                    async with open_background() as background:
                        background.start_soon(self._watch_list)
                        await self._follow_segments()
            except DLogError as exc:
                self.error = exc
            except Exception as exc:  # ends this reader; its caller's other work continues
                self.error = contained_error("reader of a log", self._log.name, exc)
        self.is_over = True
        self.wake()

    async def _follow_segments(self) -> None:
        start = self._start
        while not self.is_past_end(start):
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
                    self._left = segment
                    start = segment.first_dlsn.next_segment()
                case _Fetched.REPLACED:
                    start = self._resume_at or start
                    await self._pause_and_list()
                case _Fetched.ENOUGH:
                    return

    def _next_segment(self, start: DLSN | None) -> LogSegment | None:
        if start is None:
            return self._segments[0] if self._segments else None
        for segment in self._segments:
            if segment.segment_seqno == start.segment_seqno:
                return segment
        if self._segments and self._segments[0].segment_seqno > start.segment_seqno:
            raise LogTruncatedError(self._log.name, start, self._segments[0].first_dlsn)
        if self._segments and self._segments[-1].segment_seqno > start.segment_seqno:
            raise SegmentGapError(self._log.name, f"there is no segment {start.segment_seqno}", start)
        return None

    async def _fetch_segment(self, segment: LogSegment, start: DLSN) -> _Fetched:
        self._resume_at = None
        handle = await self._persistently(lambda: self._opened(segment, start))
        if handle is None:
            return _Fetched.REPLACED
        async with handle:
            reader = SegmentReader(
                segment.segment_seqno,
                await self._persistently(lambda: self._log.start_sequence_id(self._segments, segment)),
                start=None if start == segment.first_dlsn else start,
                enveloped=segment.enveloped,
                check_positions=self._config.check_positions,
            )
            next_entry_id = first_entry_id = reader.next_entry_id
            looks_back = next_entry_id > 0 and segment.enveloped
            is_fresh = self._follow
            seen: tuple[LogSegment, ...] | None = None  # the list that ``is_over`` is true of
            is_over = False
            while not self.is_past_end(DLSN(segment.segment_seqno, next_entry_id, 0)):
                is_closed, last = handle.is_closed, handle.last_confirmed
                reader.confirmed(last, closed=is_closed)
                if next_entry_id <= last:
                    entries: list[bytes] | None = None
                    if self.size_bytes < self._config.read_ahead_bytes_max:
                        entries = handle.take_recent(next_entry_id, last)
                    if not entries:
                        entries = await self._fetch_entries(segment, handle, next_entry_id, last)
                    if entries is None:
                        if next_entry_id > first_entry_id:
                            self._resume_at = max(start, DLSN(segment.segment_seqno, next_entry_id, 0))
                        return _Fetched.REPLACED
                    if looks_back:
                        looks_back = False
                        first_entry_id = await self._first_part(segment, handle, start, entries[0])
                        if first_entry_id < next_entry_id:
                            next_entry_id = first_entry_id
                            reader.begin_at(first_entry_id)
                            continue
                    self._push(reader, entries)
                    next_entry_id += len(entries)
                elif is_closed:
                    if last >= 0 or not self._listed(segment).in_progress:
                        # The only place where the task leaves a segment: the end is decided and was read.
                        return _Fetched.ALL
                    if (fate := await self._fate_of_empty(segment)) is not None:
                        return fate
                elif not is_fresh:
                    await self._persistently(lambda: self._refreshed(handle))
                    is_fresh = True
                elif not self._follow:
                    return _Fetched.ENOUGH
                else:
                    await self._wait_more(handle, last)
                    # The copy of a log that was moved may have the same ledger id there, and is completed.
                    if self._segments is not seen:
                        seen = self._segments
                        is_over = not (self._is_still_listed(segment) and self._listed(segment).in_progress)
                    if is_over and await self._persistently(lambda: self._log.has_moved(handle)):
                        if next_entry_id > first_entry_id:
                            self._resume_at = max(start, DLSN(segment.segment_seqno, next_entry_id, 0))
                        return _Fetched.REPLACED
                    if is_over and not self._is_still_listed(segment):
                        if next_entry_id > first_entry_id:
                            await self._raise_gone(segment, next_entry_id)
                        # A writer died before its first entry, and the next writer used the number again.
                        return _Fetched.REPLACED
            return _Fetched.ENOUGH

    async def _fate_of_empty(self, segment: LogSegment) -> _Fetched | None:
        """Look again at a closed segment without entries; None: it is still there, or was completed.

        A recovery does not complete an empty segment. It deletes the segment, and its number is used again.
        Leaving the segment now would skip the one that takes its place.
        """
        if self._follow:
            await self._wait_list_change()
        else:
            await self._list()
            if self._is_still_listed(segment) and self._listed(segment).in_progress:
                return _Fetched.ENOUGH
        return None if self._is_still_listed(segment) else _Fetched.REPLACED

    async def _raise_gone(self, segment: LogSegment, next_entry_id: int) -> NoReturn:
        """Raise the reason why a segment that was read in part is gone from the log."""
        if self._segments and self._segments[0].segment_seqno > segment.segment_seqno:
            raise LogTruncatedError(
                self._log.name,
                DLSN(segment.segment_seqno, next_entry_id, 0),
                first_left(self._segments),
            )
        # The deletion of a log begins with its segments; its end is LogNotFoundError.
        await self._pause_and_list()
        raise LogMetadataError(
            f"log {self._log.name!r}: segment {segment.segment_seqno} was read up to"
            f" entry {next_entry_id - 1} and is gone from the log; open a new reader"
        )

    async def _first_part(self, segment: LogSegment, handle: ReadHandle, start: DLSN, entry: bytes) -> int:
        """The entry to begin with: an earlier one if the start lies between the parts of a large record.

        Args:
            entry: The entry at the start.
        """
        try:
            first = start.entry_id - parts_before(entry, after_head=start.slot_id > 0)
        except EntryFormatError:
            first = start.entry_id  # the decoder reports it
        if self._reports_gone:
            try:
                for each in range(first, start.entry_id):
                    await self._fetch_entries(segment, handle, each, each)
            except CorruptLogError:
                first = start.entry_id  # the record is gone. A gap before the start would lead here again.
        return max(first, 0)

    async def _opened(self, segment: LogSegment, start: DLSN) -> ReadHandle | None:
        with translated(self._log.name, f"opening segment {segment.segment_seqno}"):
            try:
                return await self._log.open(segment)
            except NoSuchLedgerError as exc:
                if await self._check_purged(segment, segment.first_dlsn):
                    return None
                await self._list()
                if not self._is_still_listed(segment):
                    return None
                # A recovery may be about to delete a segment in progress.
                if not self._listed(segment).in_progress:
                    if self._reports_gone or self._gone_at == start:
                        raise CorruptLogError(self._log.name, start, str(exc)) from None
                    self._gone_at = start
                raise

    async def _refreshed(self, handle: ReadHandle) -> None:
        with translated(self._log.name, "asking for the end of the log"):
            await handle.read_last_confirmed()

    async def _fetch_entries(
        self, segment: LogSegment, handle: ReadHandle, first: int, last: int
    ) -> list[bytes] | None:
        """The next entries; None if the segment is in another ledger now: the log was moved and purged, or
        the segment was healed."""
        while self.size_bytes >= self._config.read_ahead_bytes_max:
            self._capacity = trio.Event()
            await self._capacity.wait()

        async def read() -> list[bytes] | None:
            with translated(self._log.name, f"reading entry {first} of ledger {handle.ledger_id}"):
                try:
                    return await handle.read_payloads(first, last, size_bytes_max=self._config.read_bytes_max)
                except (LedgerReadError, NoSuchLedgerError) as exc:
                    if await self._log.has_moved(handle):
                        return None
                    position = DLSN(segment.segment_seqno, first, 0)
                    if await self._check_purged(segment, position):
                        return None
                    if is_gone(exc) and await self._is_gone_again(segment, position):
                        raise CorruptLogError(self._log.name, position, str(exc)) from None
                    raise

        return await self._persistently(read)

    async def _is_gone_again(self, segment: LogSegment, position: DLSN) -> bool:
        """True if an entry that is gone by one look is gone by another one, after a pause."""
        if self._reports_gone:
            return True  # the caller takes the other look
        if self._gone_at != position:
            self._gone_at = position
            return False
        # A new handle has the newest metadata: the entry may have been copied to other bookies since.
        async with await self._log.open(segment) as handle:
            return await why_gone(handle, position.entry_id) is not None

    async def _check_purged(self, segment: LogSegment, position: DLSN) -> bool:
        """Return True if the segment is in another ledger now, which ``_segments`` then has.

        Raises:
            LogTruncatedError: The segment is truncated, so that its ledger may be deleted.
        """
        # Not from the segments known: a change of truncation or ledger shows only in a segment read again.
        listed = await self._log.segments()
        await self._note_heals(listed, segment)
        healed = None
        for each in listed:
            if self._are_same(each, segment):
                healed = each if each.ledger_id != segment.ledger_id else None
                is_purged = each.truncation is TruncationStatus.TRUNCATED
                break
        else:
            # Of another kind: a segment that a recovery found empty and deleted, or a log that was deleted.
            is_purged = bool(listed) and listed[0].segment_seqno > segment.segment_seqno
        if is_purged:
            raise LogTruncatedError(self._log.name, position, first_left(listed))
        if healed is None:
            return False
        self._segments = tuple(healed if self._are_same(each, healed) else each for each in self._segments)
        return True

    async def _note_heals(self, listed: Sequence[LogSegment], *known: LogSegment) -> None:
        """Look for heals if a known segment has another ledger in the list."""
        ledgers = {each.segment_seqno: each.ledger_id for each in listed}
        if any(ledgers.get(each.segment_seqno, each.ledger_id) != each.ledger_id for each in known):
            self._heals = await self._log.heals()

    def _push(self, reader: SegmentReader, entries: list[bytes]) -> None:
        self.active_s = trio.current_time()
        self._relist_after_s = self._config.relist_interval_s
        size_bytes = sum(map(len, entries))
        self.chunks.append(Chunk(reader, entries, size_bytes))
        self._counts[ENTRIES_FETCHED] += len(entries)
        self._counts[BYTES_FETCHED] += size_bytes
        self.size_bytes += size_bytes
        self.wake()

    def _listed(self, segment: LogSegment) -> LogSegment:
        """The segment as it was listed last."""
        return next((each for each in self._segments if self._are_same(each, segment)), segment)

    def _is_still_listed(self, segment: LogSegment) -> bool:
        return any(self._are_same(each, segment) for each in self._segments)

    async def _wait_more(self, handle: ReadHandle, last: int) -> None:
        """Wait until there is an entry after ``last``, the ledger is closed, or the segments have changed."""
        if not self._list_changed.is_set():
            self._waiting = handle
            try:
                with translated(self._log.name, "waiting for more"):
                    await handle.wait_last_confirmed_beyond(last, timeout_s=self._relist_after_s)
            finally:
                self._waiting = None
        if handle.last_confirmed <= last and not handle.is_closed:
            # The list changed, or nothing came for the whole interval. A watch can be lost, so list again.
            await self._list_in_vain()

    async def _watch_list(self) -> None:
        """End the wait for more when the segments have changed. One task for all waits: a wait is short."""
        while True:
            changed = self._list_changed
            await changed.wait()
            if self._waiting is not None:
                self._waiting.end_waits()
            while self._list_changed is changed:
                await self._relisted.wait()

    async def _wait_list_change(self) -> None:
        with trio.move_on_after(self._relist_after_s):
            await self._list_changed.wait()
        await self._list_in_vain()

    async def _list_in_vain(self) -> None:
        """List the segments; the longer that and the entries show nothing new, the later the next time."""
        known = self._segments
        await self._list()
        if self._segments == known:
            longest = RELIST_FACTOR_MAX * self._config.relist_interval_s
            self._relist_after_s = min(2 * self._relist_after_s, longest)
        else:
            self._relist_after_s = self._config.relist_interval_s

    async def _pause_and_list(self) -> None:
        await trio.sleep(self._config.retry_pause_s)
        await self._list()

    async def _list(self) -> None:
        async def list_now() -> tuple[LogSegment, ...]:
            self._list_changed = trio.Event()
            self._relisted.set()
            self._relisted = trio.Event()
            listed = await self._log.segments(known=self._segments, watch=self._list_changed)
            await self._note_heals(listed, *self._segments, *([] if self._left is None else [self._left]))
            return listed

        self._segments = await self._persistently(list_now)
        if self._left is not None:
            now = self._listed(self._left)  # a heal may have given it another ledger
            self._left = attrs.evolve(self._left, ledger_id=now.ledger_id)
            self._log.check_still_same(self._left, self._segments)

    async def _persistently(self, step: Callable[[], Awaitable[T]]) -> T:
        """Repeat the step while it raises LogUnavailableError.

        Raises:
            LogReaderStalledError: The retry timeout ended.
        """
        return await self._retry_policy.until_done(
            step,
            subject=lambda: f"log {self._log.name}: reader at {self._position()}",
            on_timeout=lambda exc, stalled_s: LogReaderStalledError(
                self._log.name, self._position(), stalled_s, str(exc)
            ),
        )

    def _are_same(self, one: LogSegment, other: LogSegment) -> bool:
        """True if both are states of one segment. Ledgers of two clusters may have the same id."""
        number = one.segment_seqno
        return number == other.segment_seqno and (
            one.ledger_id == other.ledger_id
            or in_same_segment(self._heals, number, one.ledger_id, other.ledger_id)
        )
