"""Protocol version 2: packed structs, the fast path for adds and reads. Versions 0 and 1 are similar.

Requests after the length prefix; all fields are big-endian and, except for the header, signed:

offset  size  ADD              READ               BATCH READ         AUTH
     0     4  header           header             header             header
     4    20  master key       ledger id (8)      ledger id (8)      AuthMessage (protobuf)
    12                         entry id (8)       first entry id (8)
    20                         master key (20) *  request id (8)
    24     *  the entry                           28: count (4), 32: size (8)
    40                                            master key (20) *

Replies:

offset  size  ADD              READ               BATCH READ         AUTH
     0     4  header           header             header             header
     4     4  code             code               code               AuthMessage
     8     8  ledger id        ledger id          ledger id
    16     8  entry id         requested id       first entry id
    24     *                   the entry, if OK   request id (8)
    32     *                                      each: size (4), the entry

header: version << 24 | opcode << 16 | flags; in version 0 all of it is the opcode. Replies have no flags, but
for one of ours: a batch read with the flag 0x4000, sent only within an embedded directory, may be answered
with this flag and, instead of entries: log id (8), device (8), inode (8), offset (8), count n (4),
n x start of an entry after the offset (4, unsigned).
(*) only with the fencing flag, and then required: the bookie closes the connection of a fencing read without.
AUTH replies have neither code nor ids. Bytes after the last field of a fixed layout are ignored, as in Java.

Inside: the codec for both directions, and the layouts that hot paths use directly.
Not inside: cutting frames out of a stream (``frame``), the choice of a code (the bookie's service sends
version 2 peers IO_ERROR for limbo).
Always: a request is encoded with all its fields, or encoding raises; replies omit only hints.

Source: BookieProtocol.java, BookieProtoEncoding.java, ResponseBuilder.java; docs/protocol.md 2.
"""

from __future__ import annotations

import struct
from typing import assert_never

from google.protobuf.message import DecodeError

from ledger.codes import (
    CODE_OF_V2,
    CODES_V2,
    MASTER_KEY_BYTES,
    OPCODES_V2,
    OPERATION_OF_OPCODE_V2,
    Code,
    Operation,
)
from ledger.digest import ENTRY_HEADER, ENTRY_HEADER_BYTES, EntryCodec
from ledger.errors import UnsupportedInVersionError, WireError
from ledger.packed_entries import SIZE, PackedEntries, unpack_entries
from ledger.wire import bookkeeper_protocol_pb2 as pb
from ledger.wire.messages import (
    AddReply,
    AddRequest,
    AuthReply,
    AuthRequest,
    BatchReadReply,
    BatchReadRequest,
    IncomingReply,
    IncomingRequest,
    LocatedReply,
    ReadReply,
    ReadRequest,
    Reply,
    Request,
)
from ledger.wire.protobuf import UNCOUNTED_BYTES_MAX, check_fields, text_of

VERSION = 2
FLAG_FENCE = 0x0001
FLAG_RECOVERY_ADD = 0x0002
FLAG_HIGH_PRIORITY = 0x0004
FLAG_LOCATE = 0x4000  # ours, of a batch read and of its reply

ADD_HEADER = 0x02010000
# Header, master key; ledger id, entry id, LAC: the first fields of the entry.
ADD_REQUEST = struct.Struct(">I20sqqq")
# Header, code, ledger id, entry id. A READ reply begins with the same fields.
ADD_REPLY = struct.Struct(">IIqq")
ADD_BODY_OFFSET = 24
ADD_REQUEST_BYTES_MIN = ADD_BODY_OFFSET + ENTRY_HEADER_BYTES

