"""Keys, headers and producers of records: one control record at the end of an entry, after the user records.

Inside: the key, the headers and the producer of one record as bytes, the control record that carries those of
an entry.
Not inside: which entries get one (``write.segment_writer``), the records that readers return (``record``),
encryption (``dlog.encryption``).
Always: only the flag of the control record says that it holds keys and headers, so no payload can be taken
for them. An entry without keys and headers has no such record. Decoding takes any bytes, and is bounded.

payload of the control record                     attributes of one record, not encrypted
offset  size  field                               size  field
     0     5  ``DLKH`` and the version, 1            1  bit 0: there is a key; bit 1: a producer; others 0
     5     4  number of records that have any        4  length of the key, with a key
     9        for each of them, by index:            n  the key, with a key
           4  index of the record in the entry       1  length of the producer's name, with one: 1 to 64
           4  length n of its attributes             n  its name, UTF-8
           n  its attributes, perhaps encrypted      8  the record's sequence number at this producer
                                                     1  number of headers, at most 64
                                                        for each of them:
                                                     1  length of the name, at least 1
                                                     n  name, UTF-8; no two are equal
                                                     4  length of the value
                                                     n  value

Source: our own; docs/stream-format.md 2.11. Apache's readers skip control records, whatever they hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from struct import Struct

from dlog.errors import ConfigError, EntryFormatError, RecordTooLongError
from dlog.format.record import (
    FLAG_ATTRIBUTES,
    FLAG_CONTROL,
    PAYLOAD_BYTES_MAX,
    RECORD_HEADER_BYTES,
    encode_record,
)
from ledger.payloads import as_payload

ATTRIBUTES_BYTES_MAX = 32 * 1024
"""The greatest size of one record's key and headers together, in bytes of their encoding."""
STORED_BYTES_MAX = ATTRIBUTES_BYTES_MAX + 73  # with a producer
HEADERS_MAX = 64
NAME_BYTES_MAX = 255
PRODUCER_BYTES_MAX = 64
SEQUENCE_MAX = 2**63 - 1

_BLOCK, _ITEM, _LENGTH, _SEQUENCE = Struct(">5sI"), Struct(">II"), Struct(">I"), Struct(">q")
_KEY, _PRODUCER = 1, 2  # bits of the first byte
_MAGIC = b"DLKH\x01"
BLOCK_BYTES = RECORD_HEADER_BYTES + _BLOCK.size
"""The bytes that the first record with attributes adds to its entry, beside those of ``item_bytes``."""
ITEM_BYTES = _ITEM.size

Buffer = bytes | bytearray | memoryview
Producer = tuple[str, int]
"""Who wrote a record with a shared writer, and the record's number at that producer."""
Attributes = tuple[bytes | None, tuple[tuple[str, bytes], ...], Producer | None]
"""The key of a record, its headers in order, and its producer."""


def not_shared(log: str) -> ConfigError:
    """Why a record with a sequence number is refused."""
    return ConfigError(
        f"log {log!r}: its writer is not shared, so its records have no sequence numbers; say"
        " open_writer(shared=True, producer=...)"
    )


def check_producer(name: str) -> bytes:
    """The bytes of a producer's name.

    Raises:
        TypeError: It is not text.
        ValueError: It has no or more than 64 bytes of UTF-8.
    """
    if not isinstance(name, str):
        raise TypeError(f"the name of a producer is text, not {type(name).__name__}")
    encoded = name.encode()
    if not 0 < len(encoded) <= PRODUCER_BYTES_MAX:
        raise ValueError(f"producer {name[:32]!r}: a name has 1 to {PRODUCER_BYTES_MAX} bytes of UTF-8")
    return encoded


def with_producer(attributes: bytes | None, producer: bytes, sequence: int) -> bytes:
    """The attributes of ``encode_attributes``, with a checked producer and the record's number there."""
    between = b"%c%b%b" % (len(producer), producer, _SEQUENCE.pack(sequence))
    if attributes is None:
        return b"\2" + between + b"\0"
    if not attributes[0]:
        return b"\2" + between + attributes[1:]
    end = 1 + _LENGTH.size + _LENGTH.unpack_from(attributes, 1)[0]
    return b"\3" + attributes[1:end] + between + attributes[end:]


