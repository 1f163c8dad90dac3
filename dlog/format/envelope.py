"""The envelope around an entry's records.

Inside: its header. Not inside: the records (``record``), the codecs (``compression``), the ledger's digest,
which is the only checksum.
Always: an entry never exceeds ``ENTRY_BYTES_MAX``, and its body never expands to more: Apache's writer counts
the bytes of an entry before it compresses them. Entries of segments with metadata version 2 or 3 have no
envelope.

offset  size  field
     0     1  version, 1; 76 for a part of a large record (ours; ``large_record``)
     1     4  flags: bits 0-1 compression code, the rest zero
     5     4  length of the body when expanded
     9     4  length of the body as stored, n
    13     n  body: the records, compressed as a whole

Source: DistributedLog, EnvelopedEntry.java, EnvelopedEntryWriter.java.
"""

from __future__ import annotations

from struct import Struct

from dlog.errors import EntryFormatError
from dlog.format.compression import CODEC_MASK, Compression, compress, expand

ENVELOPE_HEADER = Struct(">BIii")
ENVELOPE_HEADER_BYTES = 13
assert ENVELOPE_HEADER.size == ENVELOPE_HEADER_BYTES  # a constant

ENVELOPE_VERSION = 1
PARTS_ENVELOPE_VERSION = 76  # far from those that Apache may assign next
ENTRY_BYTES_MAX = 1_044_480  # 1 MiB - 4 KiB, this header included
ENTRY_BODY_BYTES_MAX = ENTRY_BYTES_MAX - ENVELOPE_HEADER_BYTES


def seal_envelope(
    body: bytes, codec: Compression = Compression.NONE, *, version: int = ENVELOPE_VERSION
) -> bytes:
    """The whole entry around a body of records."""
    size_bytes = len(body)
    if codec is Compression.NONE:
        return ENVELOPE_HEADER.pack(version, 0, size_bytes, size_bytes) + body
    stored = compress(codec, body)
    if len(stored) >= size_bytes:
        # Not compressible. Stored without compression, so that the entry stays within its limit.
        return ENVELOPE_HEADER.pack(version, 0, size_bytes, size_bytes) + body
    return ENVELOPE_HEADER.pack(version, codec.value, size_bytes, len(stored)) + stored


def open_envelope(entry: bytes) -> tuple[bytes, int, int]:
    """A buffer and the range (start, stop) of the records in it; without a copy if they are not compressed.

    Raises:
        EntryFormatError: Another version, unknown flags, lengths that do not fit the entry, or a body beyond
            ``ENTRY_BYTES_MAX``. A body is not expanded before its lengths are checked.
    """
    if len(entry) < ENVELOPE_HEADER_BYTES:
        raise EntryFormatError(f"an entry of {len(entry)} bytes is shorter than an envelope header")
    version, flags, size_bytes, stored_bytes = ENVELOPE_HEADER.unpack_from(entry)
    if version != ENVELOPE_VERSION and version != PARTS_ENVELOPE_VERSION:
        raise EntryFormatError(
            f"envelope version {version}, only {ENVELOPE_VERSION} and {PARTS_ENVELOPE_VERSION} are known"
        )
    if flags & ~CODEC_MASK:
        raise EntryFormatError(f"envelope flags {flags:#x}, only the lowest two bits are assigned")
    if stored_bytes != len(entry) - ENVELOPE_HEADER_BYTES:
        raise EntryFormatError(
            f"the envelope claims {stored_bytes} stored bytes,"
            f" the entry has {len(entry) - ENVELOPE_HEADER_BYTES}"
        )
    if flags == 0:
        if size_bytes != stored_bytes:
            raise EntryFormatError(
                f"an envelope without compression has two lengths, {size_bytes} and {stored_bytes}"
            )
        if size_bytes > ENTRY_BYTES_MAX:
            raise EntryFormatError(
                f"the entry has {size_bytes} bytes of records, more than the limit of {ENTRY_BYTES_MAX}"
            )
        return entry, ENVELOPE_HEADER_BYTES, len(entry)
    body = expand(flags, entry[ENVELOPE_HEADER_BYTES:], size_bytes, ENTRY_BYTES_MAX)
    return body, 0, len(body)