_HEADER = struct.Struct(">I")
_ADD_IDS = struct.Struct(">20sqq")
_READ_REQUEST = struct.Struct(">qq")
_BATCH_REQUEST = struct.Struct(">qqqiq")
_REPLY_HEAD = struct.Struct(">Iqq")  # code, ledger id, entry id
_REQUEST_ID = struct.Struct(">q")
_PLACE = struct.Struct(">qQQqi")  # log id, device, inode, offset, count
_FRAMED_ADD_REPLY = struct.Struct(">IIIqq")
_REPLY_HEAD_BYTES = 24
_BATCH_REPLY_HEAD = struct.Struct(">IIIqqq")  # length; header, code, ledger id, entry id, request id
_BATCH_REPLY_HEAD_BYTES = 32
assert _BATCH_REPLY_HEAD.size == 4 + _BATCH_REPLY_HEAD_BYTES  # two constants of this module
assert ADD_REPLY.size == _REPLY_HEAD_BYTES  # likewise


def _header_word(version: int, opcode: int, flags: int) -> int:
    assert 0 <= version <= 255  # ours, or the first byte of a header
    return opcode if version == 0 else version << 24 | opcode << 16 | flags


def _framed(version: int, operation: Operation, flags: int, *parts: bytes | memoryview) -> bytes:
    header = _HEADER.pack(_header_word(version, OPCODES_V2[operation], flags))
    length = len(header) + sum(map(len, parts))
    return b"".join((_HEADER.pack(length), header, *parts))


def _fence_key(fence: bool, key: bytes | None) -> bytes:
    if not fence:
        return b""
    if key is None:
        raise UnsupportedInVersionError(VERSION, "a fencing read without a master key")
    assert len(key) == MASTER_KEY_BYTES  # a client's, from ``EntryCodec``
    return key


def encode_request(request: Request, *, transaction_id: int = 0, high_priority: bool = False) -> bytes:
    """The frame of a request, length prefix included.

    Args:
        transaction_id: Ignored: version 2 matches replies by ledger, entry and operation.

    Raises:
        UnsupportedInVersionError: Version 2 has no such request, or lacks a field that is set.
    """
    del transaction_id
    flags = FLAG_HIGH_PRIORITY if high_priority else 0
    match request:
        case AddRequest():
            if request.deferred_sync:
                raise UnsupportedInVersionError(VERSION, "an add with deferred sync")
            if request.recovery:
                flags |= FLAG_RECOVERY_ADD
            assert len(request.master_key) == MASTER_KEY_BYTES  # a client's, from ``EntryCodec``
            return _framed(VERSION, Operation.ADD_ENTRY, flags, request.master_key, request.body)
        case ReadRequest():
            if request.previous_lac is not None or request.timeout_ms is not None or request.piggyback_entry:
                raise UnsupportedInVersionError(VERSION, "a long poll")
            key = _fence_key(request.fence, request.master_key)
            ids = _READ_REQUEST.pack(request.ledger_id, request.entry_id)
            return _framed(VERSION, Operation.READ_ENTRY, flags | (FLAG_FENCE if key else 0), ids, key)
        case BatchReadRequest():
            key = _fence_key(request.fence, request.master_key)
            fields = _BATCH_REQUEST.pack(
                request.ledger_id,
                request.entry_id,
                request.request_id,
                request.count_max,
                request.size_bytes_max,
            )
            flags |= (FLAG_FENCE if key else 0) | (FLAG_LOCATE if request.locate else 0)
            return _framed(VERSION, Operation.BATCH_READ_ENTRY, flags, fields, key)
        case AuthRequest():
            message = _encode_auth(request.plugin, request.payload)
            return _framed(VERSION, Operation.AUTH, flags, message)
        case _:
            raise UnsupportedInVersionError(VERSION, f"a {type(request).__name__}")


