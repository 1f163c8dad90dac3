"""Protobuf primitives that the codecs use without the library, or need in addition to it.

The library's time and memory for a message grow with the number of its fields, not with its bytes: 5 MB of
empty fields take a quarter of a second and half a gigabyte. So the fields of a message from a peer are
counted before it is parsed.

Inside: writing a varint, the text of a parsed string field, the limit on the number of fields.
Not inside: messages (``*_pb2``), which are generated from the ``.proto`` files beside this module.

Source: Protocol Buffers, "Encoding".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ledger.errors import WireError

FIELDS_MAX = 512  # of a message and its sub-messages together; ours and Apache's have at most twenty
UNCOUNTED_BYTES_MAX = 512  # a message of this size is parsed in 30 microseconds, whatever it holds

_UINT64_COUNT = 2**64


def encode_varint(value: int) -> bytes:
    """The varint of an int64 or uint64; a negative number takes ten bytes."""
    if 0 <= value < 0x80:
        return bytes((value,))
    if 0 <= value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if 0 <= value < 0x20_0000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    # Ids were packed into the header of the same entry, or unpacked from eight bytes.
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


SubMessages = Mapping[int, "SubMessages"]
"""The numbers of a message's fields that are messages, each with the same of that message."""


def sub_messages(descriptor: Any) -> SubMessages:
    """The sub-messages of a message that contains no message of its own type.

    Args:
        descriptor: ``DESCRIPTOR`` of the message's class.
    """
    return {
        field.number: sub_messages(field.message_type)
        for field in descriptor.fields
        if field.message_type is not None
    }


def check_fields(data: bytes, start: int, end: int, known: SubMessages) -> None:
    """Check that parsing the message in ``data[start:end]`` takes little time and memory.

    Callers skip it up to ``UNCOUNTED_BYTES_MAX``.

    Raises:
        WireError: It has more than ``FIELDS_MAX`` fields, has a group, or is malformed.
    """
    _count_fields(data, start, end, known, 0)


def _count_fields(data: bytes, at: int, end: int, known: SubMessages, count: int) -> int:
    while at < end:
        count += 1
        if count > FIELDS_MAX:
            raise WireError(f"a protobuf message of more than {FIELDS_MAX} fields")
        tag, at = _varint_at(data, at, end)
        match tag & 7:
            case 0:
                _, at = _varint_at(data, at, end)
            case 1:
                at += 8
            case 2:
                length, at = _varint_at(data, at, end)
                if length > end - at:
                    raise WireError("a protobuf field is cut short")
                nested = known.get(tag >> 3)
                if nested is not None:
                    count = _count_fields(data, at, at + length, nested, count)
                at += length
            case 5:
                at += 4
            case kind:
                raise WireError(f"a protobuf field of wire type {kind}")
    if at > end:
        raise WireError("a protobuf field is cut short")
    return count


def _varint_at(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = 0
    for index in range(at, min(at + 10, end)):
        byte = data[index]
        value |= (byte & 0x7F) << 7 * (index - at)
        if byte < 0x80:
            return value, index + 1
    raise WireError("a protobuf number is cut short or too long")
