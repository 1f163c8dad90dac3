"""Records of one entry as columns: offsets into the entry's bytes, and no object for each record.

Inside: ``RecordRun``, and the decoder of entries that hold only plain user records. Not inside: entries of
other kinds (``segment_reader``), batches of several entries (``record_batch``).
Always: an entry that this decoder accepts gives the records that ``decode_records`` gives for it.

Source: DistributedLog, LogRecord.java (docs/stream-format.md 2.1).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from struct import Struct

from dlog.format.record import (
    FLAG_CONTROL,
    POSITION_MAX,
    POSITION_SHIFT,
    RECORD_HEADER,
    RECORD_HEADER_BYTES,
    Record,
    make_records,
)
from namespace.dlsn import DLSN

_NEXT_POSITION = 1 << POSITION_SHIFT
_UNIFORM_RECORDS_MIN = 4  # below it the second decoder is as fast
_BLOCK_RECORDS_LOG2_MAX = 8


class RecordRun:
    """Records of one entry with consecutive slots and sequence ids. Payloads are ranges of ``body``."""

    __slots__ = (
        "attributed",
        "body",
        "entry_id",
        "first_sequence_id",
        "first_slot",
        "gap",
        "segment_seqno",
        "starts",
        "stop",
        "txids",
    )

    def __init__(
        self,
        body: bytes,
        segment_seqno: int,
        entry_id: int,
        first_slot: int,
        first_sequence_id: int,
        starts: Sequence[int],
        stop: int,
        gap: int,
        txids: Sequence[int],
    ) -> None:
        self.body, self.segment_seqno, self.entry_id = body, segment_seqno, entry_id
        self.first_slot, self.first_sequence_id = first_slot, first_sequence_id
        self.starts = starts  # of payloads in ``body``
        self.stop = stop  # of the last payload
        self.gap = gap  # bytes between two payloads
        self.txids = txids
        self.attributed: dict[int, Record] = {}  # the records that have a key or headers, by index

    def __len__(self) -> int:
        return len(self.txids)

    def payload_range(self, index: int) -> tuple[int, int]:
        """Where a payload begins and ends in ``body``."""
        starts = self.starts
        return starts[index], starts[index + 1] - self.gap if index + 1 < len(starts) else self.stop

    def payload_ranges(self) -> Iterator[tuple[int, int]]:
        """``payload_range`` of each record."""
        return zip(self.starts, self._payload_stops(), strict=True)

    def _payload_stops(self) -> list[int]:
        gap = self.gap
        stops = [each - gap for each in self.starts[1:]]
        stops.append(self.stop)
        return stops

    def dlsn(self, index: int) -> DLSN:
        """The position of a record."""
        return DLSN(self.segment_seqno, self.entry_id, self.first_slot + index)

    def record(self, index: int) -> Record:
        """One record."""
        if index in self.attributed:
            return self.attributed[index]
        start, stop = self.payload_range(index)
        return Record(
            self.dlsn(index), self.txids[index], self.body[start:stop], self.first_sequence_id + index
        )

    def records(self) -> tuple[Iterator[Record], Iterator[object]]:
        """All records, each made when it is taken; and an iterator whose ``length_hint`` is the number left.

        A step of the first is one step of the interpreter.
        """
        if self.attributed:
            made = iter([self.record(index) for index in range(len(self))])
            return made, made
        count, sequence_id = len(self), self.first_sequence_id
        slot_ids = iter(range(self.first_slot, self.first_slot + count))
        payloads = map(self.body.__getitem__, map(slice, self.starts, self._payload_stops()))
        sequence_ids = range(sequence_id, sequence_id + count)
        made = make_records(self.segment_seqno, self.entry_id, slot_ids, self.txids, payloads, sequence_ids)
        return made, slot_ids

    def part(self, first: int, stop: int) -> RecordRun:
        """The records from ``first`` up to, not including, ``stop``; at least one."""
        if first == 0 and stop == len(self):
            return self
        part = RecordRun(
            self.body,
            self.segment_seqno,
            self.entry_id,
            self.first_slot + first,
            self.first_sequence_id + first,
            self.starts[first:stop],
            self.payload_range(stop - 1)[1],
            self.gap,
            self.txids[first:stop],
        )
        if self.attributed:
            part.attributed = {at - first: each for at, each in self.attributed.items() if first <= at < stop}
        return part


@lru_cache(maxsize=64)
def _headers_layout(payload_bytes: int, count: int) -> Struct:
    """The layout of this many records with payloads of this size, which are skipped."""
    order, fields = RECORD_HEADER.format[0], RECORD_HEADER.format[1:]
    return Struct(order + f"{fields}{payload_bytes}x" * count)


def plain_run(
    body: bytes, start: int, stop: int, *, segment_seqno: int, entry_id: int, position: int, sequence_id: int
) -> RecordRun | None:
    """The user records in ``body[start:stop]``, whose positions follow ``position``; it may be empty.

    A control record after them is dropped. None: the entry holds other records, or is damaged; decode it
    with all checks.

    Args:
        sequence_id: Of the first record.
    """
    if (uniform := _uniform(body, start, stop, position)) is not None:
        starts, end, txids = uniform
    else:
        found = _each(body, start, stop, position)
        if found is None:
            return None
        starts, end, txids = found
    return RecordRun(body, segment_seqno, entry_id, 0, sequence_id, starts, end, RECORD_HEADER_BYTES, txids)


def _uniform(
    body: bytes, start: int, stop: int, position: int
) -> tuple[Sequence[int], int, Sequence[int]] | None:
    """Starts of payloads, end of the last and transaction ids, if all payloads have one size; else None."""
    if stop - start < RECORD_HEADER_BYTES:
        return None
    _, _, size_bytes = RECORD_HEADER.unpack_from(body, start)
    if size_bytes < 0:
        return None
    step = RECORD_HEADER_BYTES + size_bytes
    count, rest = divmod(stop - start, step)
    if rest or count < _UNIFORM_RECORDS_MIN or position + count > POSITION_MAX:
        return None
    first_word, last_word = position + 1 << POSITION_SHIFT, position + count << POSITION_SHIFT
    word, _, last_size = RECORD_HEADER.unpack_from(body, stop - step)
    if word != last_word or last_size != size_bytes:
        return None  # most entries with payloads of several sizes end here
    # In blocks: one record at a time would leave a tuple for each to the garbage collector. A layout takes as
    # long to make as a block to read, so there are few of them.
    txids: tuple[int, ...] = ()
    at, word = start, first_word
    while at < stop:
        left = (stop - at) // step
        block_count = 1 << min(_BLOCK_RECORDS_LOG2_MAX, left.bit_length() - 1)
        headers = _headers_layout(size_bytes, block_count).unpack_from(body, at)
        next_word = word + block_count * _NEXT_POSITION
        if headers[2::3].count(size_bytes) != block_count or headers[::3] != tuple(
            range(word, next_word, _NEXT_POSITION)
        ):
            return None
        txids += headers[1::3]
        at, word = at + block_count * step, next_word
    return range(start + RECORD_HEADER_BYTES, stop + 1, step), stop, txids


def _each(
    body: bytes, start: int, stop: int, position: int
) -> tuple[Sequence[int], int, Sequence[int]] | None:
    """As ``_uniform``, for payloads of any size."""
    unpack = RECORD_HEADER.unpack_from
    starts: list[int] = []
    txids: list[int] = []
    push_start, push_txid = starts.append, txids.append
    offset, word_expected = start, position + 1 << POSITION_SHIFT
    word_max = POSITION_MAX << POSITION_SHIFT
    last_header = stop - RECORD_HEADER_BYTES
    while offset <= last_header:
        word, txid, size_bytes = unpack(body, offset)
        if word != word_expected or size_bytes < 0 or word > word_max:
            break
        offset += RECORD_HEADER_BYTES
        push_start(offset)
        push_txid(txid)
        offset += size_bytes
        word_expected += _NEXT_POSITION
    if offset == stop:
        return starts, stop, txids
    is_control_last = (
        offset < last_header
        and word == word_expected - _NEXT_POSITION | FLAG_CONTROL
        and size_bytes == stop - offset - RECORD_HEADER_BYTES
    )
    return (starts, offset, txids) if is_control_last else None


def runs_of(records: Sequence[Record]) -> list[RecordRun]:
    """The runs of records that exist as objects; payloads are copied."""
    runs: list[RecordRun] = []
    first = 0
    for index in range(1, len(records) + 1):
        if index < len(records) and _continues(records[index - 1], records[index]):
            continue
        part = records[first:index]
        sizes = [len(record.payload) for record in part]
        stops = list(accumulate(sizes))
        run = RecordRun(
            b"".join([record.payload for record in part]),
            part[0].dlsn.segment_seqno,
            part[0].dlsn.entry_id,
            part[0].dlsn.slot_id,
            part[0].sequence_id,
            [0, *stops[:-1]],
            stops[-1],
            0,
            [record.txid for record in part],
        )
        run.attributed = {at: record for at, record in enumerate(part) if record.__class__ is not Record}
        runs.append(run)
        first = index
    return runs


def _continues(before: Record, record: Record) -> bool:
    return record.dlsn == before.dlsn.next_slot() and record.sequence_id == before.sequence_id + 1
