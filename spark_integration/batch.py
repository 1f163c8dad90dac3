"""Batch queries: streams from their starts to their ends at ``load()``.

Always: the ranges of a DataFrame are found once, when it is made, so that every action reads the same
records. Spark creates and plans a reader for each action.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader

from dlog import LogNotFoundError
from spark_integration.arrow import ArrowRows
from spark_integration.client import StreamsView
from spark_integration.options import SourceOptions
from spark_integration.planning import Range
from spark_integration.ranges import RangePartition, Ranges, resolve_place, resolve_start


def resolve_ranges(options: SourceOptions, streams: StreamsView) -> dict[str, Range]:
    """The range of each stream, from the options and what can be read now.

    Raises:
        DataLossError, OptionError
        dlog.LogNotFoundError: A stream that was named does not exist.
    """
    found = {}
    for stream in streams.names():
        log = streams.log(stream)
        try:
            start = resolve_place(
                options.starting,
                stream,
                log,
                is_end=False,
                start_at_latest_if_none=options.start_at_latest_if_none,
            )
            end = min(resolve_place(options.ending, stream, log, is_end=True), log.tail())
            found[stream] = resolve_start(Range(start, end), log)
        except LogNotFoundError:
            if options.selection.names:
                raise  # a log that matched a pattern was deleted just now
    return found


class DlogBatchReader(DataSourceReader):
    """Reads ranges of streams.

    It takes no filters: Spark 4.3 keeps the plan of a filtered read, and uses it again for the next action on
    the same DataFrame without filters, which would then miss records (docs/spark.md).
    """

    def __init__(
        self, options: SourceOptions, streams: StreamsView, rows: ArrowRows, ranges: Mapping[str, Range]
    ) -> None:
        self._ranges = ranges
        self._planner = Ranges(options, streams, rows)

    def partitions(self) -> list[RangePartition]:
        """Split and merge the ranges by size; at least ``minPartitions`` if there are this many entries."""
        return self._planner.partitions(self._ranges)

    def read(self, partition: RangePartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        return self._planner.read(partition)
