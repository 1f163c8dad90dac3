"""Protobuf primitives that the codecs use without the library, or need in addition to it.

Inside: writing a varint, the text of a parsed string field. Not inside: messages (``*_pb2``), which are
generated from the ``.proto`` files beside this module.

Source: Protocol Buffers, "Encoding".
"""

from __future__ import annotations

_UINT64_COUNT = 2**64


def encode_varint(value: int) -> bytes:
    """The varint of an int64 or uint64; a negative number takes ten bytes."""
    if 0 <= value < 0x80:
        return bytes((value,))
    if 0 <= value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if 0 <= value < 0x20_0000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    assert -(2**63) <= value < _UINT64_COUNT, value
    rest = value % _UINT64_COUNT
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


def text_of(value: str | bytes) -> str:
    """The text of a string field.

    The library does not check the bytes of a proto2 string while parsing. For a string that is not UTF-8 it
    returns ``bytes`` instead of ``str``.

    Raises:
        UnicodeDecodeError: The string is not UTF-8.
    """
    return value if isinstance(value, str) else value.decode()
