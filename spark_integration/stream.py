"""Structured Streaming: offsets and ranges of micro-batches, and the records of a range.

Always: an offset never goes backwards. A range gives the same records each time. The first
range of a query is empty, as is that of a stream that joins later: so the checkpoint has the start before
any record is read. ``Trigger.Once`` makes one batch only, so a start at earliest or at a position is not in
the checkpoint. A partition has all that ``read`` needs, because Spark calls ``read`` on another copy in
another process.

Source: Spark 4.3's measured order of calls (docs/stream-format.md 10): a new query calls ``initialOffset``
twice, and Spark persists the end of batch 0 but not its start.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from dlog import DLogError, LogNotFoundError
from ledger.runtime.log_lines import get_logger
from spark_integration.arrow import ArrowRows
from spark_integration.client import StreamsView
from spark_integration.errors import OffsetFormatError
from spark_integration.measuring import Measures
from spark_integration.offsets import BEFORE_EVERYTHING, Position, from_offset, identities_in, to_offset
from spark_integration.options import SourceOptions
from spark_integration.planning import Amount, Extent, Piece, Range, StreamRange, shares, total
from spark_integration.ranges import RangePartition, Ranges, check_identities, packed, resolve_place
from spark_integration.tail_watch import TailWatch

logger = get_logger(__name__)
POLL_INTERVAL_S = 0.02
INLINE_BYTES_MAX = 64 << 10
_NO_BOUND = ReadMaxRows(2**63 - 1)  # not ReadAllAvailable, which only Trigger.Once passes
_NO_LIMIT = 2**63 - 1


class DlogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the streams of a query."""

    def __init__(self, options: SourceOptions, streams: StreamsView, rows: ArrowRows) -> None:
        self._options = options
        self._streams = streams
        self._ranges = Ranges(options, streams, rows)
        self._initial: dict[str, Position] | None = None
        self._initial_logs: dict[str, str | None] = {}
        self._pin_start = False  # the next latestOffset must return the start
        self._target: dict[str, Position] | None = None  # the end of the query with Trigger.AvailableNow
        self._names: list[str] = []
        self._names_until = 0.0  # the streams are looked for again then
        self._seen: dict[str, Position] = {}  # the last tail of each stream
        self._planned: dict[str, Position] = {}  # the end of the last range of each stream
        self._last_batch_at = time.monotonic()
        self._measures: dict[str, Measures] = {}
        self._extents: dict[str, list[Extent]] = {}  # looked up since the trigger's look at the tails
        self._watch: TailWatch | None = None  # at the end of the query's only stream
        self._watched = ""

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name, as all below
        self._target = self._tails(self._found_streams())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return _NO_BOUND

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        if self._initial is None:
            options = self._options
            check_identities(options.starting, self._streams)
            self._initial = {
                stream: resolve_place(
                    options.starting,
                    stream,
                    self._streams.log(stream),
                    is_end=False,
                    start_at_latest_if_none=options.start_at_latest_if_none,
                )
                for stream in self._found_streams()
            }
            if not self._initial:
                logger.warning(
                    "%s: no log of %s matches yet; the query waits for one", options.selection, options.uri
                )
            self._initial_logs = self._streams.identities(sorted(self._initial))
            self._pin_start = options.starting.moves
        return to_offset(self._initial, self._initial_logs)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next micro-batch; waits up to ``pollTimeoutMs`` for new records."""
        self._extents.clear()
        if self._pin_start:
            return start
        positions = self._positions(start)
        known = identities_in(start)
        tails = self._wait_beyond(positions)
        found = self._streams.identities(sorted(tails))
        for stream in self._replaced(known, found):
            positions[stream] = BEFORE_EVERYTHING  # the other log is read from its beginning
            known[stream] = ""
            self._measures.pop(stream, None)
            self._watch = None
        if isinstance(limit, ReadAllAvailable):
            # Only Trigger.Once passes this limit, and it ignores ``getDefaultReadLimit``. Its one batch
            # must read everything.
            ends = {
                stream: self._streams.log(stream).earliest()
                if known.get(stream) == ""
                else max(tail, positions.get(stream, tail))
                for stream, tail in tails.items()
            }
        else:
            ends = self._bounded(positions, tails)
        # A stream that is at its end keeps its position: Spark compares offsets as text, and a position has
        # two spellings.
        self._planned = positions | ends
        if self._planned == positions and "" not in known.values():
            return start
        self._last_batch_at = time.monotonic()
        return to_offset(self._planned, known | found)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The tails, and how far the last planned batch is after them, for the progress of the query."""
        if not self._seen:
            return None
        records, milliseconds = 0, 0
        for stream, tail in self._seen.items():
            planned = self._planned.get(stream, BEFORE_EVERYTHING)
            if tail <= planned:
                continue
            try:
                records += total(self._backlog(stream, Range(planned, tail))).records
                measures = self._measures_of(stream)
                last, done = measures.last_txid(tail), measures.last_txid(planned)
            except DLogError:
                return to_offset(self._seen)  # reading will tell; a report must not end the query
            if last is not None and done is not None:
                milliseconds = max(milliseconds, last - done)
        lag = {"records": records, "seconds": milliseconds / 1000}
        return {**to_offset(self._seen), "lag": lag}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[RangePartition]:
        self._pin_start = False
        starts, ends = self._positions(start), self._positions(end)
        before, after = identities_in(start), identities_in(end)
        if ends != self._planned:  # planned by an earlier run of the query
            for stream in self._replaced(after, self._streams.identities(sorted(after))):
                del ends[stream]
        for stream in self._changed(before, after):
            ends.pop(stream, None)  # this batch only notes where the other log begins
        self._planned = self._planned or ends
        if (arrived := self._arrived_partition(starts, ends)) is not None:
            return [arrived]
        return self._ranges.partitions(
            {stream: Range(starts.get(stream, BEFORE_EVERYTHING), end) for stream, end in ends.items()},
            {stream: self._measures_of(stream) for stream in ends},
            self._extents,
        )

    def _arrived_partition(
        self, starts: Mapping[str, Position], ends: Mapping[str, Position]
    ) -> RangePartition | None:
        """The whole micro-batch as one partition, if it is what the watch read; without a request."""
        stream = self._watched
        if self._watch is None or not starts.keys() == ends.keys() == {stream}:
            return None
        whole = Range(starts[stream], ends[stream])
        records = self._watch.arrived(whole)
        if records is None:
            return None
        options = self._options
        if options.partitions_min is not None and len(set(records.entry_ids)) > 1:
            return None  # several entries can be split
        if len(records) > (options.records_per_partition_max or len(records)):
            return None
        most = options.inline_bytes_max
        if most is None:
            most = 0 if self._streams.is_confidential else INLINE_BYTES_MAX
        return RangePartition([StreamRange(stream, whole)], packed(records, most))

    def read(self, partition: RangePartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        return self._ranges.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: only the checkpoint records the progress of a query."""

    def stop(self) -> None:
        """Close the reader at the tail. Spark ends the process, and that closes its connections."""
        if self._watch is not None:
            self._watch.close()

    def _positions(self, offset: dict[str, Any]) -> dict[str, Position]:
        """The positions in an offset of this query.

        Raises:
            OffsetFormatError: The checkpoint has streams that the query does not read.
        """
        positions = from_offset(offset)
        chosen = self._options.selection
        others = [stream for stream in positions if not chosen.may_have(stream)]
        if others:
            raise OffsetFormatError(
                f"the checkpoint belongs to {sorted(positions)}, but the query reads {chosen}, without"
                f" {sorted(others)}; add them, or use a new checkpoint location for other streams"
            )
        return positions

    @staticmethod
    def _changed(known: Mapping[str, str], found: Mapping[str, str | None]) -> list[str]:
        return [stream for stream, one in known.items() if stream in found and found[stream] != one]

    def _replaced(self, known: Mapping[str, str], found: Mapping[str, str | None]) -> list[str]:
        """The streams whose logs were deleted, and other logs created with their names.

        Raises:
            DataLossError: There are some; without ``failOnDataLoss=false``.
        """
        replaced = self._changed(known, found)
        for stream in replaced:
            self._ranges.lost(
                stream, LogNotFoundError(stream, "it was deleted, and another log has its name now")
            )
        return replaced

    def _found_streams(self) -> list[str]:
        now = time.monotonic()
        if now >= self._names_until:
            self._names = self._streams.names()
            self._names_until = now + self._options.discovery_interval_ms / 1000
        return self._names

    def _tails(self, streams: Iterable[str], known: Iterable[str] = ()) -> dict[str, Position]:
        """The tails of streams that exist, and of those that must exist.

        Raises:
            DataLossError: A stream that was named, or of which records were read, does not exist; without
                ``failOnDataLoss=false``.
        """
        tails = {}
        needed = {*known, *self._options.selection.names}
        for stream, tail in self._streams.tails(sorted({*streams, *needed})).items():
            if tail is not None:
                tails[stream] = tail
            elif stream in needed:
                self._ranges.lost(stream, LogNotFoundError(stream))
        self._seen = self._seen | tails
        return tails

    def _wait_beyond(self, positions: Mapping[str, Position]) -> dict[str, Position]:
        deadline = time.monotonic() + self._options.poll_timeout_ms / 1000
        # A watch has read all that was there, so its wait replaces the first look at the stream.
        if self._is_watched(positions) and (arrived := self._arrived_beyond(positions, deadline)) is not None:
            return arrived
        while True:
            began = time.monotonic()
            if self._target is not None:
                target = self._target
                tails = self._tails(target, positions)
                # A stream that was not there when the query was started belongs to its next run.
                return {
                    stream: min(tail, target.get(stream, BEFORE_EVERYTHING)) for stream, tail in tails.items()
                }
            tails = self._tails(self._found_streams(), positions)
            now = time.monotonic()
            if now >= deadline or any(
                tail > positions.get(stream, BEFORE_EVERYTHING) for stream, tail in tails.items()
            ):
                return tails
            if (arrived := self._arrived_beyond(positions, deadline)) is not None:
                return arrived
            time.sleep(max(POLL_INTERVAL_S, now - began))  # looking at many streams must not keep a core busy

    def _is_watched(self, positions: Mapping[str, Position]) -> bool:
        position = positions.get(self._watched)
        return (
            self._target is None
            and self._watch is not None
            and position is not None
            and self._watch.is_at(position)
        )

    def _arrived_beyond(
        self, positions: Mapping[str, Position], deadline: float
    ) -> dict[str, Position] | None:
        """The end of a query's only stream, as soon as a record arrives after its position.

        None if nothing came in time, or if the stream cannot be waited at: the caller then looks again.
        """
        streams = self._found_streams()
        if len(streams) != 1 or positions.keys() != set(streams):
            return None
        (stream,) = streams
        position = positions[stream]
        if position == BEFORE_EVERYTHING or not self._streams.log(stream).can_follow:
            return None
        if self._watch is None or self._watched != stream:
            self._watch, self._watched = TailWatch(self._streams.log(stream)), stream
        until = deadline
        if self._options.selection.names != (stream,):
            until = min(until, self._names_until)  # another stream may join
        try:
            tail = self._watch.wait(position, max(0.0, until - time.monotonic()))
        except DLogError:
            return None  # looking at the stream, or reading it, says what it is
        if tail is None:
            return None
        self._seen = self._seen | {stream: tail}
        return {stream: tail}

    def _bounded(
        self, positions: Mapping[str, Position], tails: Mapping[str, Position]
    ) -> dict[str, Position]:
        """The end of each stream's range within the limits of a trigger."""
        ends: dict[str, Position] = {}
        behind: dict[str, Range] = {}
        for stream, tail in tails.items():
            position = positions.get(stream, BEFORE_EVERYTHING)
            if tail <= position:
                continue
            if position == BEFORE_EVERYTHING:
                # This range is empty, also if it is planned again, and pins the start. A range with records
                # from BEFORE_EVERYTHING would give other records after a truncation.
                ends[stream] = self._streams.log(stream).earliest()
            else:
                behind[stream] = Range(position, tail)
        options = self._options
        wanted = options.records_per_trigger_min
        if not options.limits.any and wanted is None:
            return ends | {stream: whole.end for stream, whole in behind.items()}
        backlogs = {stream: self._backlog(stream, whole) for stream, whole in behind.items()}
        amounts = {stream: total(measured) for stream, measured in backlogs.items()}
        if wanted is not None and self._target is None:
            waited_ms = (time.monotonic() - self._last_batch_at) * 1000
            records = sum(amount.records for amount in amounts.values())
            if records < wanted and waited_ms < options.trigger_delay_ms_max:
                return ends
        limits = options.limits
        most = {
            name: None if limit is None else shares(limit, {s: getattr(a, name) for s, a in amounts.items()})
            for name, limit in (
                ("records", limits.records),
                ("size_bytes", limits.size_bytes),
                ("entries", limits.entries),
            )
        }
        for stream, whole in behind.items():
            bound = Amount(**{n: _NO_LIMIT if each is None else each[stream] for n, each in most.items()})
            ends[stream] = self._measures_of(stream).limited_end(whole, backlogs[stream], bound)
        return ends

    def _backlog(self, stream: str, whole: Range) -> list[Piece]:
        if stream not in self._extents:
            self._extents[stream] = self._streams.log(stream).extents()
        return self._measures_of(stream).backlog(whole, self._extents[stream])

    def _measures_of(self, stream: str) -> Measures:
        if stream not in self._measures:
            self._measures[stream] = Measures(self._streams.log(stream))
        return self._measures[stream]