def decode_request(data: bytes, start: int, end: int) -> IncomingRequest:
    """The request in ``data[start:end]``, a payload without its length prefix.

    A version above 2 is decoded too, since the reply must repeat its ids: check ``IncomingRequest.version``
    and reply BAD_VERSION. A fencing read of version 1 has no master key. An add whose body has its two ids
    but no complete entry header is decoded too: reply BAD_REQUEST.

    Raises:
        WireError: The payload is too short, or the operation is unknown. Close the connection, as Java's
            bookie does: a client then knows that the bookie is too old for the request.
    """
    size = end - start
    if size < 4:
        raise WireError(f"a version 2 request of {size} bytes; the header alone has 4")
    (word,) = _HEADER.unpack_from(data, start)
    version = word >> 24
    opcode, flags = (word, 0) if version == 0 else (word >> 16 & 0xFF, word & 0xFFFF)
    operation = OPERATION_OF_OPCODE_V2.get(opcode)
    high_priority = bool(flags & FLAG_HIGH_PRIORITY)
    fence = bool(flags & FLAG_FENCE)
    request: Request
    match operation:
        case Operation.ADD_ENTRY:
            _need(size, ADD_BODY_OFFSET + _ADD_IDS.size - MASTER_KEY_BYTES, operation)
            key, ledger_id, entry_id = _ADD_IDS.unpack_from(data, start + 4)
            request = AddRequest(
                ledger_id=ledger_id,
                entry_id=entry_id,
                master_key=key,
                body=data[start + ADD_BODY_OFFSET : end],
                recovery=bool(flags & FLAG_RECOVERY_ADD),
            )
        case Operation.READ_ENTRY:
            _need(size, 4 + _READ_REQUEST.size, operation)
            ledger_id, entry_id = _READ_REQUEST.unpack_from(data, start + 4)
            found = _read_fence_key(data, start + 4 + _READ_REQUEST.size, end, fence, version, operation)
            request = ReadRequest(ledger_id, entry_id, fence=fence, master_key=found)
        case Operation.BATCH_READ_ENTRY:
            _need(size, 4 + _BATCH_REQUEST.size, operation)
            ledger_id, entry_id, request_id, count_max, size_max = _BATCH_REQUEST.unpack_from(data, start + 4)
            found = _read_fence_key(data, start + 4 + _BATCH_REQUEST.size, end, fence, version, operation)
            request = BatchReadRequest(
                ledger_id,
                entry_id,
                request_id,
                count_max,
                size_max,
                fence=fence,
                master_key=found,
                locate=bool(flags & FLAG_LOCATE),
            )
        case Operation.AUTH:
            request = AuthRequest(*_decode_auth(data[start + 4 : end]))
        case _:
            raise WireError(f"no version 2 request: opcode {opcode}, header {word:#010x}")
    return IncomingRequest(version, operation, request, high_priority=high_priority)


def _need(size: int, size_min: int, operation: Operation) -> None:
    if size < size_min:
        raise WireError(f"{operation.name} in version 2 with {size} bytes; it has {size_min} at least")


def _read_fence_key(
    data: bytes, at: int, end: int, fence: bool, version: int, operation: Operation
) -> bytes | None:
    if not fence or version < 2:
        return None
    if end - at < MASTER_KEY_BYTES:
        raise WireError(f"a fencing {operation.name} in version {version} without the 20 bytes of its key")
    return data[at : at + MASTER_KEY_BYTES]


