"""Structured Streaming: offsets asked for, ranges planned, the same records for the same range.

Always: an offset never goes backwards; the start of a query that begins at ``latest`` or ``earliest`` is
pinned in its checkpoint by an empty first batch before anything is read, except with ``Trigger.Once``, which
has one batch; what ``read`` needs is in its partition, since Spark runs it on another copy of this object in
another process.

Source: Spark 4.3's call order as measured: ``initialOffset`` is called twice on a fresh query and its value
is not persisted for batch 0, only that batch's end is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from spark_integration.batch import RangePartition, of_what_is_left, read_partition
from spark_integration.client import LogView
from spark_integration.offsets import BEFORE_EVERYTHING, Position, from_offset, to_offset
from spark_integration.options import SourceOptions
from spark_integration.planning import Range, bounded_end, pieces, split

POLL_INTERVAL_S = 0.02
ENTRIES_PER_PARTITION = 256  # each further partition costs a micro-batch 5 to 8 ms
_NO_BOUND = ReadMaxRows(2**63 - 1)  # not ReadAllAvailable, which tells Trigger.Once from all others


class DlogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows one stream; entry by entry if ``maxEntriesPerTrigger`` bounds it."""

    def __init__(self, options: SourceOptions, log: LogView) -> None:
        self._options = options
        self._log = log
        self._initial: Position | None = None
        self._pin_start = False  # the next latestOffset must be the start itself
        self._target: Position | None = None  # of Trigger.AvailableNow: nothing after it is seen
        self._seen: Position | None = None  # the tail when it was last looked at

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name, as all below
        self._target = self._tail()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        bound = self._options.entries_per_trigger_max
        return ReadMaxRows(bound) if bound else _NO_BOUND

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        if self._initial is None:
            starting = self._options.starting
            if isinstance(starting, Position):
                self._initial = starting
            else:
                self._initial = self._tail()
                self._pin_start = True
        return to_offset(self._options.stream, self._initial)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """How far the next micro-batch may read; waits up to ``pollTimeoutMs`` for anything new."""
        if self._pin_start:
            return start
        position = from_offset(start, self._options.stream)
        end = self._wait_beyond(position)
        if end <= position:
            return start  # the same object: Spark compares text, and positions can be spelt twice
        if isinstance(limit, ReadAllAvailable):
            # Only Trigger.Once asks so, whatever ``getDefaultReadLimit`` says: no other batch would come.
            return to_offset(self._options.stream, end)
        if position == BEFORE_EVERYTHING:
            # The batch up to here is empty, also when it is planned again. What is left may change, and a
            # batch that were read from there would give other records when it is read again.
            return to_offset(self._options.stream, self._log.earliest())
        if (bound := self._options.entries_per_trigger_max) is not None:
            end = bounded_end(Range(position, end), self._log.extents(), bound)
        return to_offset(self._options.stream, end)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return None if self._seen is None else to_offset(self._options.stream, self._seen)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[RangePartition]:
        self._pin_start = False
        stream = self._options.stream
        whole = of_what_is_left(Range(from_offset(start, stream), from_offset(end, stream)), self._log)
        if whole.is_empty:
            return []
        known = self._log.extents()
        parts = self._options.partitions_min
        if parts is None:
            entries = sum(last - first + 1 for _, first, last in pieces(whole, known))
            parts = min(os.cpu_count() or 1, 1 + entries // ENTRIES_PER_PARTITION)
        return [RangePartition(part) for part in split(whole, known, parts)]

    def read(self, partition: RangePartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        return read_partition(self._options.stream, self._log, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: the checkpoint is the only memory of how far a query has come."""

    def stop(self) -> None:
        """Nothing to do: Spark ends the process, and the log notices a reader that has gone."""

    def _tail(self) -> Position:
        self._seen = self._log.tail()
        return self._seen

    def _wait_beyond(self, position: Position) -> Position:
        deadline = time.monotonic() + self._options.poll_timeout_ms / 1000
        while True:
            end = self._tail()
            if self._target is not None:
                return min(end, self._target)
            if end > position or time.monotonic() >= deadline:
                return end
            time.sleep(POLL_INTERVAL_S)
