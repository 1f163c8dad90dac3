"""Decoding one log segment: entries in, records out, and the cursor over its ledger.

Inside: DLSNs and sequence ids, dropping control records and records before the start, unpacking record sets,
the check for position gaps. Not inside: the ledger (``ledger.handle``), which segment comes next
(``read_ahead``).
Always: entries are decoded in order, each once; an entry that does not decode completely returns no record; a
gap in the positions is an error; one entry expands to bounded bytes and records (``envelope``,
``record_set``).

Source: DistributedLog, BKLogReadHandler.java, EnvelopedEntryReader.java, ReadUtils.java.
"""

from __future__ import annotations

from collections.abc import Sequence

from dlog.encryption import sealed_with
from dlog.errors import EntryFormatError
from dlog.format.attributes import decode_attributes, decode_attributes_block
from dlog.format.envelope import ENTRY_BYTES_MAX, open_envelope
from dlog.format.large_record import PartJoiner, is_in_parts
from dlog.format.record import (
    FLAG_ATTRIBUTES,
    FLAG_CONTROL,
    FLAG_END_OF_STREAM,
    FLAG_PART,
    FLAG_RECORD_SET,
    POSITION_MAX,
    POSITION_SHIFT,
    RECORD_HEADER,
    RECORD_HEADER_BYTES,
    Record,
    RecordWithAttributes,
    RecordWithSealedAttributes,
    decode_records,
)
from dlog.format.record_set import SETS_BYTES_MAX, SetBudget, decode_record_set
from dlog.read.columns import RecordRun, plain_run, runs_of
from namespace.dlsn import DLSN

_USER_RECORD_MASK = 0xFFFF | 1 << 47  # the flags, and the bit of the position that must not be set


class PositionGapError(EntryFormatError):
    """The positions of a segment's records have a gap, so records are missing."""


