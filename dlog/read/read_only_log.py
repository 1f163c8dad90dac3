"""One log for its readers: its segments, their ledgers, where to start, where it ends now.

Inside: listing with a watch, opening ledgers without fencing them, positioning, the last record.
Not inside: reading from a position on (``log_reader``). No call here writes.
Always: errors are those of ``dlog.errors``; a ledger is never recovered, so a reader does not disturb the
writer.

Source: DistributedLog, BKLogReadHandler.java, ReadUtils.java (docs/stream-format.md 7.1, 7.5, 7.6).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import trio

from dlog.description import EntryTotals
from dlog.errors import (
    CorruptLogError,
    EntryFormatError,
    LogNotFoundError,
    LogRenamedError,
    LogTruncatedError,
    translated,
)
from dlog.format.large_record import parts_before
from dlog.format.record import Record
from dlog.read.entries import SCAN_ENTRIES_FIRST, SCAN_ENTRIES_MAX, open_segment_ledger, read_entries
from dlog.read.gaps import is_gone
from dlog.read.positioning import (
    EntrySearch,
    Start,
    TruncatedRange,
    segment_for_txid,
    truncated_ranges,
)
from dlog.read.segment_reader import SegmentReader, last_record_of, slot_not_before
from ledger.client import LedgerClient
from ledger.errors import CorruptEntryError, LedgerReadError, NoSuchLedgerError
from ledger.handle import ReadHandle
from ledger.read.replica_check import ReplicaCheck
from ledger.runtime.statistics import Recorder
from ledger.runtime.statistics.tracing import Attribute, Span
from namespace.dlsn import DLSN
from namespace.heal_node import Heal, read_heals
from namespace.log_nodes import LogNodes
from namespace.origin import log_not_found, read_origin
from namespace.segment_nodes import list_segments
from namespace.segments.segment import LogSegment, sequence_id_base
from namespace.segments.segment_list import check_still_same_log
from namespace.segments.truncation import first_left


class ReadOnlyLog:
    """Reads one log's metadata and ledgers."""

    def __init__(
        self,
        nodes: LogNodes,
        client: LedgerClient,
        password: bytes | None,
    ) -> None:
        self.nodes, self.name = nodes, nodes.name
        self.gaps_ok = False  # list segments although some are missing in between
        self._client, self._password = client, password

    @property
    def recorder(self) -> Recorder:
        """Where the writers and readers of this log count."""
        return self._client.recorder

    @property
    def counts(self) -> dict[str, int]:
        """The counters of the client by name."""
        return self.recorder.counts

    def operation(
        self, name: str, span: str | None = None, **attributes: Attribute
    ) -> AbstractContextManager[Span | None]:
        """Measure and trace the block, if that is turned on; see ``Recorder.operation``."""
        return self.recorder.operation(name, span, log=self.name, **attributes)

    async def segments(
        self, *, known: Sequence[LogSegment] = (), watch: trio.Event | None = None
    ) -> tuple[LogSegment, ...]:
        """The segments in order; the watch fires when the list changes.

        Raises:
            LogNotFoundError, LogMetadataError, LogUnavailableError
        """
        with translated(self.name, "listing segments"):
            try:
                listed = await list_segments(self.nodes, known=known, watch=watch, gaps_ok=self.gaps_ok)
            except LogNotFoundError as exc:
                renamed = await log_not_found(self.nodes)
                raise renamed if isinstance(renamed, LogRenamedError) else exc from None
        return listed.segments

    async def origin(self) -> str:
        """The name that the log's records are bound to; see ``namespace.origin``.

        Raises:
            LogMetadataError, LogUnavailableError
        """
        with translated(self.name, "reading its origin"):
            return await read_origin(self.nodes)

    async def open(self, segment: LogSegment) -> ReadHandle:
        """Open the segment's ledger; the caller closes it.

        Raises:
            ledger.errors.NoSuchLedgerError: The ledger is deleted; list the segments again.
            ledger.errors.LedgerError: The caller translates it.
        """
        return await open_segment_ledger(self._client, segment.ledger_id, self._password, recover=False)

    async def replica_check(self, segment: LogSegment) -> ReplicaCheck:
        """Access to every replica of the segment's entries.

        Raises: what ``LedgerClient.replica_check`` raises; the caller translates it.
        """
        return await self._client.replica_check(segment.ledger_id, password=self._password or b"")

    def check_still_same(self, left: LogSegment, listed: Sequence[LogSegment]) -> None:
        """Raise if the segments listed now belong to another log than the one that was read; see
        ``segment_list.check_still_same_log``."""
        check_still_same_log(self.name, left, listed)

    async def heals(self) -> tuple[Heal, ...]:
        """The ledgers of segments that were replaced by copies.

        Raises:
            LogMetadataError, LogUnavailableError
        """
        with translated(self.name, "reading its heals"):
            return (await read_heals(self.nodes)).heals

    async def has_moved(self, handle: ReadHandle) -> bool:
        """True if the entries of a segment that was opened are in another ledger now: open it again."""
        return False

    async def locate(self, segments: Sequence[LogSegment], start: DLSN | int | Start) -> DLSN | None:
        """The position of a start now; None for the first record of a log that has no segment yet.

        Raises:
            LogTruncatedError: The start is a DLSN, and a record at it or after it is truncated.
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
        for truncated in truncated_ranges(self.name, segments, start):
            with translated(
                self.name, f"looking for truncated records in segment {truncated.segment.segment_seqno}"
            ):
                if await self._may_hold_records(truncated):
                    raise LogTruncatedError(self.name, start, left)
        # No record lies between the start and the first position left. A truncated ledger may be deleted at
        # any time, so the reader starts at the position left.
        return start if left is None else max(start, left)

    async def _may_hold_records(self, truncated: TruncatedRange) -> bool:
        segment, first, stop = truncated.segment, truncated.first, truncated.stop
        last = stop.entry_id if stop.slot_id > 0 else stop.entry_id - 1
        reader = SegmentReader(
            segment.segment_seqno,
            1,
            start=first,
            enveloped=segment.enveloped,
            check_positions=False,
            joins=False,
        )
        reader.confirmed(last, closed=True)
        try:
            async with await self.open(segment) as handle:
                while reader.has_more:
                    begin = reader.next_entry_id
                    entries = await handle.read_payloads(begin, min(begin + SCAN_ENTRIES_MAX - 1, last))
                    for entry in entries:
                        records = reader.decode_all([entry])
                        if reader.is_sealed or (records and records[0].dlsn < stop):
                            return True
        except (NoSuchLedgerError, CorruptEntryError, EntryFormatError):
            return True  # the records cannot be read any more
        return False

    async def _behind_visible(self, segments: Sequence[LogSegment]) -> DLSN | None:
        for segment in reversed(segments):
            if not segment.in_progress:
                return segment.first_dlsn.next_segment()
            last = await self._confirmed(segment)
            # While a writer rolls, the new segment shows no entry yet, and the old one may not show its last.
            if last >= 0 or segment is segments[0]:
                return DLSN(segment.segment_seqno, last + 1, 0)
        return None

    async def _locate_txid(self, segments: Sequence[LogSegment], txid: int) -> DLSN | None:
        left = first_left(segments)
        segment = segment_for_txid(segments, txid)
        while segment is not None:
            with translated(self.name, f"looking for txid {txid} in segment {segment.segment_seqno}"):
                async with await self.open(segment) as handle:
                    is_closed, last = handle.is_closed, handle.last_confirmed
                    first = 0
                    if left is not None and left.segment_seqno == segment.segment_seqno:
                        first = max(0, left.entry_id)
                    search = EntrySearch(first, last)
                    while (entry_id := search.next_entry_id) is not None:
                        (entry, *_) = await handle.read_payloads(entry_id, entry_id)
                        with self.decoding(DLSN(segment.segment_seqno, entry_id, 0)):
                            search.searched(slot_not_before(entry, txid, enveloped=segment.enveloped))
            if search.found is not None:
                return max(DLSN(segment.segment_seqno, *search.found), left or segment.first_dlsn)
            following = [each for each in segments if each.segment_seqno > segment.segment_seqno]
            if not is_closed or not following:
                # The record may be in an entry that the open ledger does not show yet, also if there is a
                # later segment: a rolling writer starts the new segment first. The reader drops lower ids.
                return max(DLSN(segment.segment_seqno, last + 1, 0), left or segment.first_dlsn)
            segment = following[0]
        return segments[-1].first_dlsn.next_segment() if segments else None

    async def start_sequence_id(self, segments: Sequence[LogSegment], segment: LogSegment) -> int:
        """The sequence id of a segment's first record, also while the segment before it is in progress.

        In that case it counts the records that the older ledger shows. The count is too low only if another
        kind of writer did not make a segment visible before it began the next one; ``writer_machine`` does.
        """
        before = next((each for each in segments if each.segment_seqno == segment.segment_seqno - 1), None)
        if not segment.in_progress or before is None or not before.in_progress:
            return sequence_id_base(segment, before)
        # Two segments are in progress while a writer rolls, and longer if it died during the roll. The older
        # one is complete by then, so the position of its last record is its number of records.
        return await self.start_sequence_id(segments, before) + await self.visible_count(before)

    async def visible_count(self, segment: LogSegment) -> int:
        """The number of records of a segment in progress that can be read now."""
        with translated(self.name, f"counting the records of segment {segment.segment_seqno}"):
            async with await self.open(segment) as handle:
                last = handle.last_confirmed
                if last < 0:
                    return 0
                (entry, *_) = await handle.read_payloads(last, last)
                with self.decoding(DLSN(segment.segment_seqno, last, 0)):
                    found = last_record_of(entry, enveloped=segment.enveloped)
                return 0 if found is None else found[1]

    async def count_from(
        self, segments: Sequence[LogSegment], position: DLSN, end: DLSN | None = None
    ) -> int:
        """The number of records at or after a position, and before ``end``, that can be read now.

        Truncated records count until their segments are deleted.
        """
        count = 0
        for segment in segments:
            if segment.segment_seqno < position.segment_seqno:
                continue
            if end is not None and segment.segment_seqno > end.segment_seqno:
                break
            total = await self.visible_count(segment) if segment.in_progress else segment.record_count
            found = await self._count_in(segment, position, total)
            if end is not None and segment.segment_seqno == end.segment_seqno:
                found -= await self._count_in(segment, end, total)
            count += max(0, found)
        return count

    async def _count_in(self, segment: LogSegment, position: DLSN, total: int) -> int:
        """The records of a segment at or after a position, of the first ``total`` ones."""
        if segment.segment_seqno != position.segment_seqno or position <= segment.first_dlsn or not total:
            return total
        record = await self._first_record(segment, position, -1)
        # Records may have been added since ``total`` was counted.
        return 0 if record is None else max(0, total - record.sequence_id + 1)

    async def _first_record(
        self, segment: LogSegment, position: DLSN, txid_min: int, *, is_whole: bool = False
    ) -> Record | None:
        """The first user record at or after a position of a segment with at least this transaction id.

        Its ``sequence_id`` counts from 1 in the segment.

        Args:
            is_whole: A large record has the payload of all its parts.
        """
        with translated(self.name, f"looking for records in segment {segment.segment_seqno}"):
            async with await self.open(segment) as handle:
                reader = SegmentReader(
                    segment.segment_seqno,
                    1,
                    start=position,
                    enveloped=segment.enveloped,
                    check_positions=False,
                    joins=False,
                )
                reader.confirmed(handle.last_confirmed, closed=True)
                while reader.has_more:
                    begin = reader.next_entry_id
                    end = min(begin + SCAN_ENTRIES_MAX - 1, handle.last_confirmed)
                    for entry in await read_entries(handle, begin, end):
                        with self.decoding(reader.position):
                            records = reader.decode_all([entry])
                        for record in records:
                            if record.txid >= txid_min:
                                return (
                                    await self._joined(handle, segment, entry, record) if is_whole else record
                                )
        return None

    async def _joined(self, handle: ReadHandle, segment: LogSegment, entry: bytes, record: Record) -> Record:
        """A record of this entry with the payload of its parts in the entries before."""
        last = record.dlsn.entry_id
        with self.decoding(record.dlsn):
            parts = parts_before(entry, after_head=False) if segment.enveloped else 0
        if not parts:
            return record
        first = DLSN(segment.segment_seqno, last - parts, 0)
        reader = SegmentReader(segment.segment_seqno, 1, start=first, check_positions=False)
        reader.confirmed(last, closed=False)
        entries = await read_entries(handle, first.entry_id, last)
        with self.decoding(first):
            found = next(one for one in reader.decode_all(entries) if one.dlsn == record.dlsn)
        return record.with_payload(found.payload)

    async def entry_totals(
        self, segments: Sequence[LogSegment], entries: Sequence[tuple[int, int]]
    ) -> list[EntryTotals | None]:
        """Records and bytes of segments up to and including an entry; None for an entry that is missing."""
        found: dict[tuple[int, int], EntryTotals] = {}
        for segment in segments:
            wanted = sorted({entry for number, entry in entries if number == segment.segment_seqno})
            if not wanted:
                continue
            with translated(self.name, f"looking at entries of segment {segment.segment_seqno}"):
                try:
                    opened = await self.open(segment)
                except NoSuchLedgerError:
                    continue  # it was purged just now
                async with opened as handle:
                    for entry_id in wanted:
                        if 0 <= entry_id <= handle.last_confirmed:
                            (entry,) = await handle.read(entry_id, entry_id)
                            with self.decoding(DLSN(segment.segment_seqno, entry_id, 0)):
                                last = last_record_of(entry.payload, enveloped=segment.enveloped)
                            found[segment.segment_seqno, entry_id] = EntryTotals(
                                0 if last is None else last[1],
                                entry.length_bytes,
                                None if last is None else last[2],
                            )
        return [found.get(each) for each in entries]

    async def last_dlsn(self) -> DLSN | None:
        """The position of the last user record visible now; None if there is none."""
        record = await self.last_record(await self.segments())
        return None if record is None else record.dlsn

    async def find_txid(self, txid: int, *, is_whole: bool = False) -> Record | None:
        """The first visible record with this transaction id; None if there is none left.

        Its payload is as stored: encrypted if it is. Its ``sequence_id`` counts from 1 in its segment.

        Args:
            is_whole: A large record has the payload of all its parts; else that of the last one.
        """
        record = await self.first_from_txid(txid, is_whole=is_whole)
        return record if record is not None and record.txid == txid else None

    async def first_from_txid(self, txid: int, *, is_whole: bool = False) -> Record | None:
        """As ``find_txid``, of the first record with this transaction id or a greater one."""
        segments = await self.segments()
        position = await self._locate_txid(segments, txid)
        for segment in segments:
            if position is None or segment.segment_seqno < position.segment_seqno:
                continue
            start = position if segment.segment_seqno == position.segment_seqno else segment.first_dlsn
            record = await self._first_record(segment, start, txid, is_whole=is_whole)
            if record is not None:
                return record
        return None

    async def last_record(self, segments: Sequence[LogSegment]) -> Record | None:
        """The last user record visible now; None if there is none.

        Its ``sequence_id`` counts from 1 in its segment: the segments before it are not read.
        """
        for segment in reversed(segments):
            with translated(self.name, f"looking for the last record of segment {segment.segment_seqno}"):
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
                    joins=False,
                )
                reader.confirmed(entry_id, closed=False)
                with self.decoding(DLSN(segment.segment_seqno, entry_id, 0)):
                    records = reader.decode_all([entry])
                if records:
                    return records[-1]
            stop, window = first, min(2 * window, SCAN_ENTRIES_MAX)
        return None

    async def _confirmed(self, segment: LogSegment) -> int:
        with translated(self.name, f"asking for the end of segment {segment.segment_seqno}"):
            async with await self.open(segment) as handle:
                return handle.last_confirmed  # opening the ledger reads it

    @contextmanager
    def decoding(self, position: DLSN) -> Iterator[None]:
        """Raise CorruptLogError with the position if an entry does not decode."""
        try:
            yield
        except EntryFormatError as exc:
            raise CorruptLogError(self.name, position, str(exc)) from None


async def why_gone(handle: ReadHandle, entry_id: int) -> str | None:
    """The evidence that an entry is gone; None if it can be read, or may be read later."""
    try:
        await handle.read_payloads(entry_id, entry_id)
    except LedgerReadError as exc:
        return str(exc) if is_gone(exc) else None
    return None
