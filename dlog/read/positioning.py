"""Where in a log reading starts and ends: at a position, a transaction id, a moment, an end of the log.

Inside: choosing the segment; the binary search for a transaction id in a segment, as a machine that returns
the next entry to read. Not inside: reading entries (``read_only_log``).
Always: a start at a position raises LogTruncatedError if a record there or after it is truncated.

Source: DistributedLog, ReadUtils.java, DLUtils.java, ReadAheadEntryReader.java
(docs/stream-format.md 7.4, 7.5). Java silently moves a start before the truncation point forward. Here only
EARLIEST and transaction ids do that.
"""

from __future__ import annotations

import datetime
import enum
from collections.abc import Sequence

import attrs

from dlog.errors import LogTruncatedError
from dlog.format.arguments import as_dlsn, as_txid
from namespace.dlsn import DLSN, INVALID_DLSN
from namespace.segments.segment import LogSegment
from namespace.segments.truncation import first_left


class Start(enum.Enum):
    """The ends of a log, as a reader's start."""

    EARLIEST = "earliest"  # the first record that is left
    LATEST = "latest"  # after the last record visible when the reader is opened


EARLIEST = Start.EARLIEST
"""Start at the first record that was not truncated."""

LATEST = Start.LATEST
"""Start after the last record that is readable now; as an end: stop after that record."""

Where = DLSN | int | Start | datetime.datetime
"""A position, a transaction id, an end of the log, or a moment that stands for a transaction id."""


_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
ID_MAX = 2**63 - 1  # greater than every entry id and slot


def txid_at(moment: datetime.datetime) -> int:
    """Milliseconds since 1970, rounded down: the transaction id of a record appended then.

    It is meant for a log whose writers took their ids from the clock, which is the default.

    Raises:
        ValueError: The moment has no time zone.
    """
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no time zone; add one (tzinfo=datetime.UTC, or .astimezone())")
    return (moment - _EPOCH) // datetime.timedelta(milliseconds=1)


def position_or_txid(where: Where) -> DLSN | int | Start:
    """The same place, with a moment replaced by its transaction id.

    Raises:
        TypeError: It is no place. A text such as "latest" would otherwise be taken for the beginning.
        ValueError: A moment has no time zone.
    """
    if isinstance(where, Start):
        return where
    if isinstance(where, datetime.datetime):
        return txid_at(where)
    if isinstance(where, DLSN):
        return as_dlsn(where)
    if hasattr(where, "__index__") and not isinstance(where, bool):
        return as_txid(where)
    raise TypeError(
        "a place in a log is EARLIEST, LATEST, a DLSN, a transaction id (int) or a datetime with a time zone,"
        f" not {where!r}"
    )


def last_before(position: DLSN | None) -> DLSN:
    """The greatest possible position before another one; None: before all records of the log."""
    if position is None:
        return INVALID_DLSN
    if position.slot_id > 0:
        return DLSN(position.segment_seqno, position.entry_id, position.slot_id - 1)
    if position.entry_id > 0:
        return DLSN(position.segment_seqno, position.entry_id - 1, ID_MAX)
    return DLSN(position.segment_seqno - 1, ID_MAX, ID_MAX)


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
        assert entry_id is not None  # the caller asked next_entry_id
        if slot_id is None:
            self._low = entry_id + 1
        else:
            self._found = entry_id, slot_id
            self._high = entry_id - 1

    @property
    def found(self) -> tuple[int, int] | None:
        """Entry and slot of the record; None if there is none or the search is not over."""
        return self._found
