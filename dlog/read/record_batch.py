"""A batch of records as columns, without an object for each record until it is asked for.

Inside: ``RecordBatch``: columns, payload views. Not inside: decoding (``columns``, ``segment_reader``),
Arrow (``arrow_columns``), reading (``log_reader``).
Always: the batch is immutable; iterating over it gives the records that a reader gives one by one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, islice
from operator import length_hint
from typing import TYPE_CHECKING, overload

from dlog.errors import ConfigError
from dlog.format.record import NO_HEADERS, Record, RecordWithSealedAttributes
from dlog.read.columns import RecordRun, runs_of
from namespace.dlsn import DLSN

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("segment", "entry", "slot", "txid", "sequence_id", "payload")  # of Arrow
ATTRIBUTES = ("key", "headers")


class Untaken:
    """The records of a sequence that were not taken yet: one by one from ``records``, or by ``take``."""

    __slots__ = ("_counters", "_first", "records", "whole")

    def __init__(self, whole: Sequence[Record] = ()) -> None:
        self.whole, self._first = whole, 0
        self.records: Iterator[Record] = iter(())
        self._counters: list[Iterator[object]] | None = None  # of ``records``, once ``begin`` made them

    def __len__(self) -> int:
        if self._counters is None:
            return len(self.whole) - self._first
        return sum(map(length_hint, self._counters))

    @property
    def first(self) -> DLSN | None:
        """The position of the first record that was not taken."""
        return _dlsn_at(self.whole, len(self.whole) - left) if (left := len(self)) else None

    @property
    def last_taken(self) -> DLSN | None:
        """The position of the last record that was taken; None if none was."""
        return _dlsn_at(self.whole, index - 1) if (index := len(self.whole) - len(self)) else None

    def begin(self) -> Iterator[Record]:
        """Make ``records``, which ``take`` may replace."""
        if self._counters is None:
            rest = self.whole[self._first :]
            if isinstance(rest, RecordBatch):
                self.records, self._counters = rest.countdown()
            else:
                self.records = iter(rest)
                self._counters = [self.records]
        return self.records

    def take(self, count: int) -> Sequence[Record]:
        """The next records, at most this many."""
        if self.is_begun and not isinstance(self.whole, RecordBatch):
            return list(islice(self.records, count))
        first = len(self.whole) - len(self)
        taken = self.whole[first : first + count]
        self.records, self._counters, self._first = iter(()), None, first + len(taken)
        return taken

    @property
    def is_begun(self) -> bool:
        """Records can be taken from ``records``."""
        return self._counters is not None

    def rest(self, *, again: bool = False) -> Sequence[Record]:
        """The records that were not taken.

        Args:
            again: And the record before, which did not fit into memory when ``records`` made it. Its counter
                moved before that.
        """
        return self.whole[len(self.whole) - len(self) - again :]


def _dlsn_at(records: Sequence[Record], index: int) -> DLSN:
    return records.dlsn(index) if isinstance(records, RecordBatch) else records[index].dlsn


class RecordBatch(Sequence[Record]):
    """Consecutive records of a log; ``LogReader.read_batch`` returns it.

    It is a sequence of records: a ``Record`` is made when one is taken. The columns are arrays of signed
    64-bit numbers with one element for each record. The batch keeps the entries of its records in memory.
    """

    __slots__ = ("_columns", "_runs", "_stops")

    def __init__(self, runs: Iterable[RecordRun] = ()) -> None:
        self._runs = [each for each in runs if len(each)]
        self._stops = list(accumulate(map(len, self._runs)))  # the index after each run
        self._columns: dict[str, array[int]] = {}

    @staticmethod
    def of(records: Sequence[Record]) -> RecordBatch:
        """The batch of these records; a copy unless it is one already."""
        return records if isinstance(records, RecordBatch) else RecordBatch(runs_of(records))

    @staticmethod
    def joined(batches: Iterable[RecordBatch]) -> RecordBatch:
        """The records of several batches, one after the other; without a copy of payloads."""
        return RecordBatch(each for batch in batches for each in batch._runs)

    def __repr__(self) -> str:
        if not self._runs:
            return "<RecordBatch, empty>"
        return f"<RecordBatch, {len(self)} records from {self.first_dlsn} to {self.last_dlsn}>"

    def __len__(self) -> int:
        return self._stops[-1] if self._stops else 0

    def __iter__(self) -> Iterator[Record]:
        for each in self._runs:
            yield from each.records()[0]

    def countdown(self) -> tuple[Iterator[Record], list[Iterator[object]]]:
        """An iterator over the records, and such whose ``length_hint`` are together how many are left.

        A step of the first is one step of the interpreter, so threads and signal handlers cannot divide it.
        """
        parts = [each.records() for each in self._runs]
        return chain.from_iterable([records for records, _ in parts]), [counter for _, counter in parts]

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> RecordBatch: ...
    def __getitem__(self, index: int | slice) -> Record | RecordBatch:
        if isinstance(index, slice):
            first, stop, step = index.indices(len(self))
            if step != 1:
                raise ValueError("a batch holds consecutive records: a slice has no step")
            return self._part(first, max(first, stop))
        each, offset = self._find(index)
        return each.record(offset)

    def __eq__(self, other: object) -> bool:
        """True if the other batch, or list, holds the same records."""
        if not isinstance(other, (RecordBatch, list)):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    @property
    def first_dlsn(self) -> DLSN:
        """The position of the first record.

        Raises:
            IndexError: The batch is empty.
        """
        return self.dlsn(0)

    @property
    def last_dlsn(self) -> DLSN:
        """The position of the last record, for ``LogReader.commit``.

        Raises:
            IndexError: The batch is empty.
        """
        return self.dlsn(-1)

    def dlsn(self, index: int) -> DLSN:
        """The position of one record."""
        each, offset = self._find(index)
        return each.dlsn(offset)

    @property
    def segment_seqnos(self) -> array[int]:
        """The log segment sequence number of each record's DLSN."""
        return self._column("segment", (array("q", [each.segment_seqno]) * len(each) for each in self._runs))

    @property
    def entry_ids(self) -> array[int]:
        """The entry id of each record's DLSN."""
        return self._column("entry", (array("q", [each.entry_id]) * len(each) for each in self._runs))

    @property
    def slot_ids(self) -> array[int]:
        """The slot id of each record's DLSN."""
        return self._column("slot", (_counted(each.first_slot, len(each)) for each in self._runs))

    @property
    def txids(self) -> array[int]:
        """The transaction id of each record."""
        return self._column("txid", (array("q", each.txids) for each in self._runs))

    @property
    def sequence_ids(self) -> array[int]:
        """The sequence id of each record."""
        return self._column(
            "sequence_id", (_counted(each.first_sequence_id, len(each)) for each in self._runs)
        )

    def payload(self, index: int) -> memoryview:
        """The payload of one record, without a copy."""
        each, offset = self._find(index)
        start, stop = each.payload_range(offset)
        return memoryview(each.body)[start:stop]

    def payloads(self) -> Iterator[memoryview]:
        """The payload of each record, without a copy."""
        for each in self._runs:
            body = memoryview(each.body)
            for start, stop in each.payload_ranges():
                yield body[start:stop]

    def keys(self) -> list[bytes | None]:
        """The key of each record; None for a record without."""
        return [each.attributed[at].key if at in each.attributed else None for each, at in self._places()]

    def headers(self) -> list[Mapping[str, bytes]]:
        """The headers of each record; empty for a record without."""
        return [
            each.attributed[at].headers if at in each.attributed else NO_HEADERS
            for each, at in self._places()
        ]

    def _places(self) -> Iterator[tuple[RecordRun, int]]:
        return ((each, at) for each in self._runs for at in range(len(each)))

    @property
    def has_attributes(self) -> bool:
        """True if any record has a key or headers."""
        return any(each.attributed for each in self._runs)

    @property
    def has_sealed_attributes(self) -> bool:
        """True if the reader had not the key to decrypt the key and headers of a record, which has some."""
        return any(
            isinstance(record, RecordWithSealedAttributes)
            for each in self._runs
            for record in each.attributed.values()
        )

    @property
    def payload_bytes(self) -> int:
        """The size of all payloads."""
        return sum(each.stop - each.starts[0] - each.gap * (len(each) - 1) for each in self._runs)

    def to_arrow(self, *, attributes: bool = False, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """The batch as Arrow columns ``segment``, ``entry``, ``slot``, ``txid``, ``sequence_id`` (int64) and
        ``payload`` (binary). Payloads are copied once.

        Args:
            attributes: Add ``key`` (binary, null without one) and ``headers`` (a list of structs of ``key``,
                a string, and ``value``, binary; empty without headers), as the columns of Kafka in Spark.
            columns: These columns instead, in this order. There is also ``dlsn``, the position as text.

        Raises:
            ConfigError: The package pyarrow is not installed; the message names the extra.
            ValueError: There is no such column.
        """
        try:
            from dlog.read.arrow_columns import arrow_columns
        except ImportError as exc:
            raise ConfigError("to_arrow needs the package pyarrow: pip install '.[arrow]'") from exc
        if columns is None:
            columns = COLUMNS + ATTRIBUTES if attributes else COLUMNS
        return arrow_columns(self, self._runs, columns)

    def _find(self, index: int) -> tuple[RecordRun, int]:
        count = len(self)
        if index < 0:
            index += count
        if not 0 <= index < count:
            raise IndexError(f"there is no record {index} in a batch of {count}")
        at = bisect_right(self._stops, index)
        return self._runs[at], index - (self._stops[at] - len(self._runs[at]))

    def _part(self, first: int, stop: int) -> RecordBatch:
        if first == 0 and stop == len(self):
            return self
        parts = []
        begin = 0
        for each, end in zip(self._runs, self._stops, strict=True):
            if begin < stop and end > first:
                parts.append(each.part(max(first - begin, 0), min(stop, end) - begin))
            begin = end
        return RecordBatch(parts)

    def _column(self, name: str, parts: Iterable[array[int]]) -> array[int]:
        if name not in self._columns:
            column = array("q")
            for each in parts:
                column += each
            self._columns[name] = column
        return self._columns[name]


def _counted(first: int, count: int) -> array[int]:
    return array("q", range(first, first + count))
