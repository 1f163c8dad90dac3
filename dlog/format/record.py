"""A record of a log, and its bytes inside an entry.

Inside: the ``Record`` that readers return, the record's layout, its flags and limits.
Not inside: the envelope around an entry's records (``envelope``), several records in one slot
(``record_set``).
Always: the records of an entry follow each other without a count or a trailer; the last one ends with the
entry.

offset  size  field
     0     8  metadata word, below          big-endian and signed, like all that follow
     8     8  transaction id
    16     4  payload length n, at least 0
    20     n  payload

metadata word, bit 0 the lowest: 0 control, 1 end of stream, 2 record set, 3 part of a large record (ours;
``large_record``), 4 keys and headers (ours; ``attributes``), 5-15 zero, 16-47 position in the segment (1 for
its first user record), 48-63 zero.

Source: DistributedLog, LogRecord.java.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from operator import itemgetter
from struct import Struct
from types import MappingProxyType
from typing import Any, ClassVar, Self

from dlog.errors import EntryFormatError
from namespace.dlsn import DLSN

RECORD_HEADER = Struct(">qqi")
RECORD_HEADER_BYTES = 20
assert RECORD_HEADER.size == RECORD_HEADER_BYTES  # a constant

RECORD_BYTES_MAX = 1_040_384  # 1 MiB - 8 KiB, header included
PAYLOAD_BYTES_MAX = RECORD_BYTES_MAX - RECORD_HEADER_BYTES
"""The greatest payload of a record, in bytes."""

FLAG_CONTROL = 0x1
FLAG_END_OF_STREAM = 0x2
FLAG_RECORD_SET = 0x4
FLAG_PART = 0x8  # ours: a part of a large record, in an entry with an envelope of version 76
FLAG_ATTRIBUTES = 0x10  # ours: a control record with the keys and headers of the records of its entry
FLAGS_MASK = 0xFFFF

POSITION_SHIFT = 16
POSITION_MAX = 0x7FFF_FFFF

TXID_MAX = 2**63 - 1  # of the end-of-stream record only; ids of user records are lower
TXID_INVALID = -999  # "unknown": the last txid of a segment in progress

CONTROL_PAYLOAD = b"control"
KEEP_ALIVE_PAYLOAD = b"keepalive"
END_OF_STREAM_PAYLOAD = b"endOfStream"


NO_HEADERS: Mapping[str, bytes] = MappingProxyType({})


def _repr_payload(payload: bytes) -> str:
    return repr(payload) if len(payload) <= 32 else f"{payload[:32]!r}... {len(payload)} bytes"


def _field(index: int, doc: str) -> Any:
    """A property for one element of a record."""
    return property(itemgetter(index), doc=doc)


class Record(tuple[Any, ...]):
    """One record, as a reader returns it. Immutable."""

    # A tuple of (segment_seqno, entry_id, slot_id, txid, payload, sequence_id). ``make_records`` makes it in
    # one step of the interpreter, which neither a thread nor a signal divides, and in a fifth of the time
    # that an object and a DLSN of ``attrs`` take. The DLSN is made when it is asked for.
    __slots__ = ()
    __match_args__: ClassVar[tuple[str, ...]] = ("dlsn", "txid", "payload", "sequence_id")

    txid: int = _field(3, "Chosen by the writer; never decreases along the log.")
    payload: bytes = _field(4, "The bytes that were appended.")
    sequence_id: int = _field(5, "The number of user records before it in the log.")

    def __new__(cls, dlsn: DLSN, txid: int, payload: bytes, sequence_id: int) -> Self:
        return tuple.__new__(
            cls, (dlsn.segment_seqno, dlsn.entry_id, dlsn.slot_id, txid, payload, sequence_id)
        )

    @property
    def dlsn(self) -> DLSN:
        """Its position; a reader that starts here returns this record first."""
        return DLSN(self[0], self[1], self[2])

    @property
    def key(self) -> bytes | None:
        """The key that the record was written with; None without one."""
        return None

    @property
    def headers(self) -> Mapping[str, bytes]:
        """The headers that the record was written with, in order; read-only."""
        return NO_HEADERS

    @property
    def producer(self) -> tuple[str, int] | None:
        """The name of the shared writer's producer, and the record's number there; None without one."""
        return None

    def with_payload(self, payload: bytes) -> Self:
        """The same record with another payload."""
        return tuple.__new__(type(self), (*self[:4], payload, *self[5:]))

    def __getnewargs__(self) -> tuple[Any, ...]:
        return (self.dlsn, *self[3:])

    def __repr__(self) -> str:
        shown = {name: repr(getattr(self, name)) for name in self.__match_args__}
        shown["payload"] = _repr_payload(self.payload)
        return f"{type(self).__name__}({', '.join(f'{name}={text}' for name, text in shown.items())})"


class RecordWithAttributes(Record):
    """A record with a key, headers or a producer."""

    __slots__ = ()
    __match_args__ = (*Record.__match_args__, "key", "header_items", "producer")

    key: bytes | None = _field(6, Record.key.__doc__ or "")
    header_items: tuple[tuple[str, bytes], ...] = _field(7, "The headers: names and values.")
    producer: tuple[str, int] | None = _field(8, Record.producer.__doc__ or "")

    def __new__(
        cls,
        dlsn: DLSN,
        txid: int,
        payload: bytes,
        sequence_id: int,
        key: bytes | None,
        header_items: tuple[tuple[str, bytes], ...],
        producer: tuple[str, int] | None = None,
    ) -> Self:
        return tuple.__new__(cls, (*Record(dlsn, txid, payload, sequence_id), key, header_items, producer))

    @property
    def headers(self) -> Mapping[str, bytes]:
        return MappingProxyType(dict(self.header_items))


class RecordWithSealedAttributes(Record):
    """A record whose key and headers are encrypted, as its payload is; a reader without keys returns it."""

    __slots__ = ()

    sealed: bytes = _field(6, "The encrypted key and headers.")

    def __new__(cls, dlsn: DLSN, txid: int, payload: bytes, sequence_id: int, sealed: bytes) -> Self:
        return tuple.__new__(cls, (*Record(dlsn, txid, payload, sequence_id), sealed))


def make_records(
    segment_seqno: int,
    entry_id: int,
    slot_ids: Iterable[int],
    txids: Iterable[int],
    payloads: Iterable[bytes],
    sequence_ids: Iterable[int],
) -> Iterator[Record]:
    """The same as ``Record`` for each, but made one by one without a step of Python."""
    fields = zip(
        repeat(segment_seqno), repeat(entry_id), slot_ids, txids, payloads, sequence_ids, strict=False
    )
    return map(tuple.__new__, repeat(Record), fields)


def encode_records(payloads: Sequence[bytes], txids: Sequence[int], first_position: int) -> bytes:
    """The body of an entry with these user records; the first has ``first_position``, each next one more."""
    assert len(payloads) == len(txids)  # the batcher appends to both
    assert 1 <= first_position <= POSITION_MAX - len(payloads)  # the batcher closes an entry before
    pack = RECORD_HEADER.pack
    parts: list[bytes] = []
    push = parts.append
    word = first_position << POSITION_SHIFT
    for payload, txid in zip(payloads, txids, strict=True):
        push(pack(word, txid, len(payload)))
        push(payload)
        word += 1 << POSITION_SHIFT
    return b"".join(parts)


def encode_record(flags: int, position: int, txid: int, payload: bytes) -> bytes:
    """The bytes of one record of any kind."""
    assert 0 <= flags <= FLAGS_MASK  # flags are our constants
    assert 0 <= position <= POSITION_MAX  # the batcher closes an entry before
    return RECORD_HEADER.pack(position << POSITION_SHIFT | flags, txid, len(payload)) + payload


def decode_records(body: bytes, start: int, stop: int) -> list[tuple[int, int, int, bytes]]:
    """All records in ``body[start:stop]`` as (flags, position, txid, payload).

    Raises:
        EntryFormatError: A record cut short, a negative length, or a position out of range.
    """
    unpack = RECORD_HEADER.unpack_from
    records: list[tuple[int, int, int, bytes]] = []
    push = records.append
    offset = start
    last_header = stop - RECORD_HEADER_BYTES
    while offset <= last_header:
        word, txid, size_bytes = unpack(body, offset)
        offset += RECORD_HEADER_BYTES
        end = offset + size_bytes
        if size_bytes < 0 or end > stop:
            raise EntryFormatError(
                f"the record at byte {offset - RECORD_HEADER_BYTES} claims {size_bytes} payload bytes, "
                f"{stop - offset} are left"
            )
        # The upper bits are unused and may have any value. Java masks them off, too.
        position = word >> POSITION_SHIFT & 0xFFFF_FFFF
        if position > POSITION_MAX:
            raise EntryFormatError(
                f"the record at byte {offset - RECORD_HEADER_BYTES} claims position {position}"
            )
        push((word & FLAGS_MASK, position, txid, body[offset:end]))
        offset = end
    if offset != stop:
        raise EntryFormatError(f"the {stop - offset} bytes after the last record are no record")
    return records
