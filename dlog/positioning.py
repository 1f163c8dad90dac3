"""Where in a log reading starts: by position, by transaction id, at either end.

Inside: choosing the segment, and the search for a transaction id among a segment's entries, as a machine that
says which entry to look at next. Not inside: reading them (``log_source``).
Always: truncated records are never left out silently when a position was asked for: that is a
LogTruncatedError. A position behind the last of them is none.

Source: DistributedLog, ReadUtils.java, DLUtils.java, ReadAheadEntryReader.java (reference 5.4, 5.7). Java
moves a start below the truncation point forward without a word; here only EARLIEST and transaction ids do
that.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import attrs

from dlog.errors import LogTruncatedError
from namespace.dlsn import DLSN
from namespace.segment import LogSegment, TruncationStatus


class Start(enum.Enum):
    """The ends of a log, as a reader's start."""

    EARLIEST = "earliest"  # the first record that is left
    LATEST = "latest"  # behind the last record visible when the reader is opened


EARLIEST = Start.EARLIEST
LATEST = Start.LATEST


def first_left(segments: Sequence[LogSegment]) -> DLSN | None:
    """The first position that was not truncated; None if the log has no segment."""
    for segment in segments:
        if segment.truncation is TruncationStatus.PARTIALLY_TRUNCATED:
            return segment.min_active_dlsn
        if segment.truncation is not TruncationStatus.TRUNCATED or segment.in_progress:
            return segment.first_dlsn
    return segments[-1].first_dlsn.next_segment() if segments else None


@attrs.frozen
class Stretch:
    """The positions of a completed segment from ``first`` on, before ``stop``; at least one."""

    segment: LogSegment
    first: DLSN
    stop: DLSN


def stretches_given_up(log: str, segments: Sequence[LogSegment], start: DLSN) -> list[Stretch]:
    """Of what was given up, the stretches at or behind a position that may hold records: look at them.

    If none does, nothing is missing to a reader that goes on there with what is left: one that has read
    everything before the position, or one whose position is left.

    Raises:
        LogTruncatedError: The segment of the position is gone, or nobody knows where a segment ends.
    """
    left = first_left(segments)
    if left is None or start >= left:
        return []
    if start.segment_seqno not in (left.segment_seqno, *(each.segment_seqno for each in segments)):
        raise LogTruncatedError(log, start, left)
    stretches = []
    for segment in segments:
        if segment.segment_seqno < start.segment_seqno or segment.first_dlsn >= left:
            continue
        if segment.in_progress or (segment.record_count and segment.last_entry_id < 0):
            raise LogTruncatedError(log, start, left)
        # Behind its last position is no record. At that one a recovery may have found a control record.
        first, stop = max(start, segment.first_dlsn), min(left, segment.last_dlsn.next_slot())
        if first < stop:
            stretches.append(Stretch(segment, first, stop))
    return stretches


def segment_for_txid(segments: Sequence[LogSegment], txid: int) -> LogSegment | None:
    """The first segment that may hold a record with at least this transaction id; None if none may yet.

    First transaction ids are those given when the segments were started, so neighbours may share one.
    """
    left = first_left(segments)
    candidates = [each for each in segments if left is None or each.segment_seqno >= left.segment_seqno]
    for segment in candidates:
        if segment.in_progress or segment.last_txid >= txid:
            return segment
    return None


class EntrySearch:
    """Binary search for the first record with at least some transaction id in the entries 0 to last."""

    def __init__(self, first_entry_id: int, last_entry_id: int) -> None:
        self._low, self._high = first_entry_id, last_entry_id
        self._found: tuple[int, int] | None = None

    @property
    def next_entry_id(self) -> int | None:
        """The entry to look at; None once the search is over."""
        return None if self._low > self._high else (self._low + self._high) // 2

    def looked(self, slot_id: int | None) -> None:
        """``next_entry_id`` has its first such record at this slot, or has none."""
        entry_id = self.next_entry_id
        assert entry_id is not None
        if slot_id is None:
            self._low = entry_id + 1
        else:
            self._found = entry_id, slot_id
            self._high = entry_id - 1

    @property
    def found(self) -> tuple[int, int] | None:
        """Entry and slot of the record; None if there is none, or not yet."""
        return self._found
