"""Where in a log reading starts: at a position, at a transaction id, at either end.

Inside: choosing the segment; the binary search for a transaction id in a segment, as a machine that returns
the next entry to read. Not inside: reading entries (``read_only_log``).
Always: a start at a position raises LogTruncatedError if a record there or after it is truncated.

Source: DistributedLog, ReadUtils.java, DLUtils.java, ReadAheadEntryReader.java
(docs/stream-format.md 7.4, 7.5). Java silently moves a start before the truncation point forward. Here only
EARLIEST and transaction ids do that.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import attrs

from dlog.errors import LogTruncatedError
from dlog.format.dlsn import DLSN
from dlog.metadata.segment import LogSegment
from dlog.metadata.truncation import first_left


class Start(enum.Enum):
    """The ends of a log, as a reader's start."""

    EARLIEST = "earliest"  # the first record that is left
    LATEST = "latest"  # after the last record visible when the reader is opened


EARLIEST = Start.EARLIEST
"""Start at the first record that was not truncated."""

LATEST = Start.LATEST
"""Start after the last record that is readable now."""


@attrs.frozen
class TruncatedRange:
    """The truncated positions of a completed segment from ``first`` up to, not including, ``stop``."""

    segment: LogSegment
    first: DLSN
    stop: DLSN


def truncated_ranges(log: str, segments: Sequence[LogSegment], start: DLSN) -> list[TruncatedRange]:
    """The truncated ranges at or after a position that may hold records; the caller reads them.

    If none of them holds a record, a reader at this position misses nothing: it continues with the records
    that are left. So a reader that has read all truncated records continues.

    Raises:
        LogTruncatedError: The segment of the position is gone, or the end of a segment is not known.
    """
    left = first_left(segments)
    if left is None or start >= left:
        return []
    if start.segment_seqno not in (left.segment_seqno, *(each.segment_seqno for each in segments)):
        raise LogTruncatedError(log, start, left)
    ranges = []
    for segment in segments:
        if segment.segment_seqno < start.segment_seqno or segment.first_dlsn >= left:
            continue
        if segment.in_progress or (segment.record_count and segment.last_entry_id < 0):
            raise LogTruncatedError(log, start, left)
        # There is no record after the last position. At that position a recovery may have found a control
        # record.
        first, stop = max(start, segment.first_dlsn), min(left, segment.last_dlsn.next_slot())
        if first < stop:
            ranges.append(TruncatedRange(segment, first, stop))
    return ranges


def segment_for_txid(segments: Sequence[LogSegment], txid: int) -> LogSegment | None:
    """The first segment that may hold a record with at least this transaction id; None if there is none yet.

    A segment's first transaction id is chosen when it is started. So two neighbours may have the same one.
    """
    left = first_left(segments)
    candidates = [each for each in segments if left is None or each.segment_seqno >= left.segment_seqno]
    for segment in candidates:
        if segment.in_progress or segment.last_txid >= txid:
            return segment
    return None


class EntrySearch:
    """Binary search for the first record with at least a given transaction id, in a range of entries."""

    def __init__(self, first_entry_id: int, last_entry_id: int) -> None:
        self._low, self._high = first_entry_id, last_entry_id
        self._found: tuple[int, int] | None = None

    @property
    def next_entry_id(self) -> int | None:
        """The entry to read next; None when the search is over."""
        return None if self._low > self._high else (self._low + self._high) // 2

    def searched(self, slot_id: int | None) -> None:
        """Continue: ``next_entry_id`` has its first such record at this slot, or None if it has none."""
        entry_id = self.next_entry_id
        assert entry_id is not None
        if slot_id is None:
            self._low = entry_id + 1
        else:
            self._found = entry_id, slot_id
            self._high = entry_id - 1

    @property
    def found(self) -> tuple[int, int] | None:
        """Entry and slot of the record; None if there is none or the search is not over."""
        return self._found
