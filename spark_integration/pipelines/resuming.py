"""Where a pipeline continues in a log that it has read up to a mark."""

from __future__ import annotations

import dlog
from spark_integration.offsets import WHOLE_ENTRY, Position
from spark_integration.pipelines.marks import ReadMark, start_after, truncated
from spark_integration.pipelines.places import Place


def position_after(place: Place, mark: ReadMark) -> Position:
    """The position to read from.

    Raises:
        PipelineError: The log is another one, or records beyond the mark are truncated.
        dlog.DLogError: The log does not exist, or cannot be read.
    """
    description = place.call(lambda namespace: namespace.describe_log(mark.log))
    start = start_after(mark, description.segments)
    left, following = description.first_dlsn, first_after(start)
    if left is not None and left > following:
        lost = place.call(lambda namespace: namespace.count_records(mark.log, start=following, end=left))
        if lost:
            raise truncated(mark, f"{lost} records before {left} are truncated")
    return start


def first_after(position: Position) -> dlog.DLSN:
    """The first place after a position. A record need not be there."""
    if position.slot == WHOLE_ENTRY:
        return dlog.DLSN(position.segment, position.entry + 1, 0)
    return dlog.DLSN(position.segment, position.entry, position.slot + 1)
