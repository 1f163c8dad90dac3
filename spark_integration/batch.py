"""Batch reads: a stream from a start to its end at planning time.

Spark creates and plans a reader for each action, and planning fixes the end.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from dlog import Record
from spark_integration.arrow import BATCH_BYTES_TARGET, BATCH_RECORDS_MAX, to_batch
from spark_integration.client import LogView
from spark_integration.offsets import BEFORE_EVERYTHING, Position
from spark_integration.options import SourceOptions
from spark_integration.planning import Range, split


class RangePartition(InputPartition):
    """One part of a range, for one task."""

    def __init__(self, part: Range) -> None:
        super().__init__(None)
        self.part = part


class DlogBatchReader(DataSourceReader):
    """Reads the records from ``startingOffsets`` through ``endingOffsets`` or the present end."""

    def __init__(self, options: SourceOptions, log: LogView) -> None:
        self._options = options
        self._log = log

    def partitions(self) -> list[RangePartition]:
        """Split the range that is readable now into ``minPartitions`` parts, or one for each core."""
        options = self._options
        end = self._log.tail()
        if isinstance(options.ending, Position):
            end = min(end, options.ending)
        start = options.starting if isinstance(options.starting, Position) else BEFORE_EVERYTHING
        whole = resolve_start(Range(start, end), self._log)
        if whole.is_empty:
            return []
        parts = options.partitions_min or os.cpu_count() or 1
        return [RangePartition(part) for part in split(whole, self._log.extents(), parts)]

    def read(self, partition: RangePartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        return read_partition(self._options.stream, self._log, partition)


def resolve_start(whole: Range, log: LogView) -> Range:
    """Replace a start before everything by the position of the first record that is left now.

    A task that reads a range again after a truncation then fails instead of returning other records.
    """
    if whole.start != BEFORE_EVERYTHING:
        return whole
    start = log.earliest()
    return Range(start, start if start == BEFORE_EVERYTHING else whole.end)


def read_partition(stream: str, log: LogView, partition: RangePartition | None) -> Iterator[pa.RecordBatch]:
    """The records of one partition as Arrow batches; every read returns the same records.

    If a plan has no partition, Spark passes one of None, which reads nothing.
    """
    if not isinstance(partition, RangePartition):
        return
    gathered: list[Record] = []
    gathered_bytes = 0
    for batch in log.read_range(partition.part, records_max=BATCH_RECORDS_MAX):
        gathered += batch
        gathered_bytes += sum([len(record.payload) for record in batch])
        if gathered_bytes >= BATCH_BYTES_TARGET or len(gathered) >= BATCH_RECORDS_MAX:
            yield to_batch(stream, gathered)
            gathered, gathered_bytes = [], 0
    if gathered:
        yield to_batch(stream, gathered)
