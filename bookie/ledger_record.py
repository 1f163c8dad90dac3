"""A bookie's record of one ledger: everything but its entries, and the stored form.

Inside: the record, its stored bytes. Not inside: when it is journaled and flushed (``storage``).
Always: a fence, once set, stays. The LAC and the last entry id only grow. Limbo begins only before the bookie
serves, and ends only while it serves.

**Limbo**: this bookie may have lost acknowledged entries of the ledger (``startup_check`` decides when). It
serves the entries that it has. It must not reply "no such entry" for another one: a recovery would conclude
that the entry was never acknowledged, and truncate the ledger before it (BP-46, apache/bookkeeper#2612).
Limbo ends when the missing entries have been copied from the other replicas (``integrity``).

Stored as Apache's protobuf message ``LedgerData`` with two additional fields:

 1  exists         bool, true
 2  fenced         bool
 3  masterKey      bytes
 4  explicitLac    bytes, the LAC packet
 5  limbo          bool; absent if false
1000  lac          sint64: greatest LAC seen in entries and explicit LACs
1001  last entry   sint64: greatest entry id stored

Source: DbLedgerStorageDataFormats.proto, LedgerMetadataIndex.java, TransientLedgerInfo.java.
"""

from __future__ import annotations

from struct import Struct

import attrs

from bookie.errors import FormatError
from ledger.wire.entry_lac import credible_lac

UNKNOWN_KEY = b""  # replay found the ledger without its key record; the first key sent is accepted

_PACKET_IDS = Struct(">qq")  # the start of each LAC packet: ledger id, LAC
_ENTRY_IDS = Struct(">qqq")  # the start of each entry: ledger id, entry id, LAC
_ENTRY_ID_MAX = 2**63 - 1
_MASTER_KEY_BYTES_MAX = 1 << 16
_SHARED_KEYS_MAX = 256
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class SharedKeys:
    """One ``bytes`` object for equal keys: most ledgers of a cluster have the same few passwords."""

    def __init__(self) -> None:
        self._keys: dict[bytes, bytes] = {}

    def share(self, key: bytes) -> bytes:
        """An equal object, the same one for equal keys while there are few."""
        if len(self._keys) >= _SHARED_KEYS_MAX:
            self._keys.clear()  # a peer sends a new key with each ledger
        return self._keys.setdefault(key, key)


@attrs.frozen
class LedgerData:
    """The stored part of a record."""

    master_key: bytes = attrs.field(repr=False)
    fenced: bool
    explicit_lac: bytes | None
    lac: int
    last_entry_id: int
    limbo: bool = False


@attrs.define(eq=False, weakref_slot=False)  # one for each ledger: a slot costs 8 bytes
class LedgerRecord:
    """One ledger on this bookie. Any module may read the fields; only ``Storage`` changes them."""

    ledger_id: int
    master_key: bytes = attrs.field(repr=False)
    fenced: bool = False
    explicit_lac: bytes | None = None  # the last LAC packet, as received
    lac: int = -1  # the greatest last-add-confirmed of any entry or LAC packet
    last_entry_id: int = -1  # the greatest entry id stored here; -1: none
    limbo: bool = False  # acknowledged entries may be missing: never reply "no such entry"

    # Used by the storage only:
    directory: int = 0  # number of its ledger directory
    journal: int = 0  # number of its journal
    active: dict[int, bytes] | None = None  # its entries in the active write cache
    first_checkpoint_id: int = 0  # write caches sealed earlier hold entries of a deleted ledger with this id

    def stored(self) -> LedgerData:
        """The part that a checkpoint stores."""
        return LedgerData(
            self.master_key, self.fenced, self.explicit_lac, self.lac, self.last_entry_id, self.limbo
        )


def lac_of_packet(packet: bytes) -> int:
    """The LAC that a LAC packet names; -1 if it is too short, or no entry can follow the LAC.

    A packet may name an entry that other bookies have, so the entries here are no bound for it.
    """
    return credible_lac(_ENTRY_ID_MAX, _PACKET_IDS.unpack_from(packet)[1]) if len(packet) >= 16 else -1


def lac_of_entry(entry_id: int, body: bytes) -> int:
    """The LAC that an entry's header names; -1 if the entry cannot name it."""
    return credible_lac(entry_id, _ENTRY_IDS.unpack_from(body)[2]) if len(body) >= _ENTRY_IDS.size else -1


def credible_data(data: LedgerData) -> LedgerData:
    """Stored data without a LAC that neither an entry here nor the LAC packet can have named.

    Earlier versions took any LAC of an entry's header.
    """
    packet_lac = -1 if data.explicit_lac is None else lac_of_packet(data.explicit_lac)
    lac = max(-1, min(data.lac, max(data.last_entry_id - 1, packet_lac)))
    return data if lac == data.lac else attrs.evolve(data, lac=lac)


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
    lac, last_entry_id = _zigzag(data.lac), _zigzag(data.last_entry_id)
    return encode_apache_ledger_data(data) + _TAG_LAC + lac + _TAG_LAST_ENTRY + last_entry_id


def encode_apache_ledger_data(data: LedgerData) -> bytes:
    """The form that Apache's bookie stores: without our fields."""
    out = b"\x08\x01\x10" + (b"\x01" if data.fenced else b"\x00")
    out += b"\x1a" + _varint(len(data.master_key)) + data.master_key
    if data.explicit_lac is not None:
        out += b"\x22" + _varint(len(data.explicit_lac)) + data.explicit_lac
    if data.limbo:
        out += b"\x28\x01"
    return out


def decode_ledger_data(data: bytes) -> LedgerData:
    """Decode the stored part of a record; skips unknown fields. ``FormatError`` if it is malformed."""
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
