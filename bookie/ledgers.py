"""What a bookie knows of a ledger besides its entries, and its stored form.

Inside: the record, its stored bytes. Not inside: when it is journaled and flushed (``storage``).
Always: a fence, once set, stays; the LAC and the last entry id only grow; limbo is entered before a bookie
serves and only left while it serves.

**Limbo**: this bookie may have lost entries of the ledger that it had acknowledged (``admission`` says when).
What it has it gives; what it does not have it must not deny, since a recovery would believe it and cut off
acknowledged entries (BP-46, apache/bookkeeper#2612). It ends when the missing entries have been copied from
the other replicas (``integrity``).

Stored as the protobuf message ``LedgerData`` with two fields of our own:

 1  exists         bool, true
 2  fenced         bool
 3  masterKey      bytes
 4  explicitLac    bytes, the LAC packet
 5  limbo          bool; left out if it is not
1000  lac          sint64: greatest LAC seen in entries and explicit LACs
1001  last entry   sint64: greatest entry id stored

Source: DbLedgerStorageDataFormats.proto, LedgerMetadataIndex.java, TransientLedgerInfo.java.
"""

from __future__ import annotations

import attrs

from bookie.errors import FormatError

UNKNOWN_KEY = b""  # of a ledger met in replay without its key record; the first key offered is taken

_MASTER_KEY_BYTES_MAX = 1 << 16
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@attrs.frozen
class LedgerData:
    """The stored part of a record."""

    master_key: bytes
    fenced: bool
    explicit_lac: bytes | None
    lac: int
    last_entry_id: int
    limbo: bool = False


@attrs.define(eq=False)
class LedgerRecord:
    """One ledger, as long as this bookie knows it. Read its fields freely; ``Storage`` changes them."""

    ledger_id: int
    master_key: bytes
    fenced: bool = False
    explicit_lac: bytes | None = None  # the last LAC packet, as sent
    lac: int = -1  # the greatest last-add-confirmed any entry or LAC packet told us
    last_entry_id: int = -1  # the greatest entry id stored here; -1: none
    limbo: bool = False  # entries may be missing: only what is here may be told

    # The storage's own:
    directory: int = 0  # which of the ledger directories has it
    staged: list[bytes] = attrs.field(factory=list)  # where its journal gathers the next run
    active: dict[int, bytes] | None = None  # its entries in the active write cache
    first_epoch: int = 0  # caches sealed before this one hold entries of a deleted ledger of this id

    def stored(self) -> LedgerData:
        """What a checkpoint keeps of it."""
        return LedgerData(
            self.master_key, self.fenced, self.explicit_lac, self.lac, self.last_entry_id, self.limbo
        )


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _zigzag(value: int) -> bytes:
    return _varint((value << 1) ^ (value >> 63))


_TAG_LAC = _varint(1000 << 3 | _VARINT)
_TAG_LAST_ENTRY = _varint(1001 << 3 | _VARINT)


def encode_ledger_data(data: LedgerData) -> bytes:
    """The stored form."""
    out = b"\x08\x01\x10" + (b"\x01" if data.fenced else b"\x00")
    out += b"\x1a" + _varint(len(data.master_key)) + data.master_key
    if data.explicit_lac is not None:
        out += b"\x22" + _varint(len(data.explicit_lac)) + data.explicit_lac
    if data.limbo:
        out += b"\x28\x01"
    return out + _TAG_LAC + _zigzag(data.lac) + _TAG_LAST_ENTRY + _zigzag(data.last_entry_id)


def decode_ledger_data(data: bytes) -> LedgerData:
    """The stored part of a record, fields of others skipped. ``FormatError`` for anything else."""
    numbers: dict[int, int] = {}
    texts: dict[int, bytes] = {}
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        number, wire_type = tag >> 3, tag & 7
        if number == 0:
            raise FormatError("ledger data with a field numbered 0")
        if wire_type == _VARINT:
            numbers[number], at = _read_varint(data, at)
        elif wire_type == _BYTES:
            length, at = _read_varint(data, at)
            if length > len(data) - at:
                raise FormatError(f"ledger data: field {number} is cut short")
            texts[number] = data[at : at + length]
            at += length
        elif wire_type in (_FIXED64, _FIXED32):
            at += 8 if wire_type == _FIXED64 else 4
            if at > len(data):
                raise FormatError(f"ledger data: field {number} is cut short")
        else:
            raise FormatError(f"ledger data: field {number} has wire type {wire_type}")
    if not {1, 2} <= numbers.keys() or 3 not in texts:
        raise FormatError("ledger data lacks one of its required fields 1, 2, 3")
    if len(texts[3]) > _MASTER_KEY_BYTES_MAX:
        raise FormatError(f"ledger data: master key of {len(texts[3])} bytes")
    return LedgerData(
        texts[3],
        bool(numbers[2]),
        texts.get(4),
        _unzigzag(numbers.get(1000, 1)),
        _unzigzag(numbers.get(1001, 1)),
        bool(numbers.get(5, 0)),
    )


def _unzigzag(value: int) -> int:
    return (value >> 1) ^ -(value & 1)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise FormatError("ledger data: a varint is cut short or too long")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
        shift += 7
