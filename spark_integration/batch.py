"""Batch reads: a stream from a start to its end at planning time.

The end is fixed when the reader is made, which Spark does once for each action.
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
    """One part of a stream, for one task."""

    def __init__(self, wanted: Range) -> None:
        super().__init__(None)
        self.wanted = wanted


class DlogBatchReader(DataSourceReader):
    """Reads the records from ``startingOffsets`` through ``endingOffsets`` or the present end."""

    def __init__(self, options: SourceOptions, log: LogView) -> None:
        self._options = options
        self._log = log

    def partitions(self) -> list[RangePartition]:
        """Cut what is readable now into one part for each core, or ``minPartitions``."""
        options = self._options
        end = self._log.tail()
        if isinstance(options.ending, Position):
            end = min(end, options.ending)
        start = options.starting if isinstance(options.starting, Position) else BEFORE_EVERYTHING
        whole = of_what_is_left(Range(start, end), self._log)
        if whole.is_empty:
            return []
        parts = options.partitions_min or os.cpu_count() or 1
        return [RangePartition(part) for part in split(whole, self._log.extents(), parts)]

    def read(self, partition: RangePartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        return read_partition(self._options.stream, self._log, partition)


def of_what_is_left(wanted: Range, log: LogView) -> Range:
    """The range, from the first record left now if it begins before everything.

    So that a task that is run again after a truncation fails, instead of giving other records.
    """
    if wanted.start != BEFORE_EVERYTHING:
        return wanted
    start = log.earliest()
    return Range(start, start if start == BEFORE_EVERYTHING else wanted.end)


def read_partition(stream: str, log: LogView, partition: RangePartition | None) -> Iterator[pa.RecordBatch]:
    """The records of one partition as Arrow batches; the same ones each time it is read.

    Spark makes one partition of None where a plan has none: it reads nothing.
    """
    if not isinstance(partition, RangePartition):
        return
    gathered: list[Record] = []
    gathered_bytes = 0
    for run in log.read_range(partition.wanted, records_max=BATCH_RECORDS_MAX):
        gathered += run
        gathered_bytes += sum([len(record.payload) for record in run])
        if gathered_bytes >= BATCH_BYTES_TARGET or len(gathered) >= BATCH_RECORDS_MAX:
            yield to_batch(stream, gathered)
            gathered, gathered_bytes = [], 0
    if gathered:
        yield to_batch(stream, gathered)
