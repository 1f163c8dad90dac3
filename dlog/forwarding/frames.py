"""The bytes between a forwarder and the owner of a log, in frames of ``ledger.wire.frame``.

    forwarder   HELLO     its version, its producer, the last position that it knew before its oldest record
                APPEND    records with consecutive sequence numbers
                CALL      one call of a writer that is no plain append
                PING
    owner       WELCOME   the last sequence number of the producer, the log's last transaction id
                APPENDED  positions of the records of one APPEND
                REFUSED   why those of one APPEND are not written, or not known to be
                RESULT    of a CALL: positions; FAILED: its error
                LEAVING   answer nothing more is answered; find the next owner
                PONG

Inside: encoding and decoding them. Not inside: cutting frames, what they do.
Always: decoding takes any bytes and raises ``WireError``; no error of a peer is unpickled, and a name only
makes a class of a table.

Source: our own; docs/shared.md, "Frames".
"""

from __future__ import annotations

import enum
import json
from collections.abc import Sequence
from itertools import accumulate, pairwise
from struct import Struct, error, pack, unpack_from
from typing import Any

import attrs

from dlog import errors
from dlog.errors import DLogError, EntryFormatError, LogWriteError, RecordOutcome, WriteError
from dlog.format.attributes import STORED_BYTES_MAX, check_producer, decode_attributes
from ledger.errors import WireError
from ledger.wire.frame import FRAME_BYTES_MAX
from namespace.dlsn import DLSN

VERSION = 2
RECORDS_MAX = 65_536  # of one APPEND
GROUP_BYTES = (
    1 << 20
)  # of payloads, keys and headers in one APPEND, unless it has one record or an atomic batch

_HELLO, _APPEND = Struct(">BBBqqq16s"), Struct(">BqBI")
_WELCOME, _APPENDED, _RANGE = Struct(">Bqqqqq"), Struct(">BqqI"), Struct(">qqqI")
_ANSWER, _CALL, _TXID = Struct(">Bq"), Struct(">BqB"), Struct(">q")
_AGAIN, _ATOMIC, _TXIDS, _ATTRIBUTES = 1, 2, 4, 8
_PREFIX = Struct(">I")


def frame_bytes_max(payload_bytes_max: int) -> int:
    """The size of the greatest frame of a writer with such records."""
    return max(FRAME_BYTES_MAX, payload_bytes_max + STORED_BYTES_MAX + 64)


class FrameKind(enum.IntEnum):
    """The first byte of a frame."""

    HELLO = 1
    APPEND = 2
    CALL = 3
    PING = 4
    WELCOME = 65
    APPENDED = 66
    REFUSED = 67
    RESULT = 68
    FAILED = 69
    LEAVING = 70
    PONG = 71


class ForwardedCall(enum.IntEnum):
    """The names of what a CALL asks for."""

    APPEND_AFTER = 1
    APPEND_ONCE = 2
    OUTCOME = 3
    FLUSH = 4
    TRUNCATE = 5
    SEAL = 6


@attrs.frozen
class Hello:
    """The first frame of a forwarder."""

    producer: str
    instance: str  # of the program, in hexadecimal: the same when it connects again
    floor: DLSN  # every record that it may have sent before lies after it


@attrs.frozen
class Welcome:
    """The first frame of an owner."""

    last_sequence: int  # of the producer in the window; -1: none
    last_txid: int
    end: DLSN  # of the log, as the owner knows it; INVALID_DLSN if it does not


@attrs.frozen
class Records:
    """Records with consecutive sequence numbers of one producer.

    Args:
        is_again: Some owner may have stored them.
        txids: None: the owner chooses them.
        attributes: Keys and headers, without a producer.
    """

    first: int
    payloads: Sequence[bytes]
    txids: Sequence[int] | None = None
    attributes: Sequence[bytes | None] | None = None
    is_atomic: bool = False
    is_again: bool = False


@attrs.frozen
class Request:
    """A call that is no plain append.

    Args:
        number: Of the call at its connection.
        producer: Of the records of APPEND_AFTER alone, so that a repeat is found.
        position: APPEND_AFTER: the last record that is expected. TRUNCATE: the first that is kept.
        records: Of APPEND_AFTER and APPEND_ONCE.
        txid: Of OUTCOME.
    """

    number: int
    call: ForwardedCall
    producer: str = ""
    position: DLSN | None = None
    records: Records | None = None
    txid: int = -1


@attrs.frozen
class Appended:
    """The positions of the records of one APPEND: (segment, entry, first slot, count)."""

    first: int
    last_txid: int
    ranges: Sequence[tuple[int, int, int, int]]


@attrs.frozen
class Refused:
    """The error of the records of one APPEND."""

    first: int
    error: DLogError


@attrs.frozen
class Result:
    """The answer to a call: positions, or nothing."""

    number: int
    dlsns: Sequence[DLSN]


@attrs.frozen
class Failed:
    """The error of a call."""

    number: int
    error: DLogError


Frame = Hello | Welcome | Records | Request | Appended | Refused | Result | Failed | FrameKind


