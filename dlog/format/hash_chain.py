"""The hash chain of a log: each entry ends with a hash of itself and of all entries before it.

Inside: the chain's state, the control record that carries it, finding it in an entry.
Not inside: which entries get it (``write.segment_writer``), checking a whole log (``dlog.verify``).
Always: an entry and its chain value are one ledger entry, so no crash comes between them. Readers skip the
value: it is the payload of a control record.

The value of an entry is SHA-256 of: the value before it (32 bytes), segment number and entry id (8 bytes
each), and the bytes of the entry's records before the control record, not compressed. The first value follows
SHA-256 of ``dlog hash chain 1`` and the log's origin: its name, unless logs were renamed.

offset  size  field of the control record's payload, the last record of its entry
     0     5  "DLHC" and the version, 1
     5     8  records in the chain, those of this entry included
    13    32  value

Ours: Apache's readers skip control records, whatever they hold.
"""

from __future__ import annotations

import hashlib
from struct import Struct

import attrs

from dlog.errors import EntryFormatError
from dlog.format.record import FLAG_CONTROL, RECORD_HEADER, RECORD_HEADER_BYTES, encode_record

_PAYLOAD = Struct(">5sq32s")
_MAGIC = b"DLHC\x01"
_PLACE = Struct(">qq")
CHAIN_RECORD_BYTES = RECORD_HEADER_BYTES + _PAYLOAD.size
"""The bytes that the chain adds to each entry."""


@attrs.frozen
class ChainValue:
    """The chain after an entry."""

    count: int  # of user records in the chain
    digest: bytes

    def __str__(self) -> str:
        return f"{self.count}:{self.digest.hex()}"

    def after(self, segment_seqno: int, entry_id: int, body: bytes | memoryview, records: int) -> ChainValue:
        """The chain after an entry with this body of this many user records."""
        found = hashlib.sha256(self.digest)
        found.update(_PLACE.pack(segment_seqno, entry_id))
        found.update(body)
        return ChainValue(self.count + records, found.digest())


def chain_start(origin: str) -> ChainValue:
    """The chain before the first record of a log with this origin (``namespace.origin``)."""
    return ChainValue(0, hashlib.sha256(b"dlog hash chain 1" + origin.encode()).digest())


def parse_head(text: str) -> ChainValue:
    """Parse a text of the form that ``str`` of a value has. Raises ``ValueError``."""
    count, colon, digest = text.strip().partition(":")
    if not colon or not count.isdecimal() or not count.isascii() or len(count) > 19 or len(digest) != 64:
        raise ValueError(f"{text!r} is no head of a chain; give COUNT:HEX as dlog verify prints it")
    try:
        return ChainValue(int(count), bytes.fromhex(digest))
    except ValueError:
        raise ValueError(f"{text!r} is no head of a chain; its digits are not hexadecimal") from None


def encode_chain_record(value: ChainValue, position: int, txid: int) -> bytes:
    """The control record that carries a value."""
    return encode_record(FLAG_CONTROL, position, txid, _PAYLOAD.pack(_MAGIC, value.count, value.digest))


def chain_value_in(body: bytes, start: int, stop: int) -> ChainValue | None:
    """The value at the end of the records ``body[start:stop]``; None if they end without one.

    The records before it are ``body[start : stop - CHAIN_RECORD_BYTES]``.

    Raises:
        EntryFormatError: The last bytes are a chain record of another version.
    """
    at = stop - CHAIN_RECORD_BYTES
    if at < start:
        return None
    word, _, size_bytes = RECORD_HEADER.unpack_from(body, at)
    if not word & FLAG_CONTROL or size_bytes != _PAYLOAD.size:
        return None
    magic, count, digest = _PAYLOAD.unpack_from(body, at + RECORD_HEADER_BYTES)
    if magic[:4] != _MAGIC[:4]:
        return None
    if magic != _MAGIC or count < 0:
        raise EntryFormatError(f"a hash chain of version {magic[4]} with {count} records, only 1 is known")
    return ChainValue(count, digest)