def encode_attributes(
    key: Buffer | None,
    headers: Mapping[str, Buffer] | None,
) -> bytes | None:
    """The bytes of one record's key and headers; None if it has neither.

    Raises:
        TypeError: A key or a value is not bytes, or a name is not text.
        ValueError: There are more than 64 headers, a name has no or more than 255 bytes of UTF-8, or all
            together have more than 32 KiB.
    """
    headers = headers or {}
    if key is None and not headers:
        return None
    if len(headers) > HEADERS_MAX:
        raise ValueError(f"{len(headers)} headers: a record has at most {HEADERS_MAX}")
    parts = [b"\0"]
    if key is not None:
        key = as_payload(key)
        parts = [b"\1", _LENGTH.pack(len(key)), key]
    parts.append(bytes((len(headers),)))
    for name, value in headers.items():
        if not isinstance(name, str):
            raise TypeError(f"the name of a header is text, not {type(name).__name__}")
        encoded = name.encode()
        if not 0 < len(encoded) <= NAME_BYTES_MAX:
            raise ValueError(f"header {name[:32]!r}: a name has 1 to {NAME_BYTES_MAX} bytes of UTF-8")
        value = as_payload(value)
        parts += [bytes((len(encoded),)), encoded, _LENGTH.pack(len(value)), value]
    size_bytes = sum(map(len, parts))
    if size_bytes > ATTRIBUTES_BYTES_MAX:
        raise ValueError(
            f"the key and the headers of the record have {size_bytes} bytes; at most {ATTRIBUTES_BYTES_MAX}"
        )
    return b"".join(parts)


def attributes_of(
    log: str,
    count: int,
    keys: Iterable[Buffer | None] | None,
    headers: Iterable[Mapping[str, Buffer] | None] | None,
    *,
    takes_any: bool,
) -> list[bytes | None] | None:
    """The attributes of each of ``count`` records; None if no record has any.

    Raises: as ``encode_attributes``.
        ValueError: There are not as many keys or headers as records.
        ConfigError: A record has some, and ``takes_any`` is False.
    """
    if keys is None and headers is None:
        return None
    key_list = [None] * count if keys is None else list(keys)
    header_list = [None] * count if headers is None else list(headers)
    if len(key_list) != count or len(header_list) != count:
        raise ValueError(f"{count} payloads: give one key, and one mapping of headers, for each payload")
    found = [encode_attributes(*each) for each in zip(key_list, header_list, strict=True)]
    if all(each is None for each in found):
        return None
    if not takes_any:
        raise not_taken(log)
    return found


def not_taken(log: str) -> ConfigError:
    """Why a record with a key or headers is refused."""
    return ConfigError(
        f"log {log!r}: its writer takes no keys and headers: Apache's readers would get the records without"
        " them; leave them out, or say WriterConfig(keys_and_headers=True)"
    )


def check_room(payload: bytes, attributes: bytes | None, payload_bytes_max: int) -> None:
    """Raises RecordTooLongError if a payload and its attributes together are longer than a payload may be."""
    size_bytes = len(payload) + (0 if attributes is None else len(attributes))
    if payload_bytes_max <= PAYLOAD_BYTES_MAX and size_bytes > payload_bytes_max:
        raise RecordTooLongError(size_bytes, payload_bytes_max)


def check_rooms(
    payloads: Sequence[bytes], attributes: Sequence[bytes | None] | None, payload_bytes_max: int
) -> None:
    """The same for each of several records that has attributes."""
    if attributes is None:
        return
    if max(map(len, payloads), default=0) + max(map(len, filter(None, attributes)), default=0) <= min(
        payload_bytes_max, PAYLOAD_BYTES_MAX
    ):
        return  # as almost always; so no record is asked by itself
    for payload, each in zip(payloads, attributes, strict=True):
        if each is not None:
            check_room(payload, each, payload_bytes_max)


