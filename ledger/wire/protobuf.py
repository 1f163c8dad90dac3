"""The few protobuf primitives that the codecs do without the library, or must do after it.

Inside: writing a varint, taking text out of a parsed message. Not inside: messages (``*_pb2``), which are
generated from the ``.proto`` files beside this one.

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

    The library does not look at the bytes of a proto2 string while it parses, and hands out ``bytes`` instead
    of ``str`` for one that is not UTF-8.

    Raises:
        UnicodeDecodeError: It is not UTF-8.
    """
    return value if isinstance(value, str) else value.decode()
