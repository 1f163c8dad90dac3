"""Committing a batch: the parts of all tasks get into their logs together, once.

The commit is one transaction of ``dlog.bulk``: the segments of the tasks, one segment for each stream with
the rows that tasks returned, and the number of the batch in the series of the query, with the number of its
rows and their digest. So a driver that dies
before the transaction has written nothing, and one that dies after it has written all. Spark then runs the
batch again, under the same number, and the sink finds the number and compares the rows.

Always: nothing is undone that may be committed; segments that are in a log are never deleted.
Source: our own; docs/spark.md, docs/bulk.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import dlog
import dlog.blocking
from dlog.bulk import BatchOvertakenError, BatchPlan, DetachedSegment
from dlog.bulk.plan import SEGMENTS_MAX
from ledger.runtime.log_lines import get_logger
from spark_integration.errors import (
    BatchTooLargeError,
    ChangedBatchError,
    RepeatedBatchError,
    SparkDlogError,
)
from spark_integration.sink.contents import BatchRecord, Block, together
from spark_integration.sink.grouping import grouped
from spark_integration.sink.options import SinkOptions
from spark_integration.sink.parts import Part, append_block, begin

logger = get_logger(__name__)
CONTENTS_PREFIX = "dlog.batch-contents."  # of the property that tells the rows of the last batch of a series
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
        ChangedBatchError: This batch of the series is there with other rows; nothing was written.
        RowFormatError: A row of a task cannot become a record, or the transaction ids of two tasks overlap;
            nothing was written.
        BatchTooLargeError: The tasks and streams have more segments than one transaction takes; nothing was
            written.
        SparkDlogError: A task found the batch in its log, and it is not there any more; or another program
            writes to a stream, and nothing was written.
        dlog.bulk.BatchOvertakenError: Another program has written to a stream meanwhile; nothing was written.
        dlog.LogLockedError: Another program writes to a stream; nothing was written.
        dlog.DLogError: Nothing was written, or all of it; running the batch again finds out.
    """
    _check_tasks(parts)
    record = BatchRecord.of(number, together(part.contents for part in parts))
    if _is_committed(namespace, options, series, number):
        abandon_parts(namespace, parts)
        _check_contents(namespace, options, series, record)
        return
    _check_none_repeated(options, parts, series, number)
    groups = grouped(parts, by_txid=options.txid_column is not None)
    _check_size(parts, len(groups), number)
    is_ours_alone = not any(part.segments for part in parts)
    if not groups and is_ours_alone:
        return
    changes = {} if series is None else {CONTENTS_PREFIX + series: record.encode()}
    for attempt in range(ATTEMPTS):
        mine: list[DetachedSegment] = []
        plans = [plan for part in parts for plan in part.plans]
        try:
            if groups:
                plan = begin(namespace, options, {stream for stream, _ in groups}, series, number)
                if plan is None:  # another driver of the same query was faster
                    abandon_parts(namespace, parts)
                    _check_contents(namespace, options, series, record)
                    return
                plans.append(plan)
                for stream, blocks in groups:
                    mine.append(_write(namespace, plan, stream, blocks))
            theirs = [segment for part in parts for segment in part.segments]
            plan, segments = BatchPlan.merged(plans), [*theirs, *mine]
            if options.txid_column is not None:
                segments.sort(key=lambda each: (each.txid, each.last_txid))
            found = namespace.batches.attach(
                plan, segments, properties=changes, lock_timeout_s=options.lock_timeout_s
            )
        except Exception as exc:
            # Of these, no log names any, or the attaching went through and they stay.
            abandon_parts(namespace, [Part(series, number, plans=tuple(plans[-1:]), segments=tuple(mine))])
            if not isinstance(exc, BatchOvertakenError) or not is_ours_alone or attempt == ATTEMPTS - 1:
                raise
        else:
            if found.is_repeated:  # another driver of the same query was faster
                abandon_parts(namespace, [Part(series, number, plans=(plan,), segments=tuple(segments))])
                _check_contents(namespace, options, series, record)
            return


def _check_tasks(parts: Sequence[Part]) -> None:
    for part in parts:
        if part.failure is not None:
            raise part.failure


def _check_none_repeated(
    options: SinkOptions, parts: Sequence[Part], series: str | None, number: int
) -> None:
    if any(part.is_repeated for part in parts):
        raise SparkDlogError(
            f"batch {number} of {series!r}: a task found it in {options.stream!r}, and now it is not there:"
            " the stream was deleted or its properties were removed. Nothing was written"
        )


def _write(
    namespace: dlog.blocking.Namespace, plan: BatchPlan, stream: str, blocks: Sequence[Block]
) -> DetachedSegment:
    with namespace.batches.open_segment(plan, stream) as writer:
        for block in blocks:
            append_block(writer, block)
    assert writer.result is not None  # set when its block ended
    return writer.result


def _check_contents(
    namespace: dlog.blocking.Namespace, options: SinkOptions, series: str | None, ours: BatchRecord
) -> None:
    """Compare the rows that Spark has now with those that are in the logs."""
    if series is None:
        return
    stored = namespace.properties.get(options.stream).values.get(CONTENTS_PREFIX + series)
    theirs = BatchRecord.decode(stored, ours.number)
    if theirs is None or theirs == ours:
        return
    what = "other rows" if theirs.rows == ours.rows else f"{ours.rows} rows"
    if options.fail_on_changed_batch:
        raise ChangedBatchError(
            f"batch {ours.number} of {series!r} is in {options.stream!r} with {theirs.rows} rows, and Spark"
            f" ran it again with {what}. The checkpoint was reused with another query or other options, is"
            " older than the stream, or the query gives other rows each time (rand, current time, a source"
            " that changes). Nothing was written. Use another value of the option series with a new"
            " checkpoint, or keep the rows that are there with failOnChangedBatch=false"
        )
    logger.warning(
        "batch %d of %r is in %r with %d rows, and Spark ran it again with %s: they are not written",
        ours.number,
        series,
        options.stream,
        theirs.rows,
        what,
    )


def _check_size(parts: Sequence[Part], streams: int, number: int) -> None:
    # Several transactions would show a part of the batch to readers, so such a batch is refused as a whole.
    of_tasks = sum(len(part.segments) for part in parts)
    if of_tasks + streams > SEGMENTS_MAX:
        raise BatchTooLargeError(
            f"batch {number}: its {len(parts)} tasks wrote {of_tasks} segments, the driver has {streams};"
            f" one batch has at most {SEGMENTS_MAX}: one for each stream of a task with more rows than"
            " its share of driverBytesMax, and one for each stream of the other rows. Use fewer tasks, as"
            " with .coalesce(...), smaller batches (maxRecordsPerTrigger), fewer streams, or a greater"
            " driverBytesMax. Nothing was written"
        )


def _is_committed(
    namespace: dlog.blocking.Namespace, options: SinkOptions, series: str | None, number: int
) -> bool:
    if series is None:
        return False
    try:
        last = namespace.batches.last(series, options.stream)
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
                namespace.batches.abandon(plan, segments)
            except dlog.DLogError as exc:
                logger.warning(
                    "%d segments of batch %s are left, which `dlog log orphans` deletes: %s",
                    len(segments),
                    plan.name,
                    exc,
                )
