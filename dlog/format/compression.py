"""The codecs of an envelope: none, LZ4 blocks, and Snappy, which is our own extension.

Inside: compressing and expanding one body. Not inside: where the lengths are stored (``envelope``,
``record_set``).
Always: an expanded body has exactly the stored length. The stored length is compared with the caller's limit
and with what the stored bytes can expand to, before anything is allocated.

Apache's programs know codes 0 and 1. They read code 2 as "not compressed", which corrupts records silently.
So a namespace shared with Java never writes it (``dlog.config``).

Source: DistributedLog, CompressionCodec.java, CompressionUtils.java; LZ4 block format.
"""

from __future__ import annotations

import enum

import cramjam
import snappy

from dlog.errors import EntryFormatError


class Compression(enum.Enum):
    """How a body is stored; ``value`` is the code in the flags."""

    NONE = 0
    LZ4 = 1
    SNAPPY = 2

    @property
    def shared_with_java(self) -> bool:
        """True if Apache's readers can expand it."""
        return self is not Compression.SNAPPY


CODEC_MASK = 0x3


def compress(codec: Compression, body: bytes) -> bytes:
    """The stored form of a body. An empty body is never compressed: Java has no LZ4 form of it."""
    match codec:
        case Compression.NONE:
            return body
        case Compression.LZ4:
            assert body, "an empty body is never compressed"  # the caller stores an empty body as it is
            return bytes(cramjam.lz4.compress_block(body, store_size=False))
        case Compression.SNAPPY:
            return bytes(snappy.compress(body))


def expand(code: int, stored: bytes, size_bytes: int, limit_bytes: int) -> bytes:
    """Expand a stored body.

    Args:
        code: The codec's code in the flags.
        size_bytes: The stored length of the expanded body.
        limit_bytes: The greatest length that the caller accepts.

    Raises:
        EntryFormatError: Unknown code, an impossible length, or bytes that do not expand to this length.
    """
    if not 0 <= size_bytes <= limit_bytes:
        raise EntryFormatError(
            f"the body claims to expand to {size_bytes} bytes, more than the limit of {limit_bytes}"
        )
    match code:
        case 0:
            body = stored
        case 1:
            # An LZ4 block expands at most 255-fold. Check the length before allocating anything.
            if size_bytes > 255 * len(stored) + 64:
                raise EntryFormatError(f"{len(stored)} LZ4 bytes cannot expand to {size_bytes}")
            body = _expand_lz4(stored, size_bytes)
        case 2:
            body = _expand_snappy(stored, size_bytes)
        case _:
            raise EntryFormatError(f"compression code {code} is not assigned")
    if len(body) != size_bytes:
        raise EntryFormatError(f"the body has {len(body)} bytes, its stored length is {size_bytes}")
    return body


def _expand_lz4(stored: bytes, size_bytes: int) -> bytes:
    if size_bytes == 0:
        if stored != b"\0":  # the only LZ4 block of no bytes: a token without literals
            raise EntryFormatError("the LZ4 body has the length 0 but is not empty")
        return b""
    body = bytearray(size_bytes)
    try:
        # Into a buffer of our own: the call that allocates one pads a short block with zeros silently.
        count = cramjam.lz4.decompress_block_into(stored, body)
    except cramjam.DecompressionError as exc:
        raise EntryFormatError(f"{len(stored)} bytes are no LZ4 block of {size_bytes}: {exc}") from None
    if count != size_bytes:
        raise EntryFormatError(f"the LZ4 body has {count} bytes, its stored length is {size_bytes}")
    return bytes(body)


def _expand_snappy(stored: bytes, size_bytes: int) -> bytes:
    # A Snappy block begins with its length (a varint). Compare it before the library allocates that much.
    length = shift = 0
    for byte in stored[:5]:
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if length != size_bytes:
        raise EntryFormatError(f"the Snappy body has {length} bytes, its stored length is {size_bytes}")
    if size_bytes > 64 * len(stored):  # a copy element of at least two bytes gives at most 64
        raise EntryFormatError(f"{len(stored)} Snappy bytes cannot expand to {size_bytes}")
    try:
        return bytes(snappy.uncompress(stored))
    except snappy.UncompressError as exc:
        raise EntryFormatError(f"{len(stored)} bytes are no Snappy block: {exc.__cause__}") from exc
