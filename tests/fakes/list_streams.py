"""Logs that are lists, for the readers without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs
from pyspark.sql.types import BinaryType

import dlog.blocking
from dlog import DLSN, EntryTotals, LogNotFoundError, LogTruncatedError, Record, RecordBatch
from spark_integration.arrow import ArrowRows
from spark_integration.client import StreamsView
from spark_integration.offsets import BEFORE_EVERYTHING, Position, just_before
from spark_integration.options import parse_options
from spark_integration.planning import Extent, Range
from spark_integration.source import DlogBatchReader, resolve_ranges
from spark_integration.stream import DlogStreamReader


@attrs.define
class ListLog:
    """A log with segments of four entries of two records each. Transaction ids are 10 times the number."""

    records: list[Record] = attrs.Factory(list)
    truncated: int = 0  # number of truncated records
    cursors: dict[str, Position] = attrs.Factory(dict)
    exists: bool = True
    identity: str | None = None
    measured: int = 0  # number of calls that read entries
    listed: int = 0  # number of calls that list segments

    def truncate(self, count: int) -> None:
        """Truncate the first records, but none of a segment that is not full: its writer has it open."""
        self.truncated = max(self.truncated, min(count, len(self.records) // 8 * 8))

    def grow(self, count: int, *, payload_bytes: int = 0) -> None:
        for number in range(len(self.records), len(self.records) + count):
            entry = number // 2
            dlsn = DLSN(1 + entry // 4, entry % 4, number % 2)
            payload = b"%d" % number
            self.records.append(Record(dlsn, 10 * number, payload.rjust(payload_bytes), number))

    def tail(self) -> Position:
        if not self.exists:
            raise LogNotFoundError("s")
        return position(self.records[-1]) if self.records else BEFORE_EVERYTHING

    def earliest(self) -> Position:
        if not self.exists:
            raise LogNotFoundError("s")
        if not self.records:
            return BEFORE_EVERYTHING
        if self.truncated == len(self.records):
            return just_before(self.records[-1].dlsn.segment_seqno + 1, 0, 0)
        return before(self.records[self.truncated].dlsn)

    def extents(self) -> list[Extent]:
        if not self.exists:
            raise LogNotFoundError("s")
        self.listed += 1
        last = self.records[-1].dlsn.segment_seqno if self.records else 0
        return [Extent(number, 3, 8) for number in range(1, last)] + [Extent(last, -1)]

    def entry_totals(self, entries: Iterable[tuple[int, int]]) -> list[EntryTotals | None]:
        self.measured += 1
        return [self._totals(segment, entry) for segment, entry in entries]

    def _totals(self, segment: int, entry: int) -> EntryTotals | None:
        through = [
            record
            for record in self.records
            if record.dlsn.segment_seqno == segment and record.dlsn.entry_id <= entry
        ]
        if not through or through[-1].dlsn.entry_id != entry:
            return None
        size = sum(20 + len(record.payload) for record in through)
        return EntryTotals(len(through), size, through[-1].txid)

    def slots(self, segment: int, entry: int) -> list[int]:
        self.measured += 1
        place = (segment, entry)
        left = self.records[self.truncated :]
        return [each.dlsn.slot_id for each in left if (each.dlsn.segment_seqno, each.dlsn.entry_id) == place]

    def before_txid(self, txid: int) -> Position | None:
        left = self.records[self.truncated :]
        return next((before(record.dlsn) for record in left if record.txid >= txid), None)

    @property
    def can_follow(self) -> bool:
        return False

    def follow(self, position: Position) -> dlog.blocking.LogReader:
        raise NotImplementedError("a list is looked at again and again")

    def cursor(self, name: str) -> Position | None:
        return self.cursors.get(name)

    def read_range(self, part: Range, *, records_max: int, skip_lost: bool = False) -> Iterator[RecordBatch]:
        assert part.start != BEFORE_EVERYTHING
        if not self.exists:
            raise LogNotFoundError("s")
        found = [r for r in self.records if part.start < position(r) <= part.end]
        if skip_lost:
            found = [r for r in found if r.sequence_id >= self.truncated]
        if found and found[0].sequence_id < self.truncated:
            raise LogTruncatedError("s", found[0].dlsn, self.records[self.truncated - 1].dlsn.next_slot())
        for first in range(0, len(found), records_max):
            yield RecordBatch.of(found[first : first + records_max])


@attrs.define
class ListStreams:
    """Several such logs."""

    logs: dict[str, ListLog]
    listed: int = 0  # number of listings

    def names(self) -> list[str]:
        self.listed += 1
        return sorted(self.logs)

    def log(self, stream: str) -> ListLog:
        return self.logs.get(stream) or ListLog(exists=False)

    @property
    def is_confidential(self) -> bool:
        return False

    def identities(self, streams: Sequence[str]) -> dict[str, str | None]:
        return {stream: self.log(stream).identity for stream in streams if self.log(stream).exists}

    def tails(self, streams: Sequence[str]) -> dict[str, Position | None]:
        return {stream: self.log(stream).tail() if self.log(stream).exists else None for stream in streams}


def position(record: Record) -> Position:
    return Position(record.dlsn.segment_seqno, record.dlsn.entry_id, record.dlsn.slot_id)


def before(dlsn: DLSN) -> Position:
    return just_before(dlsn.segment_seqno, dlsn.entry_id, dlsn.slot_id)


def stream_reader(streams: StreamsView, given: Mapping[str, str]) -> DlogStreamReader:
    """A reader of a streaming query, made as the source makes it."""
    options = parse_options(given, streaming=True)
    return DlogStreamReader(options, streams, ArrowRows(options.columns, BinaryType()))


def batch_reader(streams: StreamsView, given: Mapping[str, str]) -> DlogBatchReader:
    """A reader of a batch query, made as the source makes it."""
    options = parse_options(given, streaming=False)
    ranges = resolve_ranges(options, streams)
    return DlogBatchReader(options, streams, ArrowRows(options.columns, BinaryType()), ranges)