class SegmentReader:
    """A cursor over one segment: ``next_entry_id`` is read next, up to ``last_entry_id``."""

    def __init__(
        self,
        segment_seqno: int,
        start_sequence_id: int,
        *,
        start: DLSN | None = None,
        enveloped: bool = True,
        check_positions: bool = True,
        joins: bool = True,
    ) -> None:
        """``joins``: give a large record its whole payload. False: only its last part, so that reading may
        begin between its parts."""
        assert start is None or start.segment_seqno == segment_seqno  # the caller chose the segment by it
        self.segment_seqno, self.start_sequence_id = segment_seqno, start_sequence_id
        self.next_entry_id = 0 if start is None else max(start.entry_id, 0)
        self.last_entry_id = -1  # the last entry known to be confirmed
        self.is_closed = False  # last_entry_id is final
        self.is_sealed = False  # an end-of-stream record was read
        self.last_position = 0  # of the last record read; 0 if it is not known
        self.last_entry_records = 0  # about how many records the last entry had
        self.expanded_bytes = 0  # of compressed entries and of record sets, since the segment's start
        self._skip_before = start
        self._enveloped = enveloped
        self._check_positions = check_positions
        self._joiner = PartJoiner(keeps=joins)

    def __repr__(self) -> str:
        return f"<SegmentReader {self.segment_seqno}, at entry {self.next_entry_id} of {self.last_entry_id}>"

    @property
    def position(self) -> DLSN:
        """The position to continue at: every record before it was returned."""
        here = DLSN(self.segment_seqno, self.next_entry_id, 0)
        return here if self._skip_before is None else max(here, self._skip_before)

    @property
    def has_more(self) -> bool:
        """True if there are confirmed entries to read."""
        return self.next_entry_id <= self.last_entry_id

    @property
    def is_finished(self) -> bool:
        """True if all entries were read and the ledger is closed."""
        return self.is_closed and not self.has_more

    def confirmed(self, last_entry_id: int, *, closed: bool) -> None:
        """Set the last confirmed entry; ``closed`` if it is final."""
        self.last_entry_id = max(self.last_entry_id, last_entry_id)
        self.is_closed = self.is_closed or closed

    def begin_at(self, entry_id: int) -> None:
        """Begin at an entry before the start: it has the first part of a record that may end after it."""
        assert entry_id <= self.next_entry_id  # the caller goes back
        self.next_entry_id = entry_id

    def decode_all(self, entries: Sequence[bytes]) -> list[Record]:
        """The user records in the next entries; see ``decode``. The cursor moves past each decoded entry."""
        records: list[Record] = []
        for entry in entries:
            self.decode(entry, records)
        return records

    def decode(self, entry: bytes, into: list[Record]) -> None:
        """Append the user records of the next entry to ``into`` and move past the entry.

        Raises:
            EntryFormatError: The entry does not decode, or records are missing before it
                (``PositionGapError``). Nothing was appended, and the cursor did not move.
        """
        before = self.last_position
        self._decode_body(entry, *self._open(entry), into)
        self.last_entry_records = self.last_position - before

    def decode_columns(self, entry: bytes, into: list[RecordRun]) -> None:
        """As ``decode``, but as columns. An entry of plain records gives no object for each record."""
        body, start, stop = self._open(entry)
        if self.last_position and self._skip_before is None:
            run = plain_run(
                body,
                start,
                stop,
                segment_seqno=self.segment_seqno,
                entry_id=self.next_entry_id,
                position=self.last_position,
                sequence_id=self.start_sequence_id + self.last_position,
            )
            if run is not None:
                into.append(run)
                self.last_entry_records = len(run)
                self.last_position += len(run)
                self.next_entry_id += 1
                return
        records: list[Record] = []
        self._decode_body(entry, body, start, stop, records)
        into += runs_of(records)

    def _open(self, entry: bytes) -> tuple[bytes, int, int]:
        assert self.next_entry_id <= self.last_entry_id  # the caller reads up to the last entry
        body, start, stop = open_envelope(entry) if self._enveloped else _bare(entry)
        if body is not entry:
            self.expanded_bytes += stop
        return body, start, stop

    def _decode_body(self, entry: bytes, body: bytes, offset: int, stop: int, into: list[Record]) -> None:
        entry_id = self.next_entry_id
        first_offset, position = offset, self.last_position
        seqno, sequence_base = self.segment_seqno, self.start_sequence_id - 1
        first, mark = self._skip_before, len(into)
        if position and first is None:
            # The usual case in one fast loop: plain user records with consecutive positions.
            unpack, push, make = RECORD_HEADER.unpack_from, into.append, tuple.__new__
            last_header = stop - RECORD_HEADER_BYTES
            slot = 0
            while offset <= last_header:
                word, txid, size_bytes = unpack(body, offset)
                if word & _USER_RECORD_MASK or word >> POSITION_SHIFT != position + 1 or size_bytes < 0:
                    break
                begin = offset + RECORD_HEADER_BYTES
                end = begin + size_bytes
                if end > stop:
                    break
                position += 1
                push(make(Record, (seqno, entry_id, slot, txid, body[begin:end], sequence_base + position)))
                slot += 1
                offset = end
            if (
                offset < last_header
                and word == position << POSITION_SHIFT | FLAG_CONTROL
                and size_bytes == stop - offset - RECORD_HEADER_BYTES
            ):
                # A control record after the user records: each entry of a log with a hash chain has one.
                offset = stop
            if offset == stop:
                self.last_position = position
                self.next_entry_id = entry_id + 1
                return
            # The entry holds other records, or is damaged. Decode it again with all checks.
            del into[mark:]
        try:
            sealed = self._decode_slowly(
                body, first_offset, stop, into, self._enveloped and is_in_parts(entry)
            )
        except EntryFormatError:
            del into[mark:]
            raise
        self.is_sealed = self.is_sealed or sealed
        if first is not None and entry_id >= first.entry_id:
            self._skip_before = None
        self.next_entry_id = entry_id + 1

    def _decode_slowly(self, body: bytes, start: int, stop: int, into: list[Record], in_parts: bool) -> bool:
        """Decode records of any kind. Return True if the stream ends here."""
        last_position, slot, sealed, mark = self.last_position, 0, False, len(into)
        attributes: list[tuple[int, bytes]] = []
        first, budget = self._skip_before, SetBudget()
        for flags, position, txid, payload in decode_records(body, start, stop):
            if in_parts and flags & FLAG_PART:
                if flags & FLAG_CONTROL:
                    self._joiner.add(self.next_entry_id, payload)
                elif first is None or DLSN(self.segment_seqno, self.next_entry_id, slot) >= first:
                    payload = self._joiner.join(self.next_entry_id, payload)
            if flags & FLAG_CONTROL:
                if flags & FLAG_ATTRIBUTES:
                    if attributes:
                        raise EntryFormatError("an entry has the keys and headers of its records twice")
                    attributes = decode_attributes_block(payload, slot)
                # A control record usually repeats the position before it. One that an application wrote by
                # Java's synchronous writer has a position of its own. Neither is a gap.
                if position == last_position + 1 or last_position == 0:
                    last_position = position
                elif position != last_position:
                    self._gap(last_position, position, slot)
                    last_position = position
                slot += 1
                continue
            if flags & FLAG_END_OF_STREAM:
                sealed = True
                slot += 1
                continue
            if position != last_position + 1 and last_position and position:
                self._gap(last_position, position, slot)
            payloads = _set_at(slot, payload, budget) if flags & FLAG_RECORD_SET else (payload,)
            if position + len(payloads) > POSITION_MAX:
                raise EntryFormatError(
                    f"record set at slot {slot} claims positions up to {position + len(payloads)}"
                )
            for index, each in enumerate(payloads):
                dlsn = DLSN(self.segment_seqno, self.next_entry_id, slot)
                slot += 1
                if first is None or dlsn >= first:
                    into.append(Record(dlsn, txid, each, self.start_sequence_id + position + index - 1))
            last_position = position + len(payloads) - 1 if position else 0
        if attributes:
            _attach(attributes, into, mark)
        self.last_position = last_position
        self.expanded_bytes += SETS_BYTES_MAX - budget.bytes_left
        return sealed

    def _gap(self, last_position: int, position: int, slot: int) -> None:
        if self._check_positions:
            raise PositionGapError(
                f"slot {slot} of entry {self.next_entry_id} has position {position} in the segment, but"
                f" the record before it has {last_position}"
            )