def encode_reply(reply: Reply, *, version: int, operation: Operation, transaction_id: int = 0) -> bytes:
    """The frame of a reply, length prefix included.

    Args:
        version: The version of the request, even if it is the reason for BAD_VERSION.
        operation: The operation of the request.
        transaction_id: Ignored.

    Raises:
        UnsupportedInVersionError: Version 2 has no such reply: a refusal without ids, a failed AUTH, or a
            reply to an operation that it lacks. In the first two cases close the connection instead.
    """
    del transaction_id
    match reply:
        case AddReply(code, ledger_id, entry_id):
            head = _REPLY_HEAD.pack(CODES_V2[code], ledger_id, entry_id)
            return _framed(version, operation, 0, head)
        case ReadReply(code, ledger_id, entry_id, body):
            # There is no field for max_lac. It is a hint; version 2 readers use the LAC in the entry.
            head = _REPLY_HEAD.pack(CODES_V2[code], ledger_id, entry_id)
            return _framed(version, operation, 0, head, body if code is Code.OK and body else b"")
        case BatchReadReply(code, ledger_id, entry_id, request_id, bodies):
            parts: list[bytes | memoryview] = [
                _REPLY_HEAD.pack(CODES_V2[code], ledger_id, entry_id),
                _REQUEST_ID.pack(request_id),
            ]
            if code is Code.OK:
                if isinstance(bodies, PackedEntries):
                    parts.append(bodies.packed)
                else:
                    for body in bodies:
                        parts += (SIZE.pack(len(body)), body)
            return _framed(version, operation, 0, *parts)
        case LocatedReply():
            head = _REPLY_HEAD.pack(CODES_V2[Code.OK], reply.ledger_id, reply.entry_id)
            count = len(reply.starts)
            place = _PLACE.pack(reply.log_id, reply.device, reply.inode, reply.offset, count)
            place += struct.pack(f">{count}I", *reply.starts)
            return _framed(version, operation, FLAG_LOCATE, head, _REQUEST_ID.pack(reply.request_id), place)
        case AuthReply(code, plugin, payload):
            if code is not Code.OK:
                raise UnsupportedInVersionError(VERSION, "an AUTH reply with an error")
            return _framed(version, operation, 0, _encode_auth(plugin, payload))
        case _:
            raise UnsupportedInVersionError(VERSION, f"a {type(reply).__name__} to {operation.name}")


def batch_reply_head(reply: BatchReadReply, packed_bytes: int) -> bytes:
    """The frame of a batch read's reply up to its entries, whose ``packed_bytes`` follow; length prefix
    included."""
    return _BATCH_REPLY_HEAD.pack(
        _BATCH_REPLY_HEAD_BYTES + packed_bytes,
        _header_word(VERSION, OPCODES_V2[Operation.BATCH_READ_ENTRY], 0),
        CODES_V2[reply.code],
        reply.ledger_id,
        reply.entry_id,
        reply.request_id,
    )


def add_reply(code: Code, ledger_id: int, entry_id: int) -> bytes:
    """The frame of the reply to an add, length prefix included: 28 bytes."""
    return _FRAMED_ADD_REPLY.pack(_REPLY_HEAD_BYTES, ADD_HEADER, CODES_V2[code], ledger_id, entry_id)


def decode_reply(data: bytes, start: int, end: int) -> IncomingReply:
    """The reply in ``data[start:end]``, a payload without its length prefix.

    Raises:
        WireError: The payload is too short, the operation or the code is unknown, or an entry is longer than
            the rest of the frame.
    """
    size = end - start
    if size < 4:
        raise WireError(f"a version 2 reply of {size} bytes; the header alone has 4")
    (word,) = _HEADER.unpack_from(data, start)
    version = word >> 24
    opcode = word if version == 0 else word >> 16 & 0xFF
    operation = OPERATION_OF_OPCODE_V2.get(opcode)
    if operation is None:
        raise WireError(f"no version 2 reply: opcode {opcode}, header {word:#010x}")
    if operation is Operation.AUTH:
        return IncomingReply(version, operation, AuthReply(Code.OK, *_decode_auth(data[start + 4 : end])))
    _need(size, _REPLY_HEAD_BYTES, operation)
    number, ledger_id, entry_id = _REPLY_HEAD.unpack_from(data, start + 4)
    code = CODE_OF_V2.get(number)
    if code is None:
        raise WireError(f"a reply to {operation.name} with code {number}, which version 2 does not have")
    reply: Reply
    match operation:
        case Operation.ADD_ENTRY:
            reply = AddReply(code, ledger_id, entry_id)
        case Operation.READ_ENTRY:
            body = data[start + _REPLY_HEAD_BYTES : end] if code is Code.OK else None
            reply = ReadReply(code, ledger_id, entry_id, body)
        case Operation.BATCH_READ_ENTRY:
            _need(size, _BATCH_REPLY_HEAD_BYTES, operation)
            (request_id,) = _REQUEST_ID.unpack_from(data, start + _REPLY_HEAD_BYTES)
            if version and word & FLAG_LOCATE and code is Code.OK:
                place_at = start + _BATCH_REPLY_HEAD_BYTES
                _need(size, _BATCH_REPLY_HEAD_BYTES + _PLACE.size, operation)
                log_id, device, inode, offset, count = _PLACE.unpack_from(data, place_at)
                starts_at = place_at + _PLACE.size
                if not 0 <= count <= (end - starts_at) // 4:
                    raise WireError(f"{count} entries are located in a reply of {size} bytes")
                starts = struct.unpack_from(f">{count}I", data, starts_at)
                reply = LocatedReply(
                    code, ledger_id, entry_id, request_id, log_id, device, inode, offset, starts
                )
                return IncomingReply(version, operation, reply)
            bodies = _decode_bodies(data, start + _BATCH_REPLY_HEAD_BYTES, end) if code is Code.OK else ()
            reply = BatchReadReply(code, ledger_id, entry_id, request_id, bodies)
        case _:
            assert_never(operation)  # type: ignore[arg-type]  # the table of opcodes has no others
    return IncomingReply(version, operation, reply)


