"""A record that is too long for one entry: its payload in parts, each in an entry of its own.

Inside: cutting a payload, the header of a part, joining parts. Not inside: which entries they are
(``segment_writer``, ``segment_reader``).
Always: the entries of one record follow each other in one ledger. All parts but the last are control records,
so only the last one, the head, counts as a record: its position is the record's. Their envelopes have version
76, so Apache's reader refuses the entry and does not take a part for a record.

payload of a part that is not the last        payload of the last part (the head)
offset  size  field                           offset  size  field
     0     5  ``DLLP`` and the version, 1          0     5  ``DLLH`` and the version, 1
     5     4  index of the part, from 0            5     4  number of parts before the head
     9     n  bytes of the payload                 9     8  length of the whole payload
                                                  17     n  the rest of the payload

Source: our own; docs/stream-format.md 2.10.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

from dlog.errors import EntryFormatError
from dlog.format.envelope import PARTS_ENVELOPE_VERSION, open_envelope
from dlog.format.record import FLAG_CONTROL, FLAG_PART, PAYLOAD_BYTES_MAX, decode_records

LARGE_RECORD_BYTES_MAX = 64 * 1024 * 1024
"""The greatest payload of a record in parts, in bytes."""
STORED_BYTES_MAX = LARGE_RECORD_BYTES_MAX + 4096  # encryption makes a payload longer

_PART = Struct(">5sI")
_HEAD = Struct(">5sIq")
_PART_MAGIC, _HEAD_MAGIC = b"DLLP\x01", b"DLLH\x01"
PART_BYTES_MAX = PAYLOAD_BYTES_MAX - _HEAD.size  # of the payload, in one part


def parts_of(payload: bytes, *, all_before: bool = False) -> Iterator[bytes]:
    """The payloads of the parts before the head, in order.

    Args:
        all_before: The head has no bytes of the payload: its entry also has the record's key and headers.
    """
    for index in range(_part_count(payload, all_before)):
        begin = index * PART_BYTES_MAX
        yield _PART.pack(_PART_MAGIC, index) + payload[begin : begin + PART_BYTES_MAX]


def head_of(payload: bytes, *, all_before: bool = False) -> bytes:
    """The payload of the head; see ``parts_of``."""
    head = _HEAD.pack(_HEAD_MAGIC, _part_count(payload, all_before), len(payload))
    return head if all_before else head + payload[_part_count(payload, False) * PART_BYTES_MAX :]


def _part_count(payload: bytes, all_before: bool) -> int:
    return max(len(payload) - 1, 0) // PART_BYTES_MAX + all_before


def is_in_parts(entry: bytes) -> bool:
    """True if an enveloped entry holds a part of a large record."""
    return entry[:1] == PARTS_ENVELOPE_VERSION.to_bytes()


def parts_before(entry: bytes, *, after_head: bool) -> int:
    """How many entries directly before an enveloped one hold parts of the same record.

    Args:
        after_head: Only for a record whose head is in a later entry.

    Raises:
        EntryFormatError: The entry does not decode.
    """
    if is_in_parts(entry):
        for flags, _, _, payload in decode_records(*open_envelope(entry)):
            if flags & FLAG_PART and flags & FLAG_CONTROL:
                return _unpack(_PART, _PART_MAGIC, payload)[0]
            if flags & FLAG_PART and not after_head:
                return _unpack(_HEAD, _HEAD_MAGIC, payload)[0]
    return 0


class PartJoiner:
    """The parts of one record as a reader meets them, entry by entry.

    Args:
        keeps: Keep the bytes. False: only count them.
    """

    def __init__(self, *, keeps: bool) -> None:
        self._keeps = keeps
        self._pieces: list[bytes] = []
        self._count = self._size_bytes = 0
        self._last_entry_id = -1

    def add(self, entry_id: int, payload: bytes) -> None:
        """Take a part. A part that does not follow the one before begins again, or was begun before the
        start.

        Raises:
            EntryFormatError: It has no header, or the record is longer than ``LARGE_RECORD_BYTES_MAX``.
        """
        (index,) = _unpack(_PART, _PART_MAGIC, payload)
        if index == 0 or index != self._count or entry_id != self._last_entry_id + 1:
            self.clear()
            if index:
                return
        self._count += 1
        self._size_bytes += len(payload) - _PART.size
        self._last_entry_id = entry_id
        if self._size_bytes > STORED_BYTES_MAX:
            raise EntryFormatError(f"the parts of a record have more than {LARGE_RECORD_BYTES_MAX} bytes")
        if self._keeps:
            self._pieces.append(payload[_PART.size :])

    def join(self, entry_id: int, payload: bytes) -> bytes:
        """The whole payload, for its head; without ``keeps``, the head's bytes only.

        Raises:
            EntryFormatError: Parts are missing, or the lengths do not add up.
        """
        parts, size_bytes = _unpack(_HEAD, _HEAD_MAGIC, payload)
        rest = payload[_HEAD.size :]
        count = self._count if entry_id == self._last_entry_id + 1 else 0
        if count == parts:
            if parts and self._size_bytes + len(rest) != size_bytes:
                raise EntryFormatError(
                    f"the parts of the record have {self._size_bytes + len(rest)} bytes, not {size_bytes}"
                )
        elif self._keeps:
            raise EntryFormatError(f"the record has {parts} parts before the last one, {count} were found")
        joined = b"".join([*self._pieces, rest]) if self._keeps else rest
        self.clear()
        return joined

    def clear(self) -> None:
        """Forget the parts."""
        self._pieces, self._count, self._size_bytes = [], 0, 0


def _unpack(header: Struct, magic: bytes, payload: bytes) -> tuple[int, ...]:
    if len(payload) < header.size or not payload.startswith(magic):
        raise EntryFormatError("a part of a large record has no header, or one of another version")
    numbers: tuple[int, ...] = header.unpack_from(payload)[1:]
    return numbers
