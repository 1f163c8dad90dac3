"""Which records share an entry.

Inside: the batch (records that will be, or are, one entry, and what became of them), and the rule that
gathers them.
Not inside: bytes (``record``), entry ids and positions (``segment_writer``), who waits (``log_writer``).
Always: records leave in the order they came; a batch that was cut never changes again, so a record's slot is
fixed the moment it is added, whatever happens to its segment.

The rule is group commit without a timer: with nothing in flight a record leaves at once, alone if need be;
while something is in flight records gather until the answer comes or an entry is full. So a lonely append
waits for nobody, and a thousand concurrent ones share a few entries.

Source: DistributedLog, BKLogSegmentWriter.java (transmit buffer); the absence of a timer is ours.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NoReturn

from dlog.envelope import ENTRY_BYTES_MAX, ENVELOPE_HEADER_BYTES
from dlog.errors import RecordOutcome, WriteError
from dlog.record import RECORD_BYTES_MAX, RECORD_HEADER_BYTES

BODY_BYTES_MAX = ENTRY_BYTES_MAX - ENVELOPE_HEADER_BYTES
assert RECORD_BYTES_MAX <= BODY_BYTES_MAX


class Batch:
    """Records of one entry. A control batch has none: it is a control record of the writer's own."""

    __slots__ = (
        "_callbacks",
        "entry_id",
        "error",
        "error_was_seen",
        "lac",
        "outcome",
        "payloads",
        "segment_seqno",
        "size_bytes",
        "txids",
    )

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.txids: list[int] = []
        self.size_bytes = 0  # of the records with their headers
        self.segment_seqno = -1  # where it stands, or stood when it was last sent
        self.entry_id = -1
        self.lac = -1  # that its entry carries: up to there readers see the ledger once it is durable
        self.outcome = RecordOutcome.PENDING
        self.error: WriteError | None = None
        self.error_was_seen = False  # by somebody who asked for the record's fate
        self._callbacks: list[Callable[[], None]] | None = None

    def __repr__(self) -> str:
        where = f"{self.segment_seqno}:{self.entry_id}" if self.entry_id >= 0 else "not sent"
        return (
            f"<Batch of {len(self.payloads)} records, {self.size_bytes} bytes, {where}, {self.outcome.value}>"
        )

    @property
    def is_settled(self) -> bool:
        """Whether what became of the records is decided as far as it ever will be."""
        return self.outcome is not RecordOutcome.PENDING

    def on_settled(self, callback: Callable[[], None]) -> None:
        """Call back once settled; at once if it is already. Callbacks must neither block nor raise."""
        if self.is_settled:
            callback()
        elif self._callbacks is None:
            self._callbacks = [callback]
        else:
            self._callbacks.append(callback)

    def durable(self) -> None:
        """The entry is in the log for good."""
        assert self.entry_id >= 0
        self._settle(RecordOutcome.DURABLE)

    def failed(self, error: WriteError) -> None:
        """The entry could not be written; the error says what is known."""
        assert error.outcome in (RecordOutcome.NOT_WRITTEN, RecordOutcome.UNKNOWN)
        self.error = error
        self._settle(error.outcome)

    def raise_error(self) -> NoReturn:
        """Raise why the records were not written; a new object for each who asks."""
        assert self.error is not None
        self.error_was_seen = True
        raise self.error.about(self.outcome)

    def _settle(self, outcome: RecordOutcome) -> None:
        # Told twice would mean that an append was answered twice: never both written and failed.
        assert self.outcome is RecordOutcome.PENDING, f"{self!r} is settled already"
        self.outcome = outcome
        self.payloads, self.txids = [], []
        callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            callback()


class Batcher:
    """Gathers records into batches and hands them out when it is their time."""

    def __init__(self, *, entry_bytes_target: int) -> None:
        assert 0 < entry_bytes_target <= BODY_BYTES_MAX
        self._entry_bytes_target = entry_bytes_target
        self._open = Batch()
        self._cut: deque[Batch] = deque()  # in order, before the open one
        self.size_bytes = 0  # gathered and not yet taken

    def __bool__(self) -> bool:
        return bool(self._cut or self._open.payloads)

    def add(self, payload: bytes, txid: int) -> tuple[Batch, int]:
        """Put one record behind the others; return its batch and its slot there."""
        size_bytes = RECORD_HEADER_BYTES + len(payload)
        assert size_bytes <= RECORD_BYTES_MAX
        batch = self._open
        if batch.size_bytes + size_bytes > BODY_BYTES_MAX:
            self.cut()
            batch = self._open
        slot = len(batch.payloads)
        batch.payloads.append(payload)
        batch.txids.append(txid)
        batch.size_bytes += size_bytes
        self.size_bytes += size_bytes
        if batch.size_bytes >= self._entry_bytes_target:
            self.cut()
        return batch, slot

    def add_many(self, payloads: Sequence[bytes], txids: Sequence[int]) -> list[tuple[Batch, int, int]]:
        """Put records behind the others; return (batch, first slot, count) for each run of them."""
        assert len(payloads) == len(txids)
        runs: list[tuple[Batch, int, int]] = []
        first = 0
        while first < len(payloads):
            batch = self._open
            slot = len(batch.payloads)
            room = self._entry_bytes_target - batch.size_bytes
            stop, size_bytes = first, 0
            for payload in payloads[first:] if first else payloads:
                record_bytes = RECORD_HEADER_BYTES + len(payload)
                if batch.size_bytes + size_bytes + record_bytes > BODY_BYTES_MAX:
                    break
                size_bytes += record_bytes
                stop += 1
                if size_bytes >= room:
                    break
            if stop > first:
                batch.payloads += payloads[first:stop]
                batch.txids += txids[first:stop]
                batch.size_bytes += size_bytes
                self.size_bytes += size_bytes
                runs.append((batch, slot, stop - first))
            if size_bytes >= room or stop < len(payloads):
                self.cut()
            first = stop
        return runs

    def cut(self) -> None:
        """Records added from now on go into another entry."""
        if self._open.payloads:
            self._cut.append(self._open)
            self._open = Batch()

    def take(self, *, idle: bool) -> Batch | None:
        """The next batch to send, or None: full ones always, a gathering one only if nothing is in flight."""
        if self._cut:
            batch = self._cut.popleft()
        elif idle and self._open.payloads:
            batch, self._open = self._open, Batch()
        else:
            return None
        self.size_bytes -= batch.size_bytes
        return batch

    def put_back(self, batches: Sequence[Batch]) -> None:
        """These were taken and not written: they come first again, in this order."""
        for batch in batches:
            assert not batch.is_settled
            self.size_bytes += batch.size_bytes
        self._cut.extendleft(reversed(batches))

    def take_all(self) -> list[Batch]:
        """Everything gathered, to be told that it will not be written."""
        self.cut()
        batches = list(self._cut)
        self._cut.clear()
        self.size_bytes = 0
        return batches

    @property
    def first_txid(self) -> int | None:
        """Of the record that leaves next; None if there is none."""
        batch = self._cut[0] if self._cut else self._open
        return batch.txids[0] if batch.txids else None
