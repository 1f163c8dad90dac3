"""Which records share an entry.

Inside: the batch (the records of one entry, with their outcome), and the rule that gathers records.
Not inside: bytes (``record``), entry ids and positions (``segment_writer``), waiting callers
(``log_writer``).
Always: records are sent in the order of submission; a batch never changes after it was cut, so a record's
slot is fixed when the record is added, also if its segment fails.

The rule is group commit. With nothing in flight, a record that a caller waits for is sent at once, even
alone. While a batch is in flight, records gather until it is acknowledged or an entry is full. So a single
append does not wait, and a thousand concurrent appends share a few entries. Records that no caller waits for
yet may gather a little longer (``writer_machine``).

Source: DistributedLog, BKLogSegmentWriter.java (transmit buffer). The original uses a timer.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import groupby
from threading import get_ident
from typing import NoReturn, cast

from dlog.errors import RecordOutcome, WriteError
from dlog.format.attributes import BLOCK_BYTES, ITEM_BYTES, item_bytes
from dlog.format.envelope import ENTRY_BODY_BYTES_MAX
from dlog.format.record import PAYLOAD_BYTES_MAX, RECORD_BYTES_MAX, RECORD_HEADER_BYTES, TXID_MAX
from namespace.dlsn import DLSN

assert RECORD_BYTES_MAX <= ENTRY_BODY_BYTES_MAX  # constants
# What a record takes in memory besides its bytes: its objects, its id, its places in lists.
HELD_BYTES = 256
_FEW = 8  # so many records are added one by one


class Batch:
    """The records of one entry.

    A control batch has no records: its entry holds one control record. The batch that ends the stream has one
    transaction id, ``TXID_MAX``, and no payload.
    """

    __slots__ = (
        "_callbacks",
        "attributes",
        "entry_id",
        "error",
        "error_was_seen",
        "is_large",
        "is_wanted",
        "lac",
        "on_wanted",
        "outcome",
        "payloads",
        "segment_seqno",
        "since_s",
        "size_bytes",
        "thread",
        "txids",
    )

    def __init__(self, on_wanted: Callable[[], None] | None = None) -> None:
        """``on_wanted``: called once if a caller begins to wait for a record that is not sent yet."""
        self.on_wanted = on_wanted
        self.thread = get_ident()  # of the run whose writer it is
        self.is_wanted = False  # a caller waits for a record
        self.payloads: list[bytes] = []
        self.txids: list[int] = []
        self.attributes: list[tuple[int, bytes]] | None = None  # keys and headers, of the records with any
        self.size_bytes = 0  # of the records, with what their entry has for them
        self.since_s = math.inf  # when its first record was added; never, without one
        self.is_large = False  # one record, which takes several entries; ``entry_id`` is the last of them
        self.segment_seqno = -1  # of the entry, once it was sent
        self.entry_id = -1
        self.lac = -1  # in its entry: readers see the ledger up to there once this entry is durable
        self.outcome = RecordOutcome.PENDING
        self.error: WriteError | None = None
        self.error_was_seen = False  # a caller got the error
        self._callbacks: list[Callable[[], None]] | None = None

    def __repr__(self) -> str:
        where = f"{self.segment_seqno}:{self.entry_id}" if self.entry_id >= 0 else "not sent"
        return (
            f"<Batch of {len(self.payloads)} records, {self.size_bytes} bytes, {where}, {self.outcome.value}>"
        )

    @property
    def is_settled(self) -> bool:
        """True if the outcome of the records is decided. It may be decided as unknown."""
        return self.outcome is not RecordOutcome.PENDING

    @property
    def held_bytes(self) -> int:
        """About what the batch takes in memory; ask before it settles, which drops its payloads."""
        return self.size_bytes + HELD_BYTES * len(self.payloads)

    def want(self) -> None:
        """A caller begins to wait for a record of the batch, so it is sent as soon as possible."""
        if not self.is_wanted:
            self.is_wanted = True
            if self.on_wanted is not None and self.entry_id < 0:
                self.on_wanted()

    def on_settled(self, callback: Callable[[], None]) -> None:
        """Call the callback when the batch settles, or now if it has. It must neither block nor raise."""
        if self.outcome is not RecordOutcome.PENDING:
            callback()
        elif self._callbacks is None:
            self._callbacks = [callback]
        else:
            self._callbacks.append(callback)

    def durable(self) -> None:
        """Settle: the entry is durable in the log."""
        assert self.entry_id >= 0  # set when it was sent
        self._settle(RecordOutcome.DURABLE)

    def failed(self, error: WriteError) -> None:
        """Settle: the entry was not written, or that is unknown; the error says which."""
        # callers pass errors of these two kinds
        assert error.outcome in (RecordOutcome.NOT_WRITTEN, RecordOutcome.UNKNOWN)
        self.error = error
        self._settle(error.outcome)

    def dlsn(self, slot: int) -> DLSN:
        """The position of a record that is durable.

        Raises:
            WriteError: It was not written, or that is unknown.
            RuntimeError: The batch is not settled.
        """
        if self.error is not None:
            self.raise_error()
        if self.outcome is RecordOutcome.PENDING:
            raise RuntimeError("the record has no outcome yet; await it")
        return DLSN(self.segment_seqno, self.entry_id, slot)

    def positions(self, slot: int, count: int) -> list[DLSN]:
        """The positions of records that are durable."""
        seqno, entry_id = self.segment_seqno, self.entry_id
        return [DLSN(seqno, entry_id, each) for each in range(slot, slot + count)]

    def raise_error(self) -> NoReturn:
        """Raise the error of the records; each call raises a new object."""
        assert self.error is not None  # asked only after a failure
        self.error_was_seen = True
        raise self.error.about(self.outcome)

    def _settle(self, outcome: RecordOutcome) -> None:
        # An append must not get two results, such as durable and then failed.
        if self.outcome is not RecordOutcome.PENDING:
            raise AssertionError(f"{self!r} is settled already")
        self.outcome = outcome
        self.payloads, self.txids, self.attributes = [], [], None
        callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            callback()


def encoded_bytes(payloads: Sequence[bytes], attributes: Sequence[bytes | None] | None = None) -> int:
    """The bytes that records with these payloads, keys and headers take in an entry."""
    size_bytes = sum(map(len, payloads)) + RECORD_HEADER_BYTES * len(payloads)
    if attributes is not None:
        size_bytes += BLOCK_BYTES + sum(item_bytes(each) for each in attributes if each is not None)
    return size_bytes


def is_too_long(payload: bytes, attributes: bytes | None) -> bool:
    """True if the record takes several entries."""
    return len(payload) + (0 if attributes is None else len(attributes)) > PAYLOAD_BYTES_MAX


def _join(ranges: list[tuple[Batch, int, int]], batch: Batch, slot: int, count: int) -> None:
    """Append a range to ranges, or to the last one if it continues that."""
    if ranges and ranges[-1][0] is batch:
        ranges[-1] = batch, ranges[-1][1], ranges[-1][2] + count
    else:
        ranges.append((batch, slot, count))


class Batcher:
    """Gathers records into batches, and returns each batch when it is due."""

    def __init__(
        self,
        *,
        entry_bytes_target: int,
        reserved_bytes: int = 0,
        on_wanted: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            reserved_bytes: Of each entry, for what the segment's writer adds to the records.
            on_wanted: Called when a caller begins to wait for records that are not sent yet.
            clock: Seconds; only differences count. Asked once for each batch.
        """
        assert 0 < entry_bytes_target <= ENTRY_BODY_BYTES_MAX  # WriterConfig validates it
        self._entry_bytes_target = entry_bytes_target
        self.entry_bytes_max = ENTRY_BODY_BYTES_MAX - reserved_bytes  # of records with their headers
        assert self.entry_bytes_max >= RECORD_BYTES_MAX  # computed from constants
        self._on_wanted, self._clock = on_wanted, clock
        self._open = Batch(on_wanted)
        self._cut: deque[Batch] = deque()  # in order, before the open one
        self.held_bytes = 0  # gathered and not yet taken; 0 only without any batch to take

    def __bool__(self) -> bool:
        return self.held_bytes > 0

    def add(self, payload: bytes, txid: int) -> tuple[Batch, int]:
        """Add one record after the others; return its batch and its slot in the batch."""
        size_bytes = RECORD_HEADER_BYTES + len(payload)
        if size_bytes > RECORD_BYTES_MAX:
            return self._add_large(payload, txid), 0
        batch = self._open
        if batch.size_bytes + size_bytes > self.entry_bytes_max:
            self.cut()
            batch = self._open
        slot = len(batch.payloads)
        if not slot:
            batch.since_s = self._clock()
        batch.payloads.append(payload)
        batch.txids.append(txid)
        batch.size_bytes += size_bytes
        self.held_bytes += size_bytes + HELD_BYTES
        if batch.size_bytes >= self._entry_bytes_target:
            self.cut()
        return batch, slot

    def add_with(self, payload: bytes, txid: int, attributes: bytes) -> tuple[Batch, int]:
        """As ``add``, with the key and headers of the record."""
        if is_too_long(payload, attributes):
            return self._add_large(payload, txid, attributes), 0
        size_bytes = RECORD_HEADER_BYTES + len(payload) + item_bytes(attributes)
        # The limit of a record, not of an entry: the control record obeys it, too.
        if self._open.size_bytes + size_bytes + BLOCK_BYTES > RECORD_BYTES_MAX:
            self.cut()
        batch = self._open
        slot = len(batch.payloads)
        if not slot:
            batch.since_s = self._clock()
        if batch.attributes is None:
            batch.attributes = []
            size_bytes += BLOCK_BYTES
        batch.payloads.append(payload)
        batch.txids.append(txid)
        batch.attributes.append((slot, attributes))
        batch.size_bytes += size_bytes
        self.held_bytes += size_bytes + HELD_BYTES
        if batch.size_bytes >= self._entry_bytes_target:
            self.cut()
        return batch, slot

    def add_each(
        self, payloads: Sequence[bytes], txids: Sequence[int], attributes: Sequence[bytes | None]
    ) -> list[tuple[Batch, int, int]]:
        """Like ``add_mixed``, with the keys and headers of each record."""
        ranges: list[tuple[Batch, int, int]] = []
        if len(payloads) > _FEW and None not in attributes:
            found = self._add_alike(payloads, txids, cast(Sequence[bytes], attributes))
            if found is not None:
                return [found]
            half = len(payloads) // 2
            for part in (slice(half), slice(half, None)):
                for each_range in self.add_each(payloads[part], txids[part], attributes[part]):
                    _join(ranges, *each_range)
            return ranges
        for payload, txid, each in zip(payloads, txids, attributes, strict=True):
            batch, slot = self.add(payload, txid) if each is None else self.add_with(payload, txid, each)
            _join(ranges, batch, slot, 1)
        return ranges

    def _add_alike(
        self, payloads: Sequence[bytes], txids: Sequence[int], attributes: Sequence[bytes]
    ) -> tuple[Batch, int, int] | None:
        """Add all records to the open batch; None, and nothing is added, if that would fill it."""
        batch, count = self._open, len(payloads)
        if batch.attributes is None and batch.payloads:
            return None  # its control record is not counted yet
        size_bytes = sum(map(len, payloads)) + sum(map(len, attributes))
        size_bytes += (RECORD_HEADER_BYTES + ITEM_BYTES) * count
        if batch.attributes is None:
            size_bytes += BLOCK_BYTES
        after_bytes = batch.size_bytes + size_bytes
        if after_bytes >= self._entry_bytes_target or after_bytes + BLOCK_BYTES > RECORD_BYTES_MAX:
            return None
        slot = len(batch.payloads)
        if batch.attributes is None:
            batch.since_s, batch.attributes = self._clock(), []
        batch.payloads += payloads
        batch.txids += txids
        batch.attributes += zip(range(slot, slot + count), attributes, strict=True)
        batch.size_bytes = after_bytes
        self.held_bytes += size_bytes + HELD_BYTES * count
        return batch, slot, count

    def add_many(self, payloads: Sequence[bytes], txids: Sequence[int]) -> list[tuple[Batch, int, int]]:
        """Add records after the others; return (batch, first slot, count) for each batch that got some."""
        assert len(payloads) == len(txids)  # the callers make both together
        ranges: list[tuple[Batch, int, int]] = []
        first = 0
        while first < len(payloads):
            batch = self._open
            slot = len(batch.payloads)
            space = self._entry_bytes_target - batch.size_bytes
            stop, size_bytes = first, 0
            # At least as many as the space takes. All that are left would make the time quadratic.
            for payload in payloads[first : first + space // RECORD_HEADER_BYTES + 1]:
                record_bytes = RECORD_HEADER_BYTES + len(payload)
                if batch.size_bytes + size_bytes + record_bytes > self.entry_bytes_max:
                    break
                size_bytes += record_bytes
                stop += 1
                if size_bytes >= space:
                    break
            if stop > first:
                if not slot:
                    batch.since_s = self._clock()
                batch.payloads += payloads[first:stop]
                batch.txids += txids[first:stop]
                batch.size_bytes += size_bytes
                self.held_bytes += size_bytes + HELD_BYTES * (stop - first)
                ranges.append((batch, slot, stop - first))
            if size_bytes >= space or stop < len(payloads):
                self.cut()
            first = stop
        return ranges

    def add_mixed(self, payloads: Sequence[bytes], txids: Sequence[int]) -> list[tuple[Batch, int, int]]:
        """Like ``add_many``, with records that are too long for one entry among them."""
        ranges: list[tuple[Batch, int, int]] = []
        first = 0
        for is_large, group in groupby(payloads, lambda each: len(each) > PAYLOAD_BYTES_MAX):
            alike = list(group)
            ids = txids[first : first + len(alike)]
            first += len(alike)
            if is_large:
                ranges += [(self._add_large(*each), 0, 1) for each in zip(alike, ids, strict=True)]
            else:
                ranges += self.add_many(alike, ids)
        return ranges

    def _add_large(self, payload: bytes, txid: int, attributes: bytes | None = None) -> Batch:
        self.cut()
        batch = Batch()
        batch.is_large, batch.since_s = True, self._clock()
        batch.payloads.append(payload)
        batch.txids.append(txid)
        batch.size_bytes = RECORD_HEADER_BYTES + len(payload)
        if attributes is not None:
            batch.attributes = [(0, attributes)]
            batch.size_bytes += BLOCK_BYTES + item_bytes(attributes)
        self.held_bytes += batch.held_bytes
        self._cut.append(batch)
        return batch

    def add_together(
        self,
        payloads: Sequence[bytes],
        txids: Sequence[int],
        attributes: Sequence[bytes | None] | None = None,
    ) -> tuple[Batch, int, int]:
        """Add records after the others, all of them to one batch; return (batch, first slot, count)."""
        assert len(payloads) == len(txids)  # the callers make both together
        size_bytes = encoded_bytes(payloads, attributes)
        assert size_bytes <= self.entry_bytes_max  # the caller checked each record
        if attributes is not None or self._open.size_bytes + size_bytes > self.entry_bytes_max:
            self.cut()
        batch = self._open
        slot = len(batch.payloads)
        if not slot:
            batch.since_s = self._clock()
        batch.payloads += payloads
        batch.txids += txids
        if attributes is not None:  # in a batch that was empty
            batch.attributes = [(at, each) for at, each in enumerate(attributes) if each is not None]
        batch.size_bytes += size_bytes
        self.held_bytes += size_bytes + HELD_BYTES * len(payloads)
        if batch.size_bytes >= self._entry_bytes_target:
            self.cut()
        return batch, slot, len(payloads)

    def end_stream(self) -> Batch:
        """Add the end-of-stream record, in a batch of its own. No record may be added after it."""
        self.cut()
        batch = Batch()
        batch.txids.append(TXID_MAX)
        batch.since_s = self._clock()
        batch.size_bytes = RECORD_HEADER_BYTES
        self.held_bytes += batch.held_bytes
        self._cut.append(batch)
        return batch

    def cut(self) -> None:
        """End the current batch: records added later go into another entry."""
        if self._open.payloads:
            self._cut.append(self._open)
            self._open = Batch(self._on_wanted)

    @property
    def is_wanted(self) -> bool:
        """True if a caller waits for a record of the batch that is still open."""
        return self._open.is_wanted

    def take(self, *, idle: bool) -> Batch | None:
        """The next batch to send, or None. A batch that is not full is due only if ``idle``."""
        if self._cut:
            batch = self._cut.popleft()
        elif idle and self._open.payloads:
            batch, self._open = self._open, Batch(self._on_wanted)
        else:
            return None
        self.held_bytes -= batch.held_bytes
        return batch

    def put_back(self, batches: Sequence[Batch]) -> None:
        """Return batches that were taken and not written. They come first again, in this order."""
        for batch in batches:
            assert not batch.is_settled  # settled batches leave the queue
            self.held_bytes += batch.held_bytes
        self._cut.extendleft(reversed(batches))

    def take_all(self) -> list[Batch]:
        """Remove and return all batches: they will not be written."""
        self.cut()
        batches = list(self._cut)
        self._cut.clear()
        self.held_bytes = 0
        return batches

    @property
    def oldest_since_s(self) -> float:
        """When the oldest record was added that is not taken; infinity without one. Any thread may ask."""
        try:
            return self._cut[0].since_s
        except IndexError:  # the loop may take it in between
            return self._open.since_s

    @property
    def first_txid(self) -> int | None:
        """The transaction id of the next record to send; None if there is none."""
        batch = self._cut[0] if self._cut else self._open
        return batch.txids[0] if batch.txids else None
