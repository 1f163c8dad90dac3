"""Which segments to mark when everything before a position is given up.

Inside: the marks. Not inside: storing them (``segments``), deleting what is marked: nothing here ever does.
Always: a mark only moves forward, so no record that a reader was denied comes back; a segment in progress
gets none, and neither does anything behind it.

Source: DistributedLog, LogSegmentMetadataStoreUpdater.java, BKLogWriteHandler.java (reference 3.6, 4.11).
"""

from __future__ import annotations

from collections.abc import Iterable

from namespace.dlsn import DLSN
from namespace.segment import LogSegment, TruncationStatus

VERSION_STATUS, VERSION_MIN_ACTIVE = 2, 3  # from which metadata version on a segment can hold either mark


def marked_before(segments: Iterable[LogSegment], first_kept: DLSN) -> list[LogSegment]:
    """Of the segments, in order, those whose marks change when ``first_kept`` becomes the first position."""
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


def _is_forward(segment: LogSegment, first_kept: DLSN) -> bool:
    return segment.truncation is TruncationStatus.ACTIVE or segment.min_active_dlsn < first_kept