def _attach(attributes: list[tuple[int, bytes]], into: list[Record], mark: int) -> None:
    """Give the records of an entry, those from ``mark`` on, their keys and headers."""
    at = {record.dlsn.slot_id: index for index, record in enumerate(into[mark:], mark)}
    for slot, stored in attributes:
        found = None if sealed_with(stored) is not None else decode_attributes(stored)
        if slot not in at:
            continue  # the record lies before the start
        record = into[at[slot]]
        fields = record.dlsn, record.txid, record.payload, record.sequence_id
        if found is None:
            into[at[slot]] = RecordWithSealedAttributes(*fields, stored)
        else:
            into[at[slot]] = RecordWithAttributes(*fields, *found)


def _bare(entry: bytes) -> tuple[bytes, int, int]:
    """As ``open_envelope``, for an entry without an envelope."""
    if len(entry) > ENTRY_BYTES_MAX:
        raise EntryFormatError(
            f"the entry has {len(entry)} bytes of records, more than the limit of {ENTRY_BYTES_MAX}"
        )
    return entry, 0, len(entry)


def _set_at(slot: int, payload: bytes, budget: SetBudget) -> list[bytes]:
    try:
        return decode_record_set(payload, budget)
    except EntryFormatError as exc:
        raise EntryFormatError(f"slot {slot}: {exc}") from None


def last_record_of(entry: bytes, *, enveloped: bool = True) -> tuple[int, int, int, int] | None:
    """(flags, last position, txid, last slot) of an entry's last record of any kind; None without a record.

    Each sub-record of a record set counts as a position and a slot.

    Raises:
        EntryFormatError: The entry does not decode.
    """
    body, start, stop = open_envelope(entry) if enveloped else _bare(entry)
    slots, last, budget = 0, None, SetBudget()
    for flags, position, txid, payload in decode_records(body, start, stop):
        count = len(_set_at(slots, payload, budget)) if flags & FLAG_RECORD_SET else 1
        slots += count
        if position + count - 1 > POSITION_MAX:
            raise EntryFormatError(
                f"record set at slot {slots - count} claims positions up to {position + count}"
            )
        if count:
            last = (flags, position + count - 1 if position else 0, txid, slots - 1)
    return last


def slot_not_before(entry: bytes, txid: int, *, enveloped: bool = True) -> int | None:
    """The slot of an entry's first record of any kind with at least this transaction id; else None.

    Raises:
        EntryFormatError: The entry does not decode.
    """
    body, start, stop = open_envelope(entry) if enveloped else _bare(entry)
    slot, budget = 0, SetBudget()
    for flags, _, record_txid, payload in decode_records(body, start, stop):
        if record_txid >= txid:
            return slot
        slot += len(_set_at(slot, payload, budget)) if flags & FLAG_RECORD_SET else 1
    return None
