"""The ranges of a query as partitions, and the records of a partition as Arrow batches.

Inside: what a batch query and a streaming query have in common. Not inside: where ranges begin and end
(``source``, ``stream``).
Always: a partition has all that its task needs; every read of it gives the same records in the same order, or
an exception.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from dlog import LogNotFoundError, LogTruncatedError, RecordBatch
from spark_integration.arrow import BATCH_BYTES_TARGET, BATCH_RECORDS_MAX, ArrowRows
from spark_integration.client import LogView, StreamsView
from spark_integration.errors import DataLossError, OptionError
from spark_integration.measuring import Measures
from spark_integration.offsets import BEFORE_EVERYTHING, Position
from spark_integration.options import SourceOptions
from spark_integration.places import LATEST, Places, Txid
from spark_integration.planning import Extent, Range, StreamRange, split, total

PARTITION_BYTES = 32 << 20
PARTITIONS_PER_CORE = 2


class RangePartition(InputPartition):
    """Ranges of streams, for one task."""

    def __init__(self, parts: list[StreamRange], records: bytes | None = None) -> None:
        """``records``: all of them, if there is one range and the driver has them (``packed``)."""
        super().__init__(None)
        self.parts = parts
        self.records = records

    def __repr__(self) -> str:
        return f"RangePartition({self.parts})"  # without records: a plan or a log must not show them


def packed(records: RecordBatch, bytes_max: int) -> bytes | None:
    """Records in the form that travels with a partition; None if they take more bytes."""
    if records.payload_bytes > bytes_max:
        return None
    made = pickle.dumps(records, pickle.HIGHEST_PROTOCOL)
    return made if len(made) <= bytes_max else None


class Ranges:
    """Plans and reads ranges of streams."""

    def __init__(self, options: SourceOptions, streams: StreamsView, rows: ArrowRows) -> None:
        self._options, self._streams, self._rows = options, streams, rows

    def partitions(
        self,
        ranges: Mapping[str, Range],
        measures: Mapping[str, Measures] | None = None,
        extents: Mapping[str, Sequence[Extent]] | None = None,
    ) -> list[RangePartition]:
        """Split and merge ranges into partitions by the size of what they hold.

        Args:
            extents: The segments of some streams, looked up after the ends of their ranges were.

        Raises:
            DataLossError: A stream is gone; without ``failOnDataLoss=false``.
        """
        options = self._options
        planned = []
        for stream, whole in sorted(ranges.items()):
            log = self._streams.log(stream)
            try:
                whole = resolve_start(whole, log)
                if whole.is_empty:
                    continue
                there = (extents or {}).get(stream)
                if there is None:
                    there = log.extents()
                measured = (measures or {}).get(stream, Measures(log)).range(whole, there)
            except LogNotFoundError as exc:
                self.lost(stream, exc)
                continue
            planned.append((StreamRange(stream, whole), measured))
        if not planned:
            return []
        amount = total([piece for _, measured in planned for piece in measured])
        parts = min(PARTITIONS_PER_CORE * (os.cpu_count() or 1), 1 + amount.size_bytes // PARTITION_BYTES)
        if options.records_per_partition_max is not None:
            parts = max(parts, -(-amount.records // options.records_per_partition_max))
        return [RangePartition(each) for each in split(planned, max(parts, options.partitions_min or 1))]

    def read(self, partition: RangePartition | None) -> Iterator[pa.RecordBatch]:
        """The records of a partition; if a plan has none, Spark passes one of None, which reads nothing."""
        if not isinstance(partition, RangePartition):
            return
        if partition.records is not None:
            (only,) = partition.parts
            yield self._rows.batch(only.stream, pickle.loads(partition.records))
            return
        small: list[pa.RecordBatch] = []  # of streams with few records, joined
        size = 0
        for part in partition.parts:
            for batch in self._read_part(part):
                small.append(batch)
                size += batch.nbytes
                if size >= BATCH_BYTES_TARGET or sum(map(len, small)) >= BATCH_RECORDS_MAX:
                    yield _joined(small)
                    small, size = [], 0
        if small:
            yield _joined(small)

    def lost(self, stream: str, exc: Exception) -> None:
        """Raise the error for a stream that is gone, unless the query may lose data."""
        if self._options.fail_on_data_loss:
            raise DataLossError(
                f"stream {stream!r} in {self._options.uri} is gone, and the query may not have read all of"
                f" it: {exc}; to continue without it, start the query with failOnDataLoss=false"
            ) from exc

    def _read_part(self, part: StreamRange) -> Iterator[pa.RecordBatch]:
        gathered: list[RecordBatch] = []
        records = size = 0
        try:
            for batch in self._streams.log(part.stream).read_range(
                part.range,
                records_max=BATCH_RECORDS_MAX,
                skip_lost=not self._options.fail_on_data_loss,
            ):
                gathered.append(batch)
                records += len(batch)
                size += batch.payload_bytes
                if size >= BATCH_BYTES_TARGET or records >= BATCH_RECORDS_MAX:
                    yield self._rows.batch(part.stream, RecordBatch.joined(gathered))
                    gathered, records, size = [], 0, 0
        except LogNotFoundError as exc:
            self.lost(part.stream, exc)
        except LogTruncatedError as exc:
            # Its own advice is for readers of the library, so it is left out.
            raise DataLossError(
                f"stream {part.stream!r} in {self._options.uri}: records from {exc.position} were truncated"
                f" before the query read them; the log now begins at {exc.first_left}. Start the query with"
                " failOnDataLoss=false to continue there, or start a new one with a new checkpoint location"
                " and startingOffsets=earliest"
            ) from None
        if gathered:
            yield self._rows.batch(part.stream, RecordBatch.joined(gathered))


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def resolve_start(whole: Range, log: LogView) -> Range:
    """Replace a start before everything by the position of the first record that is left now.

    A task that reads a range again after a truncation then fails instead of returning other records.
    """
    if whole.start != BEFORE_EVERYTHING:
        return whole
    start = log.earliest()
    return Range(start, start if start == BEFORE_EVERYTHING else whole.end)


def check_identities(places: Places, streams: StreamsView) -> None:
    """Check that positions of an offset are of the logs that have their names now.

    Raises:
        OptionError: Another log has the name of one of them.
    """
    known = dict(places.logs)
    found = streams.identities(sorted(known)) if known else {}
    for stream, identity in known.items():
        if found.get(stream, identity) != identity:
            raise OptionError(
                f"stream {stream!r}: the offset given as an option is of another log, which was deleted; give"
                " a position in the log that has its name now"
            )


def resolve_place(
    places: Places, stream: str, log: LogView, *, is_end: bool, start_at_latest_if_none: bool = False
) -> Position:
    """The position of a place of the options, now.

    Raises:
        OptionError: As a start: no record has the transaction id or a later one, or the position is beyond
            the last record.
    """
    if places.cursor is not None and (committed := log.cursor(places.cursor)) is not None:
        return committed
    place = places.of(stream)
    if isinstance(place, Position):
        tail = log.tail()
        beyond = place.entry >= 0 and (place.segment, place.entry) > (tail.segment, tail.entry)
        if not is_end and beyond and tail != BEFORE_EVERYTHING:  # a log of which all is purged continues
            raise OptionError(
                f"stream {stream!r}: the start {place} is beyond its last record, {tail}, so nothing would be"
                " read; give a position of the log, or startingOffsets=latest"
            )
        return place
    if isinstance(place, Txid):
        found = log.before_txid(place.txid + is_end)
        if found is not None:
            return found
        if not is_end and not start_at_latest_if_none:
            raise OptionError(
                f"stream {stream!r} has no record with transaction id {place.txid} (or its time) or a later"
                " one; choose an earlier start, or set startingTimestampStrategy=latest to start at its end"
            )
    assert isinstance(place, Txid) or place == LATEST  # the other kinds returned above
    return log.tail()
