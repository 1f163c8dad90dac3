"""One log segment, seen by its writer: entry ids, positions, acknowledgements, control records, its end.

Inside: which batch is which entry of the segment's ledger, what is in flight, what is durable, whether
readers can see it yet. Not inside: which records share an entry (``batcher``), the ledger
(``ledger.handle``), the metadata of segments (``segments``).
Always: batches settle in the order they were sent; none settles as durable before the ledger said so, by an
acknowledgement or by a recovery that found it; ``resolve`` gives back every other one, so a batch is either
in this ledger for good or free to be written to the next, never both.

Source: DistributedLog, BKLogSegmentWriter.java.
"""

from __future__ import annotations

from collections import deque

from dlog.batcher import Batch
from dlog.compression import Compression
from dlog.envelope import seal_envelope
from dlog.record import CONTROL_PAYLOAD, FLAG_CONTROL, TXID_MAX, encode_record, encode_records
from namespace.dlsn import DLSN


class SegmentWriter:
    """The life of a segment from its first entry to its completion or recovery."""

    def __init__(self, segment_seqno: int, ledger_id: int, first_txid: int, codec: Compression) -> None:
        self.segment_seqno, self.ledger_id = segment_seqno, ledger_id
        self.first_txid = first_txid
        self._codec = codec
        self._in_flight: deque[Batch] = deque()
        self._user_batches_in_flight = 0
        self._next_entry_id = 0
        self._last_user_entry_id = -1  # sent
        self._lac = -1  # of the ledger, as far as it was told: what the next entry carries, or less
        self.visible_entry_id = -1  # readers that look see the ledger at least so far
        self.position = 0  # user records sent
        self.size_bytes = 0  # of entries sent
        self.last_txid = first_txid  # of the last user record sent
        self.last_dlsn: DLSN | None = None  # of the last user record that is durable
        self.is_over = False

    def __repr__(self) -> str:
        return (
            f"<SegmentWriter {self.segment_seqno}, ledger {self.ledger_id}, {self.position} records, "
            f"{len(self._in_flight)} entries in flight{', over' if self.is_over else ''}>"
        )

    @property
    def is_idle(self) -> bool:
        """Nothing is in flight."""
        return not self._in_flight

    @property
    def is_quiet(self) -> bool:
        """No user record is in flight; a control record may be, and nobody gathers behind one."""
        return not self._user_batches_in_flight

    @property
    def newest_in_flight(self) -> Batch | None:
        """The batch sent last, unless it has settled."""
        return self._in_flight[-1] if self._in_flight else None

    @property
    def needs_commit(self) -> bool:
        """Readers do not see the last user records yet: no entry sent after they were durable is durable."""
        return self._last_user_entry_id > self.visible_entry_id

    @property
    def entry_count(self) -> int:
        """Entries sent so far."""
        return self._next_entry_id

    def encode(self, batch: Batch) -> bytes:
        """The batch as the next entry of this segment. Nothing changes until ``sent``."""
        assert not self.is_over
        assert not batch.is_settled
        if batch.payloads:
            body = encode_records(batch.payloads, batch.txids, self.position + 1)
        else:
            body = encode_record(FLAG_CONTROL, self.position, self.last_txid, CONTROL_PAYLOAD)
        return seal_envelope(body, self._codec)

    def sent(self, batch: Batch, entry_id: int, size_bytes: int) -> None:
        """The batch was given to the ledger as this entry, in ``size_bytes`` bytes."""
        assert not self.is_over
        assert entry_id == self._next_entry_id, f"the ledger said {entry_id}, {self._next_entry_id} was due"
        batch.segment_seqno, batch.entry_id, batch.lac = self.segment_seqno, entry_id, self._lac
        self._next_entry_id += 1
        self.size_bytes += size_bytes
        if batch.payloads:
            self._last_user_entry_id = entry_id
            self._user_batches_in_flight += 1
            self.position += len(batch.payloads)
            assert self.last_txid <= batch.txids[-1] < TXID_MAX
            self.last_txid = batch.txids[-1]
        self._in_flight.append(batch)

    def confirmed(self, last_entry_id: int) -> int:
        """Every entry up to this one is durable. Settles their batches; returns how many record bytes that
        freed."""
        freed_bytes = 0
        self._lac = max(self._lac, last_entry_id)
        while self._in_flight and self._in_flight[0].entry_id <= last_entry_id:
            batch = self._in_flight.popleft()
            freed_bytes += batch.size_bytes
            self.visible_entry_id = batch.lac
            if batch.payloads:
                self._user_batches_in_flight -= 1
                self.last_dlsn = DLSN(self.segment_seqno, batch.entry_id, len(batch.payloads) - 1)
            batch.durable()
        return freed_bytes

    def resolve(self, last_entry_id: int) -> tuple[int, list[Batch]]:
        """Recovery closed the ledger at this entry (-1: empty). The segment is over.

        Returns the freed bytes and, in order, the batches that are not in the ledger and never will be.
        """
        assert not self.is_over
        self.is_over = True
        freed_bytes = self.confirmed(last_entry_id)
        left = list(self._in_flight)
        self._in_flight.clear()
        for batch in left:
            batch.segment_seqno = batch.entry_id = -1
            if not batch.payloads:
                # A control record only served visibility, and a closed ledger is visible to its end.
                batch.entry_id = max(last_entry_id, 0)
                batch.durable()
        return freed_bytes, [batch for batch in left if not batch.is_settled]

    def give_up(self) -> list[Batch]:
        """The segment's end cannot be learnt. Returns what is in flight; its outcome is unknown."""
        self.is_over = True
        left = list(self._in_flight)
        self._in_flight.clear()
        return left