def _decode_bodies(data: bytes, start: int, end: int) -> PackedEntries:
    try:
        return unpack_entries(data, start, end)
    except ValueError as exc:
        raise WireError(str(exc)) from None


def _encode_auth(plugin: str, payload: bytes) -> bytes:
    return pb.AuthMessage(authPluginName=plugin, payload=payload).SerializeToString()


def _decode_auth(data: bytes) -> tuple[str, bytes]:
    if len(data) > UNCOUNTED_BYTES_MAX:
        check_fields(data, 0, len(data), {})
    message = pb.AuthMessage()
    try:
        message.ParseFromString(data)
        # Parsing does not check for required fields (docs/protocol.md 3.7).
        if not message.IsInitialized():
            raise WireError("an AUTH message without its plug-in name or payload")
        return text_of(message.authPluginName), message.payload
    except (DecodeError, UnicodeDecodeError) as exc:
        raise WireError(f"an AUTH message that does not parse: {exc}") from None


class AddEncoder:
    """Makes the frames that add the entries of one ledger; all replicas share a frame."""

    def __init__(
        self,
        ledger_id: int,
        entries: EntryCodec,
        *,
        recovery: bool = False,
        deferred_sync: bool = False,
    ) -> None:
        """Prepare the bytes that all adds have in common.

        Args:
            recovery: Make adds that a fenced ledger accepts, with high priority, as Java's recovery does.

        Raises:
            UnsupportedInVersionError: ``deferred_sync`` is set; it needs version 3.
        """
        if deferred_sync:
            raise UnsupportedInVersionError(VERSION, "an add with deferred sync")
        flags = FLAG_RECOVERY_ADD | FLAG_HIGH_PRIORITY if recovery else 0
        self.ledger_id = ledger_id
        # Bytes of a frame in addition to the entry's payload, without the length prefix.
        self.overhead_bytes = ADD_BODY_OFFSET + entries.overhead_bytes
        self._head = _HEADER.pack(ADD_HEADER | flags) + entries.master_key
        self._digest = entries.digest

    def encode(self, entry_id: int, lac: int, length_bytes: int, payload: bytes) -> bytes:
        """The frame that adds this entry, length prefix included."""
        entry_header = ENTRY_HEADER.pack(self.ledger_id, entry_id, lac, length_bytes)
        return b"".join(
            (
                _HEADER.pack(self.overhead_bytes + len(payload)),
                self._head,
                entry_header,
                self._digest(entry_header, payload),
                payload,
            )
        )
