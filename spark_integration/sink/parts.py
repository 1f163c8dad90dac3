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
from spark_integration.errors import RowFormatError, SparkDlogError
from spark_integration.sink.contents import Block, Contents, together
from spark_integration.sink.options import SinkOptions
from spark_integration.sink.rows import TxidOrder, rows_of


@attrs.frozen
class Part(WriterCommitMessage):
    """The result of a task, for the driver."""

    series: str | None = None
    number: int = 0
    rows: dict[str, list[Block]] = attrs.field(factory=dict)  # by stream; the driver writes them
    plans: tuple[BatchPlan, ...] = ()  # of the segments
    segments: tuple[DetachedSegment, ...] = ()
    is_repeated: bool = False  # the batch is in the logs already, so the task wrote nothing
    contents: dict[str, Contents] = attrs.field(factory=dict)  # of all rows that the task got, by stream
    failure: SparkDlogError | None = None  # another attempt of the task would fail, too; nothing else counts


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
        return namespace.batches.begin(
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


def part_of_task(
    namespace: dlog.blocking.Namespace,
    options: SinkOptions,
    batches: Iterable[pa.RecordBatch],
    series: str | None,
    number: int,
    partition: int,
) -> Part:
    """Write the rows of a task, as ``write_part``; a failure that another attempt would meet is returned.

    Spark would repeat a task that fails as often as ``spark.task.maxFailures``. So the commit raises it.

    Raises:
        dlog.LogLockedError: A program that may be dead holds the lock of a stream.
        dlog.shards.NotShardedError, dlog.shards.ShardsMissingError: The sharded log of the options is none.
        dlog.DLogError: A segment could not be written; Spark runs the task again.
    """
    try:
        return write_part(namespace, options, batches, series, number, partition)
    except RowFormatError as exc:
        return Part(series, number, failure=exc)
    except dlog.TxidOutOfOrderError as exc:
        return Part(series, number, failure=RowFormatError(str(exc)))
    except dlog.LogLockedError as exc:
        if options.lock_timeout_s <= (exc.session_timeout_s or 0):
            raise  # the lock of a program that was killed goes later, so another attempt may help
        failure = SparkDlogError(
            f"{exc} (option lockTimeoutMs). Nothing of batch {number} was written; start the query again when"
            " the log has no other writer"
        )
        return Part(series, number, failure=failure)


def write_part(
    namespace: dlog.blocking.Namespace,
    options: SinkOptions,
    batches: Iterable[pa.RecordBatch],
    series: str | None,
    number: int,
    partition: int = 0,
) -> Part:
    """Write the rows of a task.

    Args:
        partition: The number of the task in its batch, from 0.

    Raises:
        RowFormatError: A row cannot become a record, or the transaction ids of a stream decrease.
        dlog.TxidOutOfOrderError: A transaction id is less than that of a record in the log.
        dlog.LogLockedError: Another program writes to a stream.
        dlog.shards.NotShardedError, dlog.shards.ShardsMissingError: The sharded log of the options is none.
        dlog.DLogError: A segment could not be written; Spark runs the task again.
    """
    driver_bytes_max = options.driver_bytes_of_task(partition)
    task, shards = _Task(namespace, options, series, number), list[str]()
    order, contents, size_bytes = TxidOrder(), dict[str, Contents](), 0
    with task.segments:
        for batch in batches:
            if options.sharded is not None and not shards:
                shards = dlog.blocking.shard_names(namespace, options.sharded)
            for stream, payloads, txids, attributes in rows_of(
                batch,
                options.stream,
                options.txid_column,
                key_column=options.key_column,
                shards=shards,
                payload_bytes_max=namespace.config.writer.record_bytes_max,
            ):
                if not payloads:
                    continue
                if txids is not None:
                    order.check(stream, txids)
                contents = together([contents, {stream: Contents.of(payloads, txids, attributes)}])
                block = Block.of(payloads, txids, attributes)
                task.rows.setdefault(stream, []).append(block)
                size_bytes += block.size_bytes
            if size_bytes > driver_bytes_max:
                task.write_rows()
    written = tuple(writer.result for writer in task.writers.values() if writer.result is not None)
    return Part(series, number, task.rows, tuple(task.plans), written, task.is_repeated, contents)


def append_block(writer: DetachedSegmentWriter, block: Block) -> None:
    """Append the rows of a block to a segment."""
    keys, headers = block.keys_and_headers()
    writer.append_many(block.payloads(), txids=block.txids, keys=keys, headers=headers)


class _Task:
    """The rows of a task, and the segments that it has written."""

    def __init__(
        self, namespace: dlog.blocking.Namespace, options: SinkOptions, series: str | None, number: int
    ) -> None:
        self._namespace, self._options, self._series, self._number = namespace, options, series, number
        self.rows: dict[str, list[Block]] = {}
        self.plans: list[BatchPlan] = []
        self.writers: dict[str, DetachedSegmentWriter] = {}
        self.segments = ExitStack()
        self.is_repeated = False

    def write_rows(self) -> None:
        """Write the rows to segments. If the batch is there already, they are only dropped."""
        missing = self.rows.keys() - self.writers.keys()
        if missing and not self.is_repeated:
            plan = begin(self._namespace, self._options, missing, self._series, self._number)
            if plan is None:
                self._give_up()
            else:
                self.plans.append(plan)
                for stream in sorted(missing):
                    writer = self._namespace.batches.open_segment(plan, stream)
                    self.writers[stream] = self.segments.enter_context(writer)
        if not self.is_repeated:
            for stream, blocks in self.rows.items():
                for block in blocks:
                    append_block(self.writers[stream], block)
        self.rows = {}

    def _give_up(self) -> None:
        # The task continues, because the driver compares all rows with those that are there.
        self.is_repeated = True
        for writer in self.writers.values():
            writer.give_up()
        self.plans, self.writers = [], {}
