"""What must be true of a list of a log's segments: their order, no gap, still the same log.

Inside: rules over segments that were read. Not inside: reading them (``logs``).
Always: a completed segment keeps its number and its ledger, and the newest is never purged. So a list that
says otherwise is of another log of the same name.

Source: DistributedLog, LogSegmentMetadata.java (COMPARATOR), BKLogReadHandler.java, BKLogWriteHandler.java
(getNumCandidateLogSegmentsToPurge: the newest completed segment is kept).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from functools import cmp_to_key

from namespace.errors import LogMetadataError, LogNotFoundError, SegmentGapError
from namespace.segment import LogSegment


def sort_segments(segments: Iterable[LogSegment]) -> tuple[LogSegment, ...]:
    """In log order: by sequence number, or by first txid where one is too old to have a number."""

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
    """Raise SegmentGapError if a segment is missing between two of these, which are in order."""
    for before, after in itertools.pairwise(segments):
        if min(before.version, after.version) >= 2 and after.segment_seqno != before.segment_seqno + 1:
            raise SegmentGapError(
                log_name,
                f"{after.name} (number {after.segment_seqno}) follows {before.name} ({before.segment_seqno})",
            )


def check_same_log(
    log_name: str, known: Iterable[LogSegment], read: Iterable[LogSegment], listed: Iterable[LogSegment]
) -> None:
    """Raise if segments listed now cannot belong to the log whose segments are known from before.

    Args:
        read: What the nodes of some of the listed segments hold now.

    Raises:
        LogMetadataError: A completed segment has another ledger now: the log was created again.
        LogNotFoundError: The newest completed segment is gone: the log has been deleted, or is being.
    """
    completed = {segment.name: segment for segment in known if not segment.in_progress}
    for segment in read:
        before = completed.get(segment.name, segment)
        if before.ledger_id != segment.ledger_id:
            raise LogMetadataError(
                log_name,
                f"was deleted and created again: segment {segment.name} had ledger {before.ledger_id} and has"
                f" {segment.ledger_id} now; open a new reader",
            )
    newest = max((segment.segment_seqno for segment in completed.values()), default=-1)
    if newest > max((segment.segment_seqno for segment in listed if not segment.in_progress), default=-1):
        raise LogNotFoundError(log_name, f"has been deleted: its completed segment {newest} is gone")