def framed(payload: bytes) -> bytes:
    """A payload with its length."""
    return _PREFIX.pack(len(payload)) + payload


def encode_hello(hello: Hello) -> bytes:
    """A whole frame, as from the other functions."""
    name, floor = hello.producer.encode(), hello.floor
    where = floor.segment_seqno, floor.entry_id, floor.slot_id
    instance = bytes.fromhex(hello.instance)
    return framed(_HELLO.pack(FrameKind.HELLO, VERSION, len(name), *where, instance) + name)


def encode_welcome(welcome: Welcome) -> bytes:
    """See ``encode_hello``."""
    end = welcome.end
    where = end.segment_seqno, end.entry_id, end.slot_id
    return framed(_WELCOME.pack(FrameKind.WELCOME, welcome.last_sequence, welcome.last_txid, *where))


def encode_records(records: Records) -> bytes:
    """See ``encode_hello``."""
    return framed(_records_bytes(records))


def _records_bytes(records: Records) -> bytes:
    payloads, txids, attributes = records.payloads, records.txids, records.attributes
    flags = _AGAIN * records.is_again | _ATOMIC * records.is_atomic | _TXIDS * (txids is not None)
    count = len(payloads)
    parts = [
        _APPEND.pack(FrameKind.APPEND, records.first, flags | _ATTRIBUTES * (attributes is not None), count)
    ]
    if txids is not None:
        parts.append(pack(f">{count}q", *txids))
    if attributes is not None:
        given = [each or b"" for each in attributes]
        parts += [pack(f">{count}I", *map(len, given)), *given]
    parts += [pack(f">{count}I", *map(len, payloads)), *payloads]
    return b"".join(parts)


def encode_request(request: Request) -> bytes:
    """See ``encode_hello``."""
    name, position = request.producer.encode(), request.position
    numbers = [] if position is None else [position.segment_seqno, position.entry_id, position.slot_id]
    head = {"producer": name.decode(), "position": numbers, "txid": request.txid}
    text = json.dumps(head).encode()
    records = b"" if request.records is None else _records_bytes(request.records)
    return framed(
        _CALL.pack(FrameKind.CALL, request.number, request.call) + _PREFIX.pack(len(text)) + text + records
    )


def encode_appended(appended: Appended) -> bytes:
    """See ``encode_hello``."""
    parts = [_APPENDED.pack(FrameKind.APPENDED, appended.first, appended.last_txid, len(appended.ranges))]
    parts += [_RANGE.pack(*each) for each in appended.ranges]
    return framed(b"".join(parts))


def encode_refused(refused: Refused) -> bytes:
    """See ``encode_hello``."""
    return framed(_ANSWER.pack(FrameKind.REFUSED, refused.first) + _encode_error(refused.error))


def encode_result(result: Result) -> bytes:
    """See ``encode_hello``."""
    parts = [_ANSWER.pack(FrameKind.RESULT, result.number)]
    parts += [_RANGE.pack(each.segment_seqno, each.entry_id, each.slot_id, 1) for each in result.dlsns]
    return framed(b"".join(parts))


def encode_failed(failed: Failed) -> bytes:
    """See ``encode_hello``."""
    return framed(_ANSWER.pack(FrameKind.FAILED, failed.number) + _encode_error(failed.error))


def encode_bare(kind: FrameKind) -> bytes:
    """A frame that is its kind only."""
    return framed(bytes((kind,)))


def decode(data: bytes) -> Frame:
    """The frame in a payload.

    Raises:
        WireError: It is none, or one of another version.
    """
    try:
        return _decode(data)
    except (error, IndexError, ValueError, TypeError, KeyError, EntryFormatError) as exc:
        raise WireError(f"a frame of a shared writer, {len(data)} bytes, does not decode: {exc}") from None


def _decode(data: bytes) -> Frame:
    match FrameKind(data[0]):
        case FrameKind.APPEND:
            return _decode_records(data, 0)
        case FrameKind.APPENDED:
            _, first, last_txid, count = _APPENDED.unpack_from(data)
            return Appended(first, last_txid, _decode_ranges(data, _APPENDED.size, count))
        case FrameKind.HELLO:
            _, version, size, *floor, instance = _HELLO.unpack_from(data)
            if version != VERSION:
                raise ValueError(f"version {version} of the peer, ours is {VERSION}: use the same release")
            name = data[_HELLO.size :].decode()
            if check_producer(name) and len(data) != _HELLO.size + size:
                raise ValueError("the producer's name has another length than it says")
            return Hello(name, instance.hex(), DLSN(*floor))
        case FrameKind.WELCOME:
            _, last_sequence, last_txid, *end = _WELCOME.unpack(data)
            return Welcome(last_sequence, last_txid, DLSN(*end))
        case FrameKind.CALL:
            return _decode_request(data)
        case FrameKind.REFUSED:
            return Refused(_ANSWER.unpack_from(data)[1], _decode_error(data[_ANSWER.size :]))
        case FrameKind.FAILED:
            return Failed(_ANSWER.unpack_from(data)[1], _decode_error(data[_ANSWER.size :]))
        case FrameKind.RESULT:
            count, rest = divmod(len(data) - _ANSWER.size, _RANGE.size)
            if rest:
                raise ValueError("a position is cut short")
            ranges = _decode_ranges(data, _ANSWER.size, count)
            return Result(_ANSWER.unpack_from(data)[1], [DLSN(*each[:3]) for each in ranges])
        case kind:
            if len(data) != 1:
                raise ValueError(f"{len(data) - 1} bytes follow {kind.name}")
            return kind


