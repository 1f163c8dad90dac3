"""Which segments to mark when a log is truncated before a position.

Inside: the marks. Not inside: storing them (``segment_lifecycle``). No code here deletes a marked segment.
Always: a mark only moves forward, so a truncated record never becomes readable again; neither a segment in
progress nor a segment after it gets a mark.

Source: DistributedLog, LogSegmentMetadataStoreUpdater.java, BKLogWriteHandler.java
(docs/stream-format.md 6.1).
"""

from __future__ import annotations

from collections.abc import Iterable

from dlog.format.dlsn import DLSN
from dlog.metadata.segment import LogSegment, TruncationStatus

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


def _is_forward(segment: LogSegment, first_kept: DLSN) -> bool:
    return segment.truncation is TruncationStatus.ACTIVE or segment.min_active_dlsn < first_kept
