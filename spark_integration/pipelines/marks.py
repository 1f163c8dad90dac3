"""Marks: up to where a pipeline has read a log, and where it continues when the log has continued.

Pure. Always: a log that was deleted and created again is not taken for the one that was read, and records
that are gone before they were read are an error.

Source: our own; docs/pipelines.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from dlog import SegmentDescription
from spark_integration.errors import PipelineError
from spark_integration.offsets import Position, just_before


@attrs.frozen(kw_only=True)
class ReadMark:
    """All records of a log through a position were read."""

    source: str  # the name of the namespace
    log: str
    position: Position
    ledger_id: int  # of the segment of the position
    sequence: int  # the number of records of the log through the position

    def __str__(self) -> str:
        return f"segment {self.position.segment}, entry {self.position.entry}"


def start_after(mark: ReadMark, segments: Sequence[SegmentDescription]) -> Position:
    """The position to read from.

    Args:
        segments: Of the log, oldest first.

    Raises:
        PipelineError: The log is another one than the one that was read, or records that were not read are
            gone, or the log does not show whether they are.
    """
    at = mark.position
    for segment in segments:
        if segment.segment_seqno == at.segment:
            if segment.ledger_id != mark.ledger_id:
                raise _replaced(mark)
            return at
    later = [segment for segment in segments if segment.segment_seqno > at.segment]
    if not later:
        raise _replaced(mark)
    # The segment of the position was purged. The records before the first segment left were all read if they
    # are as many as those through the position.
    first = later[0].start_sequence_id
    if first is None or first < mark.sequence:
        # Purging keeps the newest completed segment, from which the numbers continue: it was deleted
        # otherwise.
        raise PipelineError(
            f"log {mark.log!r} in {mark.source}: all segments were deleted that were there when it was read"
            f" up to {mark}, so its record numbers began again, and nothing shows whether records before"
            f" segment {later[0].segment_seqno} were missed. Nothing was written; delete the result"
            " and begin again"
        )
    if first != mark.sequence:
        raise truncated(mark, f"it begins with segment {later[0].segment_seqno} now")
    return just_before(later[0].segment_seqno, 0, 0)


def truncated(mark: ReadMark, evidence: str) -> PipelineError:
    """The error for a log that was truncated before all of its records were read."""
    return PipelineError(
        f"log {mark.log!r} in {mark.source} was truncated behind the last record that was read, at {mark}:"
        f" {evidence}. Records are missing. Nothing more was written; delete the result and begin again, or"
        " keep what it has"
    )


def _replaced(mark: ReadMark) -> PipelineError:
    return PipelineError(
        f"log {mark.log!r} in {mark.source} is not the log that was read up to {mark}: it was deleted and"
        " created again. Nothing was written; write to another log, or delete the result"
    )
