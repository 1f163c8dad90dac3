"""One log segment as its writer counts it: entry ids, positions, acknowledgements, visibility, its end.

Inside: which batch is which entry of the segment's ledger, what is in flight, what is durable, what readers
can see, the hash chain if the log has one, the limits at which it is rolled. Not inside: which records share
an entry (``batcher``), the ledger (``ledger.handle``), the metadata of segments (``segment_lifecycle``).
Always: batches settle in the order they were sent; a batch settles as durable only after an acknowledgement,
or after a recovery that found its entry; ``resolve`` returns all other batches. So a batch is either durable
in this ledger or free to be written to the next one, never both.

Source: DistributedLog, BKLogSegmentWriter.java.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator

from dlog.errors import RecordOutcome
from dlog.format.attributes import encode_attributes_record
from dlog.format.compression import Compression
from dlog.format.envelope import PARTS_ENVELOPE_VERSION, seal_envelope
from dlog.format.hash_chain import ChainValue, encode_chain_record
from dlog.format.large_record import head_of, parts_of
from dlog.format.record import (
    CONTROL_PAYLOAD,
    END_OF_STREAM_PAYLOAD,
    FLAG_CONTROL,
    FLAG_END_OF_STREAM,
    FLAG_PART,
    POSITION_MAX,
    TXID_MAX,
    encode_record,
    encode_records,
)
from dlog.write.batcher import Batch
from namespace.dlsn import DLSN

# Half of the limit: records are written while a roll is prepared or tried again.
RECORDS_MAX = POSITION_MAX // 2


def should_roll(
    *,
    record_count: int,
    size_bytes: int,
    age_s: float,
    segment_bytes_max: int | None,
    segment_age_s_max: float | None,
    lacks_bookies: bool = False,
) -> bool:
    """True if the segment reaches a limit: bytes, age, or ``RECORDS_MAX`` records. None means no limit.

    A segment without a user record is never rolled. A segment is rolled long before its records need more
    positions than the format can number.

    Args:
        lacks_bookies: It is on fewer bookies than asked, and a full ensemble is there.
    """
    if record_count == 0:
        return False
    if record_count >= RECORDS_MAX or lacks_bookies:
        return True
    if segment_bytes_max is not None and size_bytes >= segment_bytes_max:
        return True
    return segment_age_s_max is not None and age_s >= segment_age_s_max


class SegmentWriter:
    """The life of a segment from its first entry to its completion or recovery."""

    def __init__(
        self,
        segment_seqno: int,
        ledger_id: int,
        first_txid: int,
        codec: Compression,
        chain: ChainValue | None = None,
    ) -> None:
        """``chain``: the value before the segment's first entry; None for a log without a hash chain."""
        self.segment_seqno, self.ledger_id = segment_seqno, ledger_id
        self.first_txid = first_txid
        self._codec = codec
        self._in_flight: deque[Batch] = deque()
        self.user_batches_in_flight = 0
        self.entry_count = 0  # entries sent; also the id of the next one
        self._last_user_entry_id = -1  # sent
        self._lac = -1  # the last acknowledged one; the ledger's next entry carries this LAC or a later one
        self.visible_entry_id = -1  # a reader that looks now sees the ledger at least up to here
        self.position = 0  # user records sent
        self.size_bytes = 0  # of entries sent
        self.last_txid = first_txid  # of the last record sent that is no control record
        self.last_dlsn: DLSN | None = None  # of the last such record that is durable
        self.was_wanted = False  # a caller waited for a record that settled last
        self.is_over = False
        self.durable_chain = chain  # after the last durable entry
        self._sent_chain = chain  # after the last entry sent
        self._next_chain = chain  # after the entry encoded last, which may not be sent
        # One for each entry in flight, with its id, if there is a chain.
        self._chain_in_flight: deque[tuple[int, ChainValue]] = deque()

    def __repr__(self) -> str:
        return (
            f"<SegmentWriter {self.segment_seqno}, ledger {self.ledger_id}, {self.position} records, "
            f"{len(self._in_flight)} entries in flight{', over' if self.is_over else ''}>"
        )

    @property
    def is_idle(self) -> bool:
        """True if no batch is in flight."""
        return not self._in_flight

    @property
    def has_one_in_flight(self) -> bool:
        """True if exactly one batch is in flight."""
        return len(self._in_flight) == 1

    @property
    def newest_in_flight(self) -> Batch | None:
        """The batch sent last, unless it has settled."""
        return self._in_flight[-1] if self._in_flight else None

    @property
    def oldest_since_s(self) -> float:
        """When the oldest record in flight was taken; infinity without one. Any thread may ask."""
        return min((batch.since_s for batch in tuple(self._in_flight)), default=math.inf)

    @property
    def needs_commit(self) -> bool:
        """True if readers do not see the last user records yet.

        They see them once an entry is durable that was sent after the records had become durable.
        """
        return self._last_user_entry_id > self.visible_entry_id

    @property
    def is_unseen(self) -> bool:
        """``is_idle`` and ``needs_commit``: nothing that was sent will show readers the last records."""
        return not self._in_flight and self._last_user_entry_id > self.visible_entry_id

    def encode(self, batch: Batch, control_payload: bytes = CONTROL_PAYLOAD) -> bytes:
        """The bytes of the batch as the next entry. ``sent`` changes the state; this call does not.

        Args:
            control_payload: Of the control record, if the batch is empty and the log has no hash chain.
        """
        assert not self.is_over  # the owner drops it when it is over
        assert batch.outcome is RecordOutcome.PENDING  # settled batches leave the queue
        if batch.is_large:
            all_before = batch.attributes is not None
            return self._encode_part(head_of(batch.payloads[0], all_before=all_before), batch)
        if batch.payloads:
            body = encode_records(batch.payloads, batch.txids, self.position + 1)
            if batch.attributes is not None:
                position = self.position + len(batch.payloads)
                body += encode_attributes_record(batch.attributes, position, batch.txids[-1])
        elif batch.txids:
            body = encode_record(FLAG_END_OF_STREAM, self.position, TXID_MAX, END_OF_STREAM_PAYLOAD)
        elif self._sent_chain is None:
            body = encode_record(FLAG_CONTROL, self.position, self.last_txid, control_payload)
        else:
            body = b""  # the chain's record is a control record too
        if self._sent_chain is not None:
            last_txid = batch.txids[-1] if batch.txids else self.last_txid
            body += self._chain_record(self._sent_chain, body, len(batch.payloads), last_txid)
        return seal_envelope(body, self._codec)

    def encode_parts(self, batch: Batch) -> Iterator[bytes]:
        """The entries before the last one of a large record. Call ``sent_part`` before the next is taken."""
        for payload in parts_of(batch.payloads[0], all_before=batch.attributes is not None):
            yield self._encode_part(payload, None)

    def _encode_part(self, payload: bytes, batch: Batch | None) -> bytes:
        if batch is None:
            # A control record repeats what is before it. If nothing more comes, it leaves no trace.
            flags, records, last_txid = FLAG_CONTROL | FLAG_PART, 0, self.last_txid
        else:
            flags, records, last_txid = FLAG_PART, 1, batch.txids[0]
        body = encode_record(flags, self.position + records, last_txid, payload)
        if batch is not None and batch.attributes is not None:
            body += encode_attributes_record(batch.attributes, self.position + records, last_txid)
        if self._sent_chain is not None:
            body += self._chain_record(self._sent_chain, body, records, last_txid)
        return seal_envelope(body, self._codec, version=PARTS_ENVELOPE_VERSION)

    def _chain_record(self, chain: ChainValue, body: bytes, records: int, last_txid: int) -> bytes:
        self._next_chain = chain.after(self.segment_seqno, self.entry_count, body, records)
        return encode_chain_record(self._next_chain, self.position + records, last_txid)

    def _check_next(self, entry_id: int) -> None:
        """Check that the ledger has no other writer: entries are encoded with their numbers."""
        if entry_id != self.entry_count:
            raise AssertionError(f"entry {entry_id} from the ledger, not {self.entry_count}")

    def sent_part(self, entry_id: int, size_bytes: int) -> None:
        """Count an entry of ``encode_parts``: the ledger took it as this entry, in ``size_bytes`` bytes."""
        assert not self.is_over  # the owner drops it when it is over
        self._check_next(entry_id)
        self.entry_count += 1
        self.size_bytes += size_bytes
        if self._next_chain is not None:
            self._sent_chain = self._next_chain
            self._chain_in_flight.append((entry_id, self._next_chain))

    def sent(self, batch: Batch, entry_id: int, size_bytes: int) -> None:
        """Count the batch as in flight: the ledger took it as this entry, in ``size_bytes`` bytes."""
        assert not self.is_over  # the owner drops it when it is over
        self._check_next(entry_id)
        batch.segment_seqno, batch.entry_id, batch.lac = self.segment_seqno, entry_id, self._lac
        self.entry_count += 1
        self.size_bytes += size_bytes
        if batch.txids:
            self._last_user_entry_id = entry_id
            self.user_batches_in_flight += 1
            self.position += len(batch.payloads)
            assert self.last_txid <= batch.txids[-1]  # the batcher orders txids
            self.last_txid = batch.txids[-1]
        self._in_flight.append(batch)
        if self._next_chain is not None:
            self._sent_chain = self._next_chain
            self._chain_in_flight.append((entry_id, self._next_chain))

    def confirmed(self, last_entry_id: int) -> int:
        """Settle the batches up to this entry: they are durable. Return the number of bytes freed."""
        freed_bytes = 0
        self.was_wanted = False
        self._lac = max(self._lac, last_entry_id)
        while self._chain_in_flight and self._chain_in_flight[0][0] <= last_entry_id:
            _, self.durable_chain = self._chain_in_flight.popleft()
        while self._in_flight and self._in_flight[0].entry_id <= last_entry_id:
            batch = self._in_flight.popleft()
            freed_bytes += batch.held_bytes
            self.visible_entry_id = batch.lac
            self.was_wanted |= batch.is_wanted
            if batch.txids:
                self.user_batches_in_flight -= 1
                self.last_dlsn = DLSN(self.segment_seqno, batch.entry_id, len(batch.txids) - 1)
            batch.durable()
        return freed_bytes

    def resolve(self, last_entry_id: int) -> tuple[int, list[Batch]]:
        """End the segment: a recovery closed its ledger at this entry (-1: empty).

        Returns the freed bytes and, in order, the batches that the ledger does not hold and never will.
        """
        assert not self.is_over  # the owner drops it when it is over
        self.is_over = True
        freed_bytes = self.confirmed(last_entry_id)
        left = list(self._in_flight)
        self._in_flight.clear()
        for batch in left:
            batch.segment_seqno = batch.entry_id = -1
            if not batch.txids:
                # A control record makes records visible. A closed ledger is visible to its end anyway.
                batch.entry_id = max(last_entry_id, 0)
                batch.durable()
        return freed_bytes, [batch for batch in left if not batch.is_settled]

    def give_up(self) -> list[Batch]:
        """End the segment with an unknown end; return the batches in flight. Their outcome is unknown."""
        self.is_over = True
        left = list(self._in_flight)
        self._in_flight.clear()
        return left
