"""The description of a log: its segments, its ends, its number of records, its writer.

Inside: the values. Not inside: finding them (``namespace_handle``).
Always: the numbers of a segment in progress are those that readers see; its writer may be ahead of them.
"""

from __future__ import annotations

import attrs

from namespace.dlsn import DLSN
from namespace.segments.segment import LogSegment, TruncationStatus


@attrs.frozen
class SegmentDescription:
    """One log segment. Times are epoch milliseconds."""

    segment_seqno: int
    ledger_id: int
    is_completed: bool
    first_txid: int
    last_txid: int | None  # None while in progress
    record_count: int | None  # None while in progress
    last_entry_id: int  # of its last user record; -1 if it has none or is in progress
    last_slot_id: int
    start_sequence_id: int | None  # of its first record; None while in progress
    completed_ms: int | None
    truncation: TruncationStatus

    @staticmethod
    def of(segment: LogSegment) -> SegmentDescription:
        """The description of stored metadata."""
        done = not segment.in_progress
        return SegmentDescription(
            segment_seqno=segment.segment_seqno,
            ledger_id=segment.ledger_id,
            is_completed=done,
            first_txid=segment.first_txid,
            last_txid=segment.last_txid if done else None,
            record_count=segment.record_count if done else None,
            last_entry_id=segment.last_entry_id,
            last_slot_id=segment.last_slot_id,
            start_sequence_id=segment.start_sequence_id if done else None,
            completed_ms=segment.completed_ms if done else None,
            truncation=segment.truncation,
        )


@attrs.frozen
class EntryTotals:
    """The records and bytes of a segment up to and including one of its entries."""

    records: int  # user records of the segment, from its first
    size_bytes: int  # stored bytes of the segment's ledger, as one replica has them
    last_txid: int | None  # of the entry's last record; None if it has none


@attrs.frozen
class LogDescription:
    """A log at one moment."""

    name: str
    first_dlsn: DLSN | None  # the position of EARLIEST; None if the log has no segment
    last_dlsn: DLSN | None  # of the last visible record; None if there is none
    last_txid: int | None
    record_count: int  # visible records, including truncated ones that are not purged
    is_sealed: bool
    writer: str | None  # the owner of the lock
    forwarders: int | None  # the programs that forward to it; None: it does not share the log
    segments: tuple[SegmentDescription, ...]
