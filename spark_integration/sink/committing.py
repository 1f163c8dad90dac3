"""Committing a batch: the parts of all tasks get into their logs together, once.

The commit is one transaction of ``dlog.bulk``: the segments of the tasks, one segment for each stream with
the rows that tasks returned, and the number of the batch in the series of the query. So a driver that dies
before the transaction has written nothing, and one that dies after it has written all. Spark then runs the
batch again, under the same number, and the sink finds the number.

Always: nothing is undone that may be committed; segments that are in a log are never deleted.
Source: our own; docs/spark.md, docs/bulk.md.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import dlog
import dlog.blocking
from dlog.bulk import BatchOvertakenError, BatchPlan, DetachedSegment
from dlog.bulk.plan import SEGMENTS_MAX
from spark_integration.errors import BatchTooLargeError, RepeatedBatchError, SparkDlogError
from spark_integration.sink.options import SinkOptions
from spark_integration.sink.parts import Part, begin

logger = logging.getLogger(__name__)
ATTEMPTS = 5  # of a batch that is only the driver's, if another writer is faster


def commit_parts(
    namespace: dlog.blocking.Namespace,
    options: SinkOptions,
    parts: Sequence[Part],
    series: str | None,
    number: int,
) -> None:
    """Put the parts of all tasks into their logs, unless the batch is there already. Repeating it is safe.

    Raises:
        RepeatedBatchError: A later batch of the series is there.
        BatchTooLargeError: The tasks and streams have more segments than one transaction takes; nothing was
            written.
        SparkDlogError: A task found the batch in its log, and it is not there any more.
        dlog.bulk.BatchOvertakenError: Another program has written to a stream meanwhile; nothing was written.
        dlog.LogLockedError: Another program writes to a stream; nothing was written.
        dlog.DLogError: Nothing was written, or all of it; running the batch again finds out.
    """
    if _is_committed(namespace, options, series, number):
        abandon_parts(namespace, parts)
        return
    if any(part.is_repeated for part in parts):
        raise SparkDlogError(
            f"batch {number} of {series!r}: a task found it in {options.stream!r}, and now it is not there:"
            " the stream was deleted or its properties were removed. Nothing was written"
        )
    rows: dict[str, list[bytes]] = {}
    for part in parts:
        for stream, payloads in part.rows.items():
            rows.setdefault(stream, []).extend(payloads)
    _check_size(parts, len(rows), number)
    is_ours_alone = not any(part.segments for part in parts)
    if not rows and is_ours_alone:
        return
    for attempt in range(ATTEMPTS):
        mine: list[DetachedSegment] = []
        plans = [plan for part in parts for plan in part.plans]
        if rows:
            plan = begin(namespace, options, rows, series, number)
            if plan is None:
                abandon_parts(namespace, parts)  # another driver of the same query was faster
                return
            plans.append(plan)
            for stream, payloads in rows.items():
                with namespace.open_detached_segment(plan, stream) as writer:
                    writer.append_many(payloads)
                assert writer.result is not None
                mine.append(writer.result)
        theirs = [segment for part in parts for segment in part.segments]
        try:
            plan = BatchPlan.merged(plans)
            found = namespace.attach_batch(plan, [*theirs, *mine], lock_timeout_s=options.lock_timeout_s)
        except BatchOvertakenError:
            abandon_parts(namespace, [Part(series, number, plans=tuple(plans[-1:]), segments=tuple(mine))])
            if not is_ours_alone or attempt == ATTEMPTS - 1:
                raise
        else:
            if found.is_repeated:  # another driver of the same query was faster
                abandon_parts(namespace, [Part(series, number, plans=(plan,), segments=(*theirs, *mine))])
            return


def _check_size(parts: Sequence[Part], streams: int, number: int) -> None:
    # Several transactions would show a part of the batch to readers, so such a batch is refused as a whole.
    of_tasks = sum(len(part.segments) for part in parts)
    if of_tasks + streams > SEGMENTS_MAX:
        raise BatchTooLargeError(
            f"batch {number}: its {len(parts)} tasks wrote {of_tasks} segments, the driver has {streams};"
            f" one batch has at most {SEGMENTS_MAX}: one for each stream of a task with more rows than"
            " driverBytesMax, and one for each stream of the other rows. Use fewer tasks, as with"
            " .coalesce(...), smaller batches (maxRecordsPerTrigger), fewer streams, or a greater"
            " driverBytesMax. Nothing was written"
        )


def _is_committed(
    namespace: dlog.blocking.Namespace, options: SinkOptions, series: str | None, number: int
) -> bool:
    if series is None:
        return False
    try:
        last = namespace.last_batch(series, options.stream)
    except dlog.LogNotFoundError:
        return False
    if last is not None and last > number:
        raise RepeatedBatchError(
            f"stream {options.stream!r} has batch {last} of {series!r}, and this is batch {number}. The"
            " checkpoint is older than the stream, or belongs to another query: use the newest checkpoint, or"
            " another value of the option series. Nothing was written"
        )
    return last == number


def abandon_parts(namespace: dlog.blocking.Namespace, parts: Sequence[Part]) -> None:
    """Delete segments of tasks that are in no log. What cannot be deleted now is an orphan."""
    for part in parts:
        if not part.segments:
            continue
        for plan in part.plans:
            segments = [segment for segment in part.segments if segment.log in plan.logs]
            try:
                namespace.abandon_batch(plan, segments)
            except dlog.DLogError as exc:
                logger.warning(
                    "%d segments of batch %s are left, which `dlog log orphans` deletes: %s",
                    len(segments),
                    plan.name,
                    exc,
                )
