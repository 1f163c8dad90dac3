"""What a reader asks of a log: its segments, their ledgers, where to start, where it ends now.

Inside: listing with a watch, opening ledgers without fencing them, positioning, the last record.
Not inside: reading on (``log_reader``), changing anything: nothing here writes.
Always: errors are this package's; an open ledger is never recovered, so a reader disturbs no writer.

Source: DistributedLog, BKLogReadHandler.java, ReadUtils.java (reference 5.2, 5.7, 5.8).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import trio

from dlog.errors import (
    CorruptLogError,
    EntryFormatError,
    LogNotFoundError,
    LogTruncatedError,
    as_dlog_error,
)
from dlog.positioning import EntrySearch, Start, Stretch, first_left, segment_for_txid, stretches_given_up
from dlog.record import Record
from dlog.segment_reader import SegmentReader, last_record_of, slot_not_before
from dlog.segments import SCAN_ENTRIES_FIRST, SCAN_ENTRIES_MAX, read_entries
from ledger.client import LedgerClient
from ledger.errors import CorruptEntryError, LedgerError, NoSuchLedgerError
from ledger.handle import ReadHandle
from namespace import errors as namespace_errors
from namespace.dlsn import DLSN
from namespace.logs import list_segments
from namespace.segment import LogSegment, sequence_id_base
from namespace.store import MetadataStore


class LogSource:
    """Reads one log's metadata and ledgers."""

    def __init__(
        self, store: MetadataStore, client: LedgerClient, namespace_path: str, log: str, password: bytes
    ) -> None:
        self.log = log
        self._store, self._client = store, client
        self._namespace_path, self._password = namespace_path, password

    async def segments(
        self, *, known: Sequence[LogSegment] = (), watch: trio.Event | None = None
    ) -> tuple[LogSegment, ...]:
        """The segments in order; the watch fires when the list changes.

        Raises:
            LogNotFoundError, LogMetadataError, LogUnavailableError
        """
        with self.translated("listing segments"):
            listed = await list_segments(
                self._store, self._namespace_path, self.log, known=known, watch=watch
            )
        return listed.segments

    async def open(self, segment: LogSegment) -> ReadHandle:
        """The segment's ledger, to be closed by the caller.

        Raises:
            ledger.errors.NoSuchLedgerError: It is gone; list again. Everything else is translated.
        """
        return await self._client.open(segment.ledger_id, password=self._password, recover=False)

    async def locate(self, segments: Sequence[LogSegment], start: DLSN | int | Start) -> DLSN | None:
        """The position that a start means now; None: wherever the first segment begins, as there is none yet.

        Raises:
            LogTruncatedError: A DLSN at or behind which records are gone.
        """
        match start:
            case Start.EARLIEST:
                return first_left(segments)
            case Start.LATEST:
                return await self._behind_visible(segments)
            case DLSN():
                return await self._locate_dlsn(segments, start)
            case int():
                return await self._locate_txid(segments, start)

    async def _locate_dlsn(self, segments: Sequence[LogSegment], start: DLSN) -> DLSN:
        left = first_left(segments)
        for stretch in stretches_given_up(self.log, segments, start):
            with self.translated(
                f"looking for what was truncated in segment {stretch.segment.segment_seqno}"
            ):
                if await self._may_hold_records(stretch):
                    raise LogTruncatedError(self.log, start, left)
        # Nothing stood between here and what is left, and ledgers given up may go at any time.
        return start if left is None else max(start, left)

    async def _may_hold_records(self, stretch: Stretch) -> bool:
        segment, first, stop = stretch.segment, stretch.first, stretch.stop
        last = stop.entry_id if stop.slot_id > 0 else stop.entry_id - 1
        reader = SegmentReader(
            segment.segment_seqno, 1, start=first, enveloped=segment.enveloped, check_positions=False
        )
        reader.confirmed(last, closed=True)
        try:
            async with await self.open(segment) as handle:
                while reader.has_more:
                    begin = reader.next_entry_id
                    entries = await handle.read_payloads(begin, min(begin + SCAN_ENTRIES_MAX - 1, last))
                    records = reader.decode_run(entries)
                    if reader.is_sealed or (records and records[0].dlsn < stop):
                        return True
        except (NoSuchLedgerError, CorruptEntryError, EntryFormatError):
            return True  # nobody can say any more
        return False

    async def _behind_visible(self, segments: Sequence[LogSegment]) -> DLSN | None:
        for segment in reversed(segments):
            if not segment.in_progress:
                return segment.first_dlsn.next_segment()
            last = await self._confirmed(segment)
            # While a writer rolls, the new segment shows nothing yet and the old one may not show its tail.
            if last >= 0 or segment is segments[0]:
                return DLSN(segment.segment_seqno, last + 1, 0)
        return None

    async def _locate_txid(self, segments: Sequence[LogSegment], txid: int) -> DLSN | None:
        left = first_left(segments)
        segment = segment_for_txid(segments, txid)
        while segment is not None:
            with self.translated(f"looking for txid {txid} in segment {segment.segment_seqno}"):
                async with await self.open(segment) as handle:
                    is_closed, last = handle.is_closed, handle.last_confirmed
                    first = 0
                    if left is not None and left.segment_seqno == segment.segment_seqno:
                        first = max(0, left.entry_id)
                    search = EntrySearch(first, last)
                    while (entry_id := search.next_entry_id) is not None:
                        (entry, *_) = await handle.read_payloads(entry_id, entry_id)
                        with self.decoding(DLSN(segment.segment_seqno, entry_id, 0)):
                            search.looked(slot_not_before(entry, txid, enveloped=segment.enveloped))
            if search.found is not None:
                return max(DLSN(segment.segment_seqno, *search.found), left or segment.first_dlsn)
            following = [each for each in segments if each.segment_seqno > segment.segment_seqno]
            if not is_closed or not following:
                # What an open ledger does not show yet may hold the record, also when a segment follows it:
                # a writer that rolls starts the new one first. Whoever reads leaves out lesser ids.
                return max(DLSN(segment.segment_seqno, last + 1, 0), left or segment.first_dlsn)
            segment = following[0]
        return segments[-1].first_dlsn.next_segment() if segments else None

    async def start_sequence_id(self, segments: Sequence[LogSegment], segment: LogSegment) -> int:
        """The sequence id of a segment's first record, also while the one before it is still in progress.

        Then it counts what the older ledger shows: too few only behind a writer that did not, as
        ``segment_keeper`` does, make all of a segment visible before it began the next.
        """
        before = next((each for each in segments if each.segment_seqno == segment.segment_seqno - 1), None)
        if not segment.in_progress or before is None or not before.in_progress:
            return sequence_id_base(segment, before)
        # Two segments are in progress for a moment when a writer rolls, and for longer if it died in it. The
        # older one is whole by then, so its last record tells how many it has.
        return await self.start_sequence_id(segments, before) + await self.visible_count(before)

    async def visible_count(self, segment: LogSegment) -> int:
        """How many records of a segment in progress can be read now."""
        with self.translated(f"counting the records of segment {segment.segment_seqno}"):
            async with await self.open(segment) as handle:
                last = handle.last_confirmed
                if last < 0:
                    return 0
                (entry, *_) = await handle.read_payloads(last, last)
                with self.decoding(DLSN(segment.segment_seqno, last, 0)):
                    found = last_record_of(entry, enveloped=segment.enveloped)
                return 0 if found is None else found[1]

    async def last_record(self, segments: Sequence[LogSegment]) -> Record | None:
        """The last user record visible now; None if there is none.

        Its ``sequence_id`` counts from 1 in its segment: what precedes the segment is not looked at.
        """
        for segment in reversed(segments):
            with self.translated(f"looking for the last record of segment {segment.segment_seqno}"):
                async with await self.open(segment) as handle:
                    record = await self._last_user_record(handle, segment)
            if record is not None:
                return record
        return None

    async def _last_user_record(self, handle: ReadHandle, segment: LogSegment) -> Record | None:
        stop, window = handle.last_confirmed + 1, SCAN_ENTRIES_FIRST
        while stop > 0:
            first = max(0, stop - window)
            entries = await read_entries(handle, first, stop - 1)
            for entry_id, entry in reversed(list(enumerate(entries, first))):
                reader = SegmentReader(
                    segment.segment_seqno,
                    1,
                    start=DLSN(segment.segment_seqno, entry_id, 0),
                    enveloped=segment.enveloped,
                )
                reader.confirmed(entry_id, closed=False)
                with self.decoding(DLSN(segment.segment_seqno, entry_id, 0)):
                    records = reader.decode_run([entry])
                if records:
                    return records[-1]
            stop, window = first, min(2 * window, SCAN_ENTRIES_MAX)
        return None

    async def _confirmed(self, segment: LogSegment) -> int:
        with self.translated(f"asking for the end of segment {segment.segment_seqno}"):
            async with await self.open(segment) as handle:
                return handle.last_confirmed  # opening asked for it

    @contextmanager
    def translated(self, doing: str) -> Iterator[None]:
        """Turn what the packages below raise into this one's errors."""
        try:
            yield
        except namespace_errors.LogNotFoundError as exc:
            raise LogNotFoundError(self.log) from exc
        except (LedgerError, namespace_errors.NamespaceError) as exc:
            raise as_dlog_error(exc, self.log, doing) from exc

    @contextmanager
    def decoding(self, position: DLSN) -> Iterator[None]:
        """Say where it is that an entry does not decode."""
        try:
            yield
        except EntryFormatError as exc:
            raise CorruptLogError(self.log, position, str(exc)) from exc