def _decode_ranges(data: bytes, at: int, count: int) -> list[tuple[int, int, int, int]]:
    if len(data) != at + count * _RANGE.size:
        raise ValueError("it has another number of positions than it says")
    return [_RANGE.unpack_from(data, at + index * _RANGE.size) for index in range(count)]


def _decode_records(data: bytes, at: int) -> Records:
    kind, first, flags, count = _APPEND.unpack_from(data, at)
    at += _APPEND.size
    if kind != FrameKind.APPEND or first < 0 or not 0 < count <= RECORDS_MAX or flags > 15:
        raise ValueError(f"{count} records from number {first}, flags {flags}")
    txids: Sequence[int] | None = None
    if flags & _TXIDS:
        txids = list(unpack_from(f">{count}q", data, at))
        at += count * _TXID.size
    attributes: list[bytes | None] | None = None
    if flags & _ATTRIBUTES:
        found, at = _decode_parts(data, at, count)
        for each in filter(None, found):
            if decode_attributes(each)[2] is not None:
                raise ValueError("a record names a producer, which only the owner does")
        attributes = [each or None for each in found]
    payloads, at = _decode_parts(data, at, count)
    if at != len(data):
        raise ValueError(f"{len(data) - at} bytes follow the records")
    return Records(first, payloads, txids, attributes, bool(flags & _ATOMIC), bool(flags & _AGAIN))


def _decode_parts(data: bytes, at: int, count: int) -> tuple[list[bytes], int]:
    """So many lengths, then as many pieces of bytes; and where they end."""
    *ends, end = accumulate(unpack_from(f">{count}I", data, at), initial=at + count * _PREFIX.size)
    if end > len(data):
        raise ValueError("a record is cut short")
    return [data[start:stop] for start, stop in pairwise([*ends, end])], end


def _decode_request(data: bytes) -> Request:
    _, number, call = _CALL.unpack_from(data)
    (size,) = _PREFIX.unpack_from(data, _CALL.size)
    at = _CALL.size + _PREFIX.size
    if at + size > len(data):
        raise ValueError("a call is cut short")
    head = _json(data[at : at + size])
    producer, numbers, txid = str(head["producer"]), head["position"], int(head["txid"])
    position = DLSN(*map(int, numbers)) if numbers else None
    records = _decode_records(data, at + size) if at + size < len(data) else None
    request = Request(number, ForwardedCall(call), producer, position, records, txid)
    if (request.call in (ForwardedCall.APPEND_AFTER, ForwardedCall.APPEND_ONCE)) != (records is not None):
        raise ValueError(f"a call of {request.call.name} has records, or has none")
    if request.call is ForwardedCall.APPEND_AFTER:
        check_producer(producer)
    if request.call is ForwardedCall.TRUNCATE and position is None:
        raise ValueError("a truncation without a position")
    return request


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError("its text is no JSON, or nests too deep") from None


_ERRORS = {
    name: each
    for name, each in vars(errors).items()
    if isinstance(each, type) and issubclass(each, DLogError)
}


def _encode_error(exc: DLogError) -> bytes:
    values = {
        name: {"dlsn": str(value)} if isinstance(value, DLSN) else value
        for name, value in vars(exc).items()
        if isinstance(value, str | int | float | DLSN | None) and name != "message"
    }
    is_write = isinstance(exc, WriteError)
    head = {
        "type": type(exc).__name__,
        "message": exc.message if isinstance(exc, WriteError) else str(exc),
        "outcome": exc.outcome.name if isinstance(exc, WriteError) else None,
        "durable": [str(each) for each in exc.durable] if is_write and isinstance(exc, WriteError) else [],
        "values": values,
    }
    return json.dumps(head).encode()


def _decode_error(data: bytes) -> DLogError:
    head = _json(data)
    cls = _ERRORS.get(str(head["type"]), LogWriteError)
    message = str(head["message"])
    made = cls.__new__(cls, message)
    for name, value in dict(head["values"]).items():
        if not str(name).startswith("_") and not callable(getattr(cls, str(name), None)):
            made.__dict__[str(name)] = DLSN.parse(str(value["dlsn"])) if isinstance(value, dict) else value
    if isinstance(made, WriteError):
        WriteError.__init__(made, message, RecordOutcome[str(head["outcome"])])
        made.durable = tuple(DLSN.parse(str(each)) for each in head["durable"])
    else:
        made.args = (message,)
    return made
