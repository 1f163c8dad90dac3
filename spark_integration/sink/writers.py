"""The writers that Spark calls. Spark makes a new one for each batch, and sends it to the executors.

Always: nothing is opened before ``write``, ``commit`` or ``abort`` runs, so the pickled object holds only
options; a task that has taken a row returns all of its rows or fails, and Spark runs it again.

Source: PySpark 4.3, pyspark.sql.datasource.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from spark_integration.client import with_namespace, with_namespace_once
from spark_integration.errors import SparkDlogError
from spark_integration.sink.committing import abandon_parts, commit_parts
from spark_integration.sink.options import SinkOptions
from spark_integration.sink.parts import Part, part_of_task


class DlogStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a streaming query, each exactly once."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Part:
        """In an executor."""
        context = TaskContext.get()
        assert context is not None  # Spark sets it in a task
        query = context.getLocalProperty("sql.streaming.queryId")
        number = context.getLocalProperty("streaming.sql.batchId")
        if query is None or number is None:
            raise SparkDlogError("Spark does not tell the task its query and batch, so it cannot write once")
        options = self._options
        series = query if options.series is None else options.series
        # Once: a second call would find the iterator without the rows that the first one took.
        return with_namespace_once(
            options.uri,
            options.client,
            lambda namespace: part_of_task(
                namespace, options, iterator, series, int(number), context.partitionId()
            ),
        )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """In the driver, after all tasks."""
        options, parts = self._options, _parts(messages)
        if not parts:
            return
        if any(part.number != batchId for part in parts):
            raise SparkDlogError(f"batch {batchId}: a task wrote another batch; nothing was written")
        with_namespace(
            options.uri,
            options.client,
            lambda namespace: commit_parts(namespace, options, parts, parts[0].series, batchId),
        )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """In the driver, after a failure; perhaps after a commit that succeeded."""
        options = self._options
        written = [each for each in messages if isinstance(each, Part)]  # None: a task that failed
        with_namespace(options.uri, options.client, lambda namespace: abandon_parts(namespace, written))


class DlogBatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame, all of it or nothing; once, however often it is tried, with a series and number."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Part:
        """In an executor."""
        options, context = self._options, TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        # Once: a second call would find the iterator without the rows that the first one took.
        return with_namespace_once(
            options.uri,
            options.client,
            lambda namespace: part_of_task(
                namespace, options, iterator, options.series, options.number or 0, partition
            ),
        )

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """In the driver, after all tasks."""
        options, parts = self._options, _parts(messages)
        with_namespace(
            options.uri,
            options.client,
            lambda namespace: commit_parts(namespace, options, parts, options.series, options.number or 0),
        )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """In the driver, after a failure; perhaps after a commit that succeeded."""
        options = self._options
        written = [each for each in messages if isinstance(each, Part)]  # None: a task that failed
        with_namespace(options.uri, options.client, lambda namespace: abandon_parts(namespace, written))


def _parts(messages: list[WriterCommitMessage | None]) -> list[Part]:
    parts = [each for each in messages if isinstance(each, Part)]
    if len(parts) != len(messages):
        raise SparkDlogError("a task returned nothing; nothing was written")
    return parts
