"""The rules for a list of a log's segments: order, no gap, still the same log.

Inside: rules over segments that were read. Not inside: reading them (``segment_nodes``).
Always: a completed segment keeps its number and its ledger, and the newest one is never purged. So a list
without it, or with another ledger, belongs to another log of the same name.

Source: DistributedLog, LogSegmentMetadata.java (COMPARATOR), BKLogReadHandler.java, BKLogWriteHandler.java
(getNumCandidateLogSegmentsToPurge: the newest completed segment is kept).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from functools import cmp_to_key

from namespace.errors import LogMetadataError, LogNotFoundError, SegmentGapError
from namespace.segments.segment import LogSegment


def sort_segments(segments: Iterable[LogSegment]) -> tuple[LogSegment, ...]:
    """Segments in log order: by sequence number, or by first txid if one is too old to have a number."""

    def compare(a: LogSegment, b: LogSegment) -> int:
        if a.segment_seqno and b.segment_seqno:
            key_a, key_b = a.segment_seqno, b.segment_seqno
        else:
            key_a, key_b = a.first_txid, b.first_txid
        if key_a == key_b:
            key_a, key_b = not a.in_progress, not b.in_progress
        return (key_a > key_b) - (key_a < key_b)

    return tuple(sorted(segments, key=cmp_to_key(compare)))


def check_no_gap(log_name: str, segments: Sequence[LogSegment]) -> None:
    """Raise SegmentGapError if a segment is missing between two of the segments, which are in order."""
    for before, after in itertools.pairwise(segments):
        if min(before.version, after.version) >= 2 and after.segment_seqno != before.segment_seqno + 1:
            raise SegmentGapError(
                log_name,
                f"{after.name} (number {after.segment_seqno}) follows {before.name} ({before.segment_seqno})",
            )


def check_same_log(
    log_name: str, known: Iterable[LogSegment], read: Iterable[LogSegment], listed: Iterable[LogSegment]
) -> None:
    """Raise if the segments listed now belong to another log than the known ones.

    Args:
        known: Segments from an earlier list.
        read: Segments whose nodes were read for this list.

    Raises:
        LogMetadataError: A completed segment has another ledger now: the log was created again.
        LogNotFoundError: The newest completed segment is gone: the log is deleted, or its deletion has begun.
    """
    completed = {segment.name: segment for segment in known if not segment.in_progress}
    for segment in read:
        before = completed.get(segment.name, segment)
        if before.ledger_id != segment.ledger_id:
            raise LogMetadataError(
                f"log {log_name!r} was deleted and created again: segment {segment.name} had ledger"
                f" {before.ledger_id} and has {segment.ledger_id} now; open a new reader"
            )
    newest = max((segment.segment_seqno for segment in completed.values()), default=-1)
    if newest > max((segment.segment_seqno for segment in listed if not segment.in_progress), default=-1):
        raise LogNotFoundError(log_name, f"it was deleted: its completed segment {newest} is gone")


def check_still_same_log(log_name: str, left: LogSegment, listed: Sequence[LogSegment]) -> None:
    """Raise if the segments listed now belong to another log than one that a reader has read to its end.

    ``check_same_log`` compares completed segments. A reader that missed a watch may have listed its segment
    only while it was in progress. A recovery does not delete a segment with entries, so its number is not
    used again.

    Raises:
        LogMetadataError: The segment has another ledger now: the log was created again.
        LogNotFoundError: The segment is gone, and none follows it: the log is deleted, or created again.
    """
    for segment in listed:
        if segment.segment_seqno == left.segment_seqno and segment.ledger_id != left.ledger_id:
            raise LogMetadataError(
                f"log {log_name!r} was deleted and created again: segment {segment.segment_seqno} had ledger"
                f" {left.ledger_id} and has {segment.ledger_id} now; open a new reader"
            )
    if all(segment.segment_seqno < left.segment_seqno for segment in listed):
        raise LogNotFoundError(log_name, f"it was deleted: its segment {left.segment_seqno} is gone")
