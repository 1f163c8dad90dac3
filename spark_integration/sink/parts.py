"""The part of a batch that one task writes.

A task with few rows returns them, and the driver writes those of all tasks together. A task with more writes
them to segments of its own, in parallel with the other tasks.
Always: no log shows anything of a part before the driver has committed the batch; a task that fails gives up
its segments.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack

import attrs
import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

import dlog
import dlog.blocking
from dlog.blocking.batches import DetachedSegmentWriter
from dlog.bulk import BatchPlan, DetachedSegment
from spark_integration.sink.options import SinkOptions
from spark_integration.sink.rows import payloads_of


@attrs.frozen
class Part(WriterCommitMessage):
    """What a task returns to the driver."""

    series: str | None = None
    number: int = 0
    rows: dict[str, list[bytes]] = attrs.field(factory=dict)  # by stream; the driver writes them
    plans: tuple[BatchPlan, ...] = ()  # of the segments
    segments: tuple[DetachedSegment, ...] = ()
    is_repeated: bool = False  # the batch is in the logs already, so the task wrote nothing


def begin(
    namespace: dlog.blocking.Namespace,
    options: SinkOptions,
    streams: Iterable[str],
    series: str | None,
    number: int,
) -> BatchPlan | None:
    """Begin a batch for some streams; None if it is in the logs already. Makes missing logs, if allowed."""
    wanted = sorted(streams)

    def attempt() -> BatchPlan | None:
        return namespace.begin_batch(
            wanted,
            series=series,
            number=number,
            record_log=options.stream,
            lock_timeout_s=options.lock_timeout_s,
        )

    try:
        return attempt()
    except dlog.LogNotFoundError:
        if not options.create_stream:
            raise
    for stream in {options.stream, *wanted}:
        namespace.create_log(stream, exist_ok=True)
    return attempt()


def write_part(
    namespace: dlog.blocking.Namespace,
    options: SinkOptions,
    batches: Iterable[pa.RecordBatch],
    series: str | None,
    number: int,
) -> Part:
    """Write the rows of a task.

    Raises:
        RowFormatError: A row cannot become a record.
        dlog.LogLockedError: Another program writes to a stream.
        dlog.DLogError: A segment could not be written; Spark runs the task again.
    """
    rows: dict[str, list[bytes]] = {}
    size_bytes = 0
    plans: list[BatchPlan] = []
    writers: dict[str, DetachedSegmentWriter] = {}
    with ExitStack() as segments:
        for batch in batches:
            for stream, payloads in payloads_of(batch, options.stream):
                rows.setdefault(stream, []).extend(payloads)
                size_bytes += sum(map(len, payloads))
            if size_bytes <= options.driver_bytes_max and not writers:
                continue
            if missing := rows.keys() - writers.keys():
                plan = begin(namespace, options, missing, series, number)
                if plan is None:
                    return Part(series, number, is_repeated=True)
                plans.append(plan)
                for stream in sorted(missing):
                    writer = namespace.open_detached_segment(plan, stream)
                    writers[stream] = segments.enter_context(writer)
            for stream, payloads in rows.items():
                writers[stream].append_many(payloads)
            rows, size_bytes = {}, 0
    written = tuple(writer.result for writer in writers.values() if writer.result is not None)
    return Part(series, number, rows, tuple(plans), written)
