"""Structured Streaming: offsets and ranges of micro-batches, and the records of a range.

Always: an offset never goes backwards. A range gives the same records each time. A query that starts at
``latest`` or ``earliest`` first runs an empty batch, which pins the start in the checkpoint before any record
is read; with ``Trigger.Once`` there is only one batch and no pin. A partition has all that ``read`` needs,
because Spark calls ``read`` on another copy of this object in another process.

Source: Spark 4.3's measured order of calls (docs/stream-format.md 10): a new query calls ``initialOffset``
twice, and Spark persists the end of batch 0 but not its start.
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

from spark_integration.batch import RangePartition, read_partition, resolve_start
from spark_integration.client import LogView
from spark_integration.offsets import BEFORE_EVERYTHING, Position, from_offset, to_offset
from spark_integration.options import SourceOptions
from spark_integration.planning import Range, bounded_end, pieces, split

POLL_INTERVAL_S = 0.02
ENTRIES_PER_PARTITION = 256  # each further partition costs a micro-batch 5 to 8 ms
_NO_BOUND = ReadMaxRows(2**63 - 1)  # not ReadAllAvailable, which only Trigger.Once passes


class DlogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows one stream. ``maxEntriesPerTrigger`` bounds a micro-batch at entry boundaries."""

    def __init__(self, options: SourceOptions, log: LogView) -> None:
        self._options = options
        self._log = log
        self._initial: Position | None = None
        self._pin_start = False  # the next latestOffset must return the start
        self._target: Position | None = None  # the end of the query with Trigger.AvailableNow
        self._seen: Position | None = None  # the last tail that was read from the log

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
        """The end of the next micro-batch; waits up to ``pollTimeoutMs`` for new records."""
        if self._pin_start:
            return start
        position = from_offset(start, self._options.stream)
        end = self._wait_beyond(position)
        if end <= position:
            return start  # the same object: Spark compares offsets as text, and a position has two spellings
        if isinstance(limit, ReadAllAvailable):
            # Only Trigger.Once passes this limit, and it ignores ``getDefaultReadLimit``. Its one batch
            # must read everything.
            return to_offset(self._options.stream, end)
        if position == BEFORE_EVERYTHING:
            # This batch is empty, also if it is planned again, and pins the start. A batch with records from
            # BEFORE_EVERYTHING would give other records after a truncation.
            return to_offset(self._options.stream, self._log.earliest())
        if (bound := self._options.entries_per_trigger_max) is not None:
            end = bounded_end(Range(position, end), self._log.extents(), bound)
        return to_offset(self._options.stream, end)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return None if self._seen is None else to_offset(self._options.stream, self._seen)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[RangePartition]:
        self._pin_start = False
        stream = self._options.stream
        whole = resolve_start(Range(from_offset(start, stream), from_offset(end, stream)), self._log)
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
        """Do nothing: only the checkpoint records the progress of a query."""

    def stop(self) -> None:
        """Do nothing: Spark ends the process, and that closes its connections."""

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
