"""One task of a compaction: rows in the order of their positions, into a segment that no log names yet.

Always: a task writes all of its rows or fails; rows that are not in order are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice, pairwise

import attrs

import dlog.blocking
from dlog.bulk import BatchPlan, DetachedSegment
from spark_integration.client import with_namespace_once
from spark_integration.errors import PipelineError
from spark_integration.pipelines.places import Place

ORDER = ("generation", "segment", "entry", "slot")  # 0: a record of the base; 1: of the source

CONTENT = ("txid", "payload", "key", "headers")

Order = tuple[int, int, int, int]
Buffer = bytes | bytearray
Row = tuple[int, int, int, int, int, Buffer, Buffer | None, Sequence[tuple[str, Buffer]]]
"""A record of a snapshot: ``ORDER`` and ``CONTENT``."""
ROWS_AT_ONCE = 1_000


@attrs.frozen(kw_only=True)
class WriteTarget:
    """Where the tasks write. It can be pickled."""

    place: Place
    into: str
    plan: BatchPlan


@attrs.frozen(kw_only=True)
class WrittenPart:
    """The result of a task that had rows. It can be pickled."""

    number: int  # of the task; the rows of a task come before those of the next one
    segment: DetachedSegment
    first: Order
    last: Order


def write_rows(target: WriteTarget, number: int, rows: Iterable[Row]) -> WrittenPart | None:
    """Write the rows of a task; None if it has none.

    Raises:
        PipelineError: The rows are not in order. Nothing is left.
        dlog.DLogError: A segment could not be written; Spark runs the task again.
    """

    def write(namespace: dlog.blocking.Namespace) -> WrittenPart | None:
        first: Order | None = None
        last: Order = (-1, -1, -1, -1)
        left = iter(rows)
        with namespace.batches.open_segment(target.plan, target.into) as writer:
            while some := list(islice(left, ROWS_AT_ONCE)):
                places: list[Order] = [row[:4] for row in some]
                _check_ascending([last, *places])
                first, last = first or places[0], places[-1]
                writer.append_many(
                    [row[5] for row in some],
                    txids=[row[4] for row in some],
                    keys=[row[6] for row in some],
                    headers=[dict(row[7]) for row in some],
                )
        if first is None or writer.result is None:
            return None
        return WrittenPart(number=number, segment=writer.result, first=first, last=last)

    return with_namespace_once(target.place.uri, target.place.client, write)


def in_order(parts: Sequence[WrittenPart]) -> list[DetachedSegment]:
    """The segments of all tasks, in the order of their rows.

    Raises:
        PipelineError: The rows of two tasks overlap.
    """
    ordered = sorted(parts, key=lambda part: part.number)
    _check_ascending([place for part in ordered for place in sorted({part.first, part.last})])
    return [part.segment for part in ordered]


def _check_ascending(places: Sequence[Order]) -> None:
    for before, after in pairwise(places):
        if after <= before:
            raise PipelineError(f"the rows of a snapshot are not in order: {after} after {before}")
