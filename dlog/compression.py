"""The codecs behind an envelope's flags: none, LZ4 blocks, and our own extension Snappy.

Inside: compressing and expanding one body. Not inside: where the lengths are written (``envelope``,
``record_set``).
Always: an expanded body has exactly the promised length, and no more than ``BODY_BYTES_MAX`` is ever
allocated for a promise found in stored bytes.

Apache's programs know codes 0 and 1. Code 2 is unassigned there and read as "not compressed" (a silent
corruption), so a namespace that Java shares never writes it (``dlog.config``).

Source: DistributedLog, CompressionCodec.java, CompressionUtils.java; LZ4 block format.
"""

from __future__ import annotations

import enum

import cramjam

from dlog.errors import EntryFormatError

BODY_BYTES_MAX = 64 * 1024 * 1024  # entries hold at most 1 MiB; only a record set can expand to more


class Compression(enum.Enum):
    """How a body is stored; ``value`` is the code in the flags."""

    NONE = 0
    LZ4 = 1
    SNAPPY = 2

    @property
    def shared_with_java(self) -> bool:
        """Whether Apache's readers understand it."""
        return self is not Compression.SNAPPY


CODEC_MASK = 0x3


def compress(codec: Compression, body: bytes) -> bytes:
    """The stored form of a body. LZ4 of an empty body does not exist in Java, so nothing empty is ever
    compressed."""
    match codec:
        case Compression.NONE:
            return body
        case Compression.LZ4:
            assert body, "nothing empty is compressed"
            return bytes(cramjam.lz4.compress_block(body, store_size=False))
        case Compression.SNAPPY:
            return bytes(cramjam.snappy.compress_raw(body))


def expand(code: int, stored: bytes, size_bytes: int) -> bytes:
    """The body behind a codec code and a promised length.

    Raises:
        EntryFormatError: Unknown code, a length that cannot be true, or bytes that do not expand to it.
    """
    if not 0 <= size_bytes <= BODY_BYTES_MAX:
        raise EntryFormatError(
            f"body claims to expand to {size_bytes} bytes, at most {BODY_BYTES_MAX} are believed"
        )
    match code:
        case 0:
            body = stored
        case 1:
            # An LZ4 block grows at most 255-fold: a longer promise is a lie, found before anything is
            # allocated.
            if size_bytes > 255 * len(stored) + 64:
                raise EntryFormatError(f"{len(stored)} LZ4 bytes cannot expand to {size_bytes}")
            body = _expand_lz4(stored, size_bytes)
        case 2:
            body = _expand_snappy(stored, size_bytes)
        case _:
            raise EntryFormatError(f"compression code {code} is not assigned")
    if len(body) != size_bytes:
        raise EntryFormatError(f"body has {len(body)} bytes, {size_bytes} were promised")
    return body


def _expand_lz4(stored: bytes, size_bytes: int) -> bytes:
    if size_bytes == 0:
        if stored != b"\0":  # the one LZ4 block of nothing: a token without literals
            raise EntryFormatError("an empty LZ4 body with content")
        return b""
    body = bytearray(size_bytes)
    try:
        # Into a buffer of ours: the call that returns one pads a short block with zeros instead of saying so.
        count = cramjam.lz4.decompress_block_into(stored, body)
    except cramjam.DecompressionError as exc:
        raise EntryFormatError(f"{len(stored)} bytes are no LZ4 block of {size_bytes}: {exc}") from exc
    if count != size_bytes:
        raise EntryFormatError(f"LZ4 body has {count} bytes, {size_bytes} were promised")
    return bytes(body)


def _expand_snappy(stored: bytes, size_bytes: int) -> bytes:
    # Snappy states its own length first (a varint); it has to agree before the library allocates for it.
    length = shift = 0
    for byte in stored[:5]:
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if length != size_bytes:
        raise EntryFormatError(f"Snappy body of {length} bytes, {size_bytes} were promised")
    if size_bytes > 64 * len(stored):  # a copy of 64 bytes takes two at least
        raise EntryFormatError(f"{len(stored)} Snappy bytes cannot expand to {size_bytes}")
    try:
        return bytes(cramjam.snappy.decompress_raw(stored))
    except cramjam.DecompressionError as exc:
        raise EntryFormatError(f"{len(stored)} bytes are no Snappy block: {exc}") from exc