def decode_attributes(data: bytes) -> Attributes:
    """The key and the headers that ``encode_attributes`` got.

    Raises:
        EntryFormatError: The bytes are none of that call.
    """
    if len(data) > STORED_BYTES_MAX or not data or data[0] > _KEY | _PRODUCER:
        raise EntryFormatError(f"the key and headers of a record, {len(data)} bytes, do not decode")
    key, producer, at = None, None, 1
    if data[0] & _KEY:
        key, at = _sized(data, at)
    if data[0] & _PRODUCER:
        producer, at = _producer_at(data, at)
    if at >= len(data):
        raise EntryFormatError("the headers of a record are cut short")
    count, at = data[at], at + 1
    headers: dict[str, bytes] = {}
    for _ in range(count):
        size = data[at] if at < len(data) else 0
        name = data[at + 1 : at + 1 + size]
        try:
            text = name.decode()
        except UnicodeDecodeError:
            raise EntryFormatError("the name of a header is not UTF-8") from None
        if not size or len(name) != size or text in headers:
            raise EntryFormatError("the name of a header is empty, cut short, or there twice")
        headers[text], at = _sized(data, at + 1 + size)
    if at != len(data) or count > HEADERS_MAX or (not data[0] and not headers):
        raise EntryFormatError("the key and headers of a record have another length than they say")
    return key, tuple(headers.items()), producer


def _producer_at(data: bytes, at: int) -> tuple[Producer, int]:
    size = data[at] if at < len(data) else 0
    begin = at + 1 + size
    if not 0 < size <= PRODUCER_BYTES_MAX or begin + _SEQUENCE.size > len(data):
        raise EntryFormatError("the producer of a record has no name, or is cut short")
    (sequence,) = _SEQUENCE.unpack_from(data, begin)
    if sequence < 0:
        raise EntryFormatError(f"the number of a record at its producer is {sequence}")
    try:
        return (data[at + 1 : begin].decode(), sequence), begin + _SEQUENCE.size
    except UnicodeDecodeError:
        raise EntryFormatError("the name of a record's producer is not UTF-8") from None


def _sized(data: bytes, at: int) -> tuple[bytes, int]:
    """The bytes after their length, and where they end."""
    begin = at + _LENGTH.size
    if begin > len(data):
        raise EntryFormatError("the key and headers of a record are cut short")
    end = begin + _LENGTH.unpack_from(data, at)[0]
    if end > len(data):
        raise EntryFormatError("the key and headers of a record are cut short")
    return data[begin:end], end


def item_bytes(attributes: bytes) -> int:
    """The bytes that a record's attributes take in the control record of their entry."""
    return ITEM_BYTES + len(attributes)


def encode_attributes_record(attributes: Iterable[tuple[int, bytes]], position: int, txid: int) -> bytes:
    """The control record of an entry: the attributes of its records by index, in order."""
    parts: list[bytes] = []
    for index, each in attributes:
        parts += [_ITEM.pack(index, len(each)), each]
    payload = _BLOCK.pack(_MAGIC, len(parts) // 2) + b"".join(parts)
    return encode_record(FLAG_CONTROL | FLAG_ATTRIBUTES, position, txid, payload)


def decode_attributes_block(payload: bytes, records: int) -> list[tuple[int, bytes]]:
    """The attributes in the payload of such a control record, by index; each is as it is stored.

    Args:
        records: In the entry before it. An index is less.

    Raises:
        EntryFormatError: It is damaged, or of another version.
    """
    if len(payload) < _BLOCK.size or not payload.startswith(_MAGIC):
        raise EntryFormatError("keys and headers without their mark, or of another version; 1 is known")
    (_, count), at, last = _BLOCK.unpack_from(payload), _BLOCK.size, -1
    if not 0 < count <= records:
        raise EntryFormatError(f"keys and headers of {count} records in an entry with {records}")
    items: list[tuple[int, bytes]] = []
    for _ in range(count):
        begin = at + _ITEM.size
        if begin > len(payload):
            raise EntryFormatError("keys and headers are cut short")
        index, size = _ITEM.unpack_from(payload, at)
        at = begin + size
        if not last < index < records or at > len(payload):
            raise EntryFormatError(f"keys and headers of record {index} are out of order or cut short")
        items.append((index, payload[begin:at]))
        last = index
    if at != len(payload):
        raise EntryFormatError(f"{len(payload) - at} bytes follow the keys and headers")
    return items
