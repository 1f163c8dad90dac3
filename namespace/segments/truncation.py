"""Truncation marks: where a log begins, which segments to mark, which marked ones may be deleted.

Inside: the decisions. Not inside: storing marks and deleting segments (``dlog.write.space``).
Always: a mark only moves forward, so a truncated record never becomes readable again; neither a segment in
progress nor a segment after it gets a mark; the newest completed segment is never deleted.

Source: DistributedLog, LogSegmentMetadataStoreUpdater.java, BKLogWriteHandler.java
(docs/stream-format.md 6.1).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from namespace.dlsn import DLSN
from namespace.segments.segment import LogSegment, TruncationStatus

VERSION_STATUS, VERSION_MIN_ACTIVE = 2, 3  # the first metadata versions that can hold each mark


def marked_before(segments: Iterable[LogSegment], first_kept: DLSN) -> list[LogSegment]:
    """The segments, in order, whose marks change if ``first_kept`` becomes the first position."""
    changed = []
    for segment in segments:
        if segment.in_progress or segment.first_dlsn >= first_kept:
            break
        if segment.truncation not in (TruncationStatus.ACTIVE, TruncationStatus.PARTIALLY_TRUNCATED):
            continue
        if segment.last_dlsn < first_kept:
            if segment.version >= VERSION_STATUS:
                changed.append(segment.truncated())
        elif segment.version >= VERSION_MIN_ACTIVE and _is_forward(segment, first_kept):
            changed.append(segment.partially_truncated(first_kept))
    return changed


def first_left(segments: Sequence[LogSegment]) -> DLSN | None:
    """The first position that was not truncated; None if the log has no segment."""
    for segment in segments:
        if segment.truncation is TruncationStatus.PARTIALLY_TRUNCATED:
            return segment.min_active_dlsn
        if segment.truncation is not TruncationStatus.TRUNCATED or segment.in_progress:
            return segment.first_dlsn
    return segments[-1].first_dlsn.next_segment() if segments else None


def purgeable(segments: Sequence[LogSegment]) -> list[LogSegment]:
    """The segments, in order, that may be deleted: truncated ones from the oldest on.

    The newest completed segment is not among them. The next segment takes its number from it, and a reader
    sees by it that the log was not deleted.
    """
    completed = list(itertools.takewhile(lambda segment: not segment.in_progress, segments))
    return list(
        itertools.takewhile(lambda segment: segment.truncation is TruncationStatus.TRUNCATED, completed[:-1])
    )


def _is_forward(segment: LogSegment, first_kept: DLSN) -> bool:
    return segment.truncation is TruncationStatus.ACTIVE or segment.min_active_dlsn < first_kept
