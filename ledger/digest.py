"""The bytes of an entry, stored and on the wire, and the digest that protects it.

offset  size  field
     0     8  ledger id             signed, big-endian, like all that follow
     8     8  entry id
    16     8  last add confirmed    -1: nothing confirmed yet
    24     8  length                payload bytes of the ledger up to and including this entry
    32     d  digest                d = 0 dummy, 4 CRC32C, 8 CRC32 (the upper four are zero), 20 HMAC-SHA1
  32+d     *  payload               may be empty

The digest covers bytes 0..31 and the payload. The explicit LAC has a packet of its own:

offset  size  field
     0     8  ledger id
     8     8  last add confirmed
    16     d  digest                of bytes 0..15

Inside: packing, verifying, the two keys derived from a password. Not inside: frames (``wire``).
Always: unpacking checks the digest and the ids. Only clients can do so: bookies do not have the password.

Source: DigestManager.java and its four subclasses, MacDigestManager.genDigest for the keys.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import struct
import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache

import attrs
from crc32c import crc32c

from ledger.errors import CorruptEntryError
from ledger.packed_entries import SIZE_BYTES, PackedEntries

ENTRY_ID_MAX = 2**63 - 1  # what the header holds
ENTRY_HEADER = struct.Struct(">qqqq")
ENTRY_HEADER_BYTES = 32
LAC_HEADER = struct.Struct(">qq")
LAC_HEADER_BYTES = 16
assert ENTRY_HEADER.size == ENTRY_HEADER_BYTES  # a constant
assert LAC_HEADER.size == LAC_HEADER_BYTES  # a constant

Digest = Callable[[bytes, bytes], bytes]  # from header and payload to the bytes of the digest


class DigestType(enum.Enum):
    """The kind of digest in the entries of a ledger. Only MAC detects forged entries."""

    CRC32 = "CRC32"
    MAC = "MAC"
    CRC32C = "CRC32C"
    DUMMY = "DUMMY"

    @property
    def metadata_number(self) -> int:
        """The number of this type in ledger metadata, where MAC is called HMAC."""
        return _METADATA_NUMBERS[self]

    @property
    def size_bytes(self) -> int:
        """The size of the digest in an entry."""
        return _SIZES_BYTES[self]


_METADATA_NUMBERS = {DigestType.CRC32: 1, DigestType.MAC: 2, DigestType.CRC32C: 3, DigestType.DUMMY: 4}
_SIZES_BYTES = {DigestType.CRC32: 8, DigestType.MAC: 20, DigestType.CRC32C: 4, DigestType.DUMMY: 0}


def master_key(password: bytes) -> bytes:
    """The 20 bytes that a bookie compares before a client may write to a ledger or fence it."""
    return hashlib.sha1(b"ledger" + password).digest()


def mac_key(password: bytes) -> bytes:
    """The 20 bytes of the key of the MAC digest; they are never sent to bookies."""
    return hashlib.sha1(b"mac" + password).digest()


@attrs.frozen
class Entry:
    """An entry with verified digest and ids."""

    ledger_id: int
    entry_id: int
    lac: int  # the writer's last add confirmed when it sent this entry; -1 if it is not below the entry's id
    length_bytes: int  # payload bytes of the ledger up to and including this entry
    payload: bytes


_pack_crc32c = struct.Struct(">I").pack
_pack_crc32 = struct.Struct(">Q").pack


def _crc32c_digest(header: bytes, payload: bytes) -> bytes:
    return _pack_crc32c(crc32c(payload, crc32c(header)))


def _crc32_digest(header: bytes, payload: bytes) -> bytes:
    return _pack_crc32(zlib.crc32(payload, zlib.crc32(header)))


def _no_digest(_header: bytes, _payload: bytes) -> bytes:
    return b""


def _mac_digest(password: bytes) -> Digest:
    keyed = hmac.new(mac_key(password), digestmod="sha1")  # set up once: a copy is cheaper than a new object

    def digest(header: bytes, payload: bytes) -> bytes:
        mac = keyed.copy()
        mac.update(header)
        mac.update(payload)
        return mac.digest()

    return digest


class EntryCodec:
    """Packs and verifies the entries of ledgers with one digest type and password.

    It is immutable, so handles may share it.
    """

    def __init__(self, digest_type: DigestType, password: bytes) -> None:
        self.digest_type = digest_type
        self.master_key = master_key(password)
        self.overhead_bytes = ENTRY_HEADER_BYTES + digest_type.size_bytes
        self.digest: Digest
        match digest_type:
            case DigestType.CRC32C:
                self.digest = _crc32c_digest
            case DigestType.CRC32:
                self.digest = _crc32_digest
            case DigestType.MAC:
                self.digest = _mac_digest(password)
            case DigestType.DUMMY:
                self.digest = _no_digest

    def __repr__(self) -> str:
        return f"<EntryCodec {self.digest_type.name}>"

    def pack(self, ledger_id: int, entry_id: int, lac: int, length_bytes: int, payload: bytes) -> bytes:
        """The entry as bookies store it."""
        header = ENTRY_HEADER.pack(ledger_id, entry_id, lac, length_bytes)
        return b"".join((header, self.digest(header, payload), payload))

    def unpack(self, body: bytes, ledger_id: int, entry_id: int | None) -> Entry:
        """Verify an entry that a bookie sent; return its parts.

        Args:
            entry_id: The requested id; None if the request was for the last entry.

        Raises:
            CorruptEntryError: The entry is too short, has a wrong digest, or is not the requested one.
        """
        size = self.overhead_bytes
        if len(body) < size:
            raise CorruptEntryError(
                ledger_id, entry_id, f"{len(body)} bytes where an entry has {size} at least"
            )
        payload = body[size:]
        header = body[:ENTRY_HEADER_BYTES]
        stored, computed = body[ENTRY_HEADER_BYTES:size], self.digest(header, payload)
        if not hmac.compare_digest(stored, computed):
            raise CorruptEntryError(
                ledger_id,
                entry_id,
                f"its {self.digest_type.name} digest is {stored.hex()}, its bytes give {computed.hex()}",
            )
        found_ledger, found_entry, lac, length_bytes = ENTRY_HEADER.unpack(header)
        if found_ledger != ledger_id or (entry_id is not None and found_entry != entry_id):
            raise CorruptEntryError(
                ledger_id, entry_id, f"the bookie sent entry {found_entry} of ledger {found_ledger} instead"
            )
        if not -1 <= lac < found_entry:  # ``wire.entry_lac``, which is above this module, has the reason
            lac = -1
        return Entry(found_ledger, found_entry, lac, length_bytes, payload)

    def payloads(self, bodies: Sequence[bytes], ledger_id: int, first_entry_id: int) -> list[bytes]:
        """The verified payloads of consecutive entries; for catch-up reads.

        The result ends in front of the first bad entry, which must then be read from another replica. Without
        bodies it is empty.

        Raises:
            CorruptEntryError: The first entry is bad.
        """
        crc = _CRCS.get(self.digest_type)
        if crc is None:
            payloads = self._payloads_any(bodies, ledger_id, first_entry_id)
        elif isinstance(bodies, PackedEntries):
            payloads = _packed_payloads_crc(crc, bodies, ledger_id, first_entry_id)
        else:
            payloads = _payloads_crc(crc, bodies, ledger_id, first_entry_id)
        if not payloads and bodies:
            self.unpack(bodies[0], ledger_id, first_entry_id)  # raises the reason
            raise CorruptEntryError(
                ledger_id, first_entry_id, "its quick check failed and its careful check did not; report this"
            )
        return payloads

    def _payloads_any(self, bodies: Sequence[bytes], ledger_id: int, first_entry_id: int) -> list[bytes]:
        payloads: list[bytes] = []
        for entry_id, body in enumerate(bodies, first_entry_id):
            try:
                payloads.append(self.unpack(body, ledger_id, entry_id).payload)
            except CorruptEntryError:
                break
        return payloads

    def pack_lac(self, ledger_id: int, lac: int) -> bytes:
        """The packet that carries an explicit LAC."""
        header = LAC_HEADER.pack(ledger_id, lac)
        return header + self.digest(header, b"")

    def unpack_lac(self, body: bytes, ledger_id: int) -> int:
        """Verify an explicit-LAC packet; return its LAC, or -1 if no ledger can have it.

        Raises:
            CorruptEntryError: The packet is too short, has a wrong digest, or is of another ledger.
        """
        size = LAC_HEADER_BYTES + self.digest_type.size_bytes
        if len(body) < size:
            raise CorruptEntryError(
                ledger_id, None, f"explicit LAC of {len(body)} bytes; it has {size} at least"
            )
        header = body[:LAC_HEADER_BYTES]
        # Bytes after the digest are allowed: Java's bookie keeps the packet in a buffer that may be longer.
        if not hmac.compare_digest(body[LAC_HEADER_BYTES:size], self.digest(header, b"")):
            raise CorruptEntryError(
                ledger_id, None, f"explicit LAC with a wrong {self.digest_type.name} digest"
            )
        found_ledger: int
        lac: int
        found_ledger, lac = LAC_HEADER.unpack(header)
        if found_ledger != ledger_id:
            raise CorruptEntryError(ledger_id, None, f"explicit LAC of ledger {found_ledger} instead")
        return lac if -1 <= lac < ENTRY_ID_MAX else -1


# Catch-up reads spend most of their time in what follows, so it avoids every call that it can.

Checksum = Callable[..., int]  # of bytes, continued from the checksum of those before (0 at first)


@attrs.frozen
class _Crc:
    """A digest that is a checksum over header and payload."""

    checksum: Checksum
    number_format: str  # of the digest
    entry: struct.Struct  # ledger id, entry id, digest

    @staticmethod
    def of(checksum: Checksum, number_format: str) -> _Crc:
        return _Crc(checksum, number_format, struct.Struct(f">qq16x{number_format}"))


_CRCS = {DigestType.CRC32C: _Crc.of(crc32c, "I"), DigestType.CRC32: _Crc.of(zlib.crc32, "Q")}
_UNIFORM_MIN = 4  # below it, looking at each entry is as fast
_UNIFORM_BYTES_MAX = 4096  # above it, the bytes cost more than the calls
_BLOCK_ENTRIES = 64


def _payloads_crc(crc: _Crc, bodies: Sequence[bytes], ledger_id: int, first_entry_id: int) -> list[bytes]:
    unpack_from, checksum, overhead_bytes = crc.entry.unpack_from, crc.checksum, crc.entry.size
    payloads: list[bytes] = []
    append = payloads.append
    entry_id = first_entry_id
    for body in bodies:
        if len(body) < overhead_bytes:
            break
        found_ledger, found_entry, stored = unpack_from(body)
        payload = body[overhead_bytes:]
        if (
            found_entry != entry_id
            or found_ledger != ledger_id
            or checksum(payload, checksum(body[:ENTRY_HEADER_BYTES])) != stored
        ):
            break
        append(payload)
        entry_id += 1
    return payloads


def _packed_payloads_crc(
    crc: _Crc, entries: PackedEntries, ledger_id: int, first_entry_id: int
) -> list[bytes]:
    starts, overhead_bytes = entries.starts, crc.entry.size
    if isinstance(starts, range) and len(starts) >= _UNIFORM_MIN:
        size_bytes = starts.step - SIZE_BYTES
        if overhead_bytes <= size_bytes <= _UNIFORM_BYTES_MAX:
            payloads = _uniform_payloads_crc(crc, entries, size_bytes, ledger_id, first_entry_id)
            if payloads is not None:
                return payloads
    data, unpack_from, checksum = entries.data, crc.entry.unpack_from, crc.checksum
    verified: list[bytes] = []
    append = verified.append
    entry_id = first_entry_id
    for start, stop in zip(starts, entries.stops(), strict=True):
        if stop - start < overhead_bytes:
            break
        found_ledger, found_entry, stored = unpack_from(data, start)
        payload = data[start + overhead_bytes : stop]
        if (
            found_entry != entry_id
            or found_ledger != ledger_id
            or checksum(payload, checksum(data[start : start + ENTRY_HEADER_BYTES])) != stored
        ):
            break
        append(payload)
        entry_id += 1
    return verified


@lru_cache(maxsize=64)
def _uniform_layouts(
    size_bytes: int, number_format: str, digest_bytes: int
) -> tuple[struct.Struct, struct.Struct]:
    """The layouts of a block of entries of this size, each after its size: four parts of each, and the
    header that is digested. One entry at a time would leave a tuple for each to the garbage collector."""
    payload_bytes = size_bytes - ENTRY_HEADER_BYTES - digest_bytes
    parts = f"4xqq16x{number_format}{payload_bytes}s"
    return (
        struct.Struct(">" + parts * _BLOCK_ENTRIES),
        struct.Struct(">" + f"4x32s{size_bytes - ENTRY_HEADER_BYTES}x" * _BLOCK_ENTRIES),
    )


def _uniform_payloads_crc(
    crc: _Crc, entries: PackedEntries, size_bytes: int, ledger_id: int, first_entry_id: int
) -> list[bytes] | None:
    """The payloads of entries of one size if all are good, by a few calls for many of them; else None."""
    packed, count, checksum = entries.packed, len(entries), crc.checksum
    digest_bytes = crc.entry.size - ENTRY_HEADER_BYTES
    parts, headers = _uniform_layouts(size_bytes, crc.number_format, digest_bytes)
    whole = count - count % _BLOCK_ENTRIES
    payloads: list[bytes] = []
    entry_id = first_entry_id
    blocks = packed[: whole * (SIZE_BYTES + size_bytes)]
    for block, block_headers in zip(parts.iter_unpack(blocks), headers.iter_unpack(blocks), strict=True):
        found = block[3::4]
        if (
            block[::4].count(ledger_id) != _BLOCK_ENTRIES
            or block[1::4] != tuple(range(entry_id, entry_id + _BLOCK_ENTRIES))
            or tuple(map(checksum, found, map(checksum, block_headers))) != block[2::4]
        ):
            return None
        payloads += found
        entry_id += _BLOCK_ENTRIES
    if whole < count:
        rest = PackedEntries(entries.data, list(entries.starts[whole:]), entries.stop)
        payloads += _packed_payloads_crc(crc, rest, ledger_id, entry_id)
        if len(payloads) != count:
            return None
    return payloads
