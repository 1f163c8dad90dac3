"""Protocol version 3: one protobuf ``Request`` or ``Response`` in each frame.

Python's protobuf does not enforce three rules that Java's does, so this module does:
- After parsing, required fields are checked (``IsInitialized``).
- An unset flag is never read. It would look like its first value, FENCE_LEDGER or RECOVERY_ADD.
- An enum number that the schema lacks counts as a missing field, so the message is incomplete.

Inside: the codec for both directions.
Not inside: cutting frames out of a stream (``frame``), the bytes of adds (``v3_add``) and of replies to reads
(``v3_read``), matching replies to requests (``ledger.transport``), comparing an add's ids with those in its
body (the bookie's service).
Always: fields are written in the order of their numbers, as in Java up to 4.17; they are read in any order.

Source: BookkeeperProtocol.proto, RequestUtils.java, PacketProcessorBaseV3.java; docs/protocol.md 3.
"""

from __future__ import annotations

import struct
from typing import assert_never

from google.protobuf.message import DecodeError, Message

from ledger.codes import Code, Operation
from ledger.errors import UnsupportedInVersionError, WireError
from ledger.wire import bookkeeper_protocol_pb2 as pb
from ledger.wire.messages import (
    AddReply,
    AddRequest,
    AuthReply,
    AuthRequest,
    BatchReadReply,
    BatchReadRequest,
    BookieInfoReply,
    BookieInfoRequest,
    ForceLedgerReply,
    ForceLedgerRequest,
    IncomingReply,
    IncomingRequest,
    ListEntriesReply,
    ListEntriesRequest,
    LocatedReply,
    ReadLacReply,
    ReadLacRequest,
    ReadReply,
    ReadRequest,
    RefusedReply,
    Reply,
    Request,
    StartTlsReply,
    StartTlsRequest,
    WriteLacReply,
    WriteLacRequest,
)
from ledger.wire.protobuf import UNCOUNTED_BYTES_MAX, check_fields, sub_messages, text_of
from ledger.wire.v3_add import AddEncoder, decode_usual_add, decode_usual_add_reply, encode_add_reply
from ledger.wire.v3_read import encode_read_reply

__all__ = ["AddEncoder", "decode_reply", "decode_request", "encode_reply", "encode_request"]

VERSION = 3
PRIORITY_HIGH = 100  # any number above 0 is high; Java sends this one
WRITE_FLAG_DEFERRED_SYNC = 1
FIRST_BYTE_MIN = 8  # a lower first byte means version 2: protobuf has no field 0

_LENGTH = struct.Struct(">I")
_IN_REQUEST = sub_messages(pb.Request.DESCRIPTOR)
_IN_RESPONSE = sub_messages(pb.Response.DESCRIPTOR)
_FENCE = pb.ReadRequest.FENCE_LEDGER
_PIGGYBACK = pb.ReadRequest.ENTRY_PIGGYBACK
_RECOVERY = pb.AddRequest.RECOVERY_ADD
_TOTAL_DISK = pb.GetBookieInfoRequest.TOTAL_DISK_CAPACITY
_FREE_DISK = pb.GetBookieInfoRequest.FREE_DISK_SPACE


def _framed(message: Message) -> bytes:
    payload = message.SerializeToString()
    return _LENGTH.pack(len(payload)) + payload


# Requests


def encode_request(request: Request, *, transaction_id: int = 0, high_priority: bool = False) -> bytes:
    """The frame of a request, length prefix included.

    Args:
        transaction_id: The reply repeats it; it is matched by this id and the operation.

    Raises:
        UnsupportedInVersionError: The request is a batch read, or a read that both fences and piggy-backs.
    """
    message = pb.Request()
    header = message.header
    header.version = pb.VERSION_THREE
    header.txnId = transaction_id
    if high_priority:
        header.priority = PRIORITY_HIGH
    match request:
        case AddRequest():
            header.operation = pb.ADD_ENTRY
            _fill_add(message.addRequest, request)
        case ReadRequest():
            header.operation = pb.READ_ENTRY
            _fill_read(message.readRequest, request)
        case BatchReadRequest():
            raise UnsupportedInVersionError(VERSION, "a batch read; use version 2")
        case WriteLacRequest():
            header.operation = pb.WRITE_LAC
            write_lac = message.writeLacRequest
            write_lac.ledgerId = request.ledger_id
            write_lac.lac = request.lac
            write_lac.masterKey = request.master_key
            write_lac.body = request.body
            if request.hint:
                write_lac.hint = True
        case ReadLacRequest():
            header.operation = pb.READ_LAC
            message.readLacRequest.ledgerId = request.ledger_id
        case ForceLedgerRequest():
            header.operation = pb.FORCE_LEDGER
            message.forceLedgerRequest.ledgerId = request.ledger_id
        case BookieInfoRequest():
            header.operation = pb.GET_BOOKIE_INFO
            message.getBookieInfoRequest.SetInParent()
            wanted = (_TOTAL_DISK if request.total_disk_capacity else 0) | (
                _FREE_DISK if request.free_disk_space else 0
            )
            if wanted:
                message.getBookieInfoRequest.requested = wanted
            if request.features:
                message.getBookieInfoRequest.features = True
        case ListEntriesRequest():
            header.operation = pb.GET_LIST_OF_ENTRIES_OF_LEDGER
            message.getListOfEntriesOfLedgerRequest.ledgerId = request.ledger_id
        case StartTlsRequest():
            header.operation = pb.START_TLS
            message.startTLSRequest.SetInParent()  # present although empty
        case AuthRequest():
            header.operation = pb.AUTH
            _fill_auth(message.authRequest, request.plugin, request.payload)
        case _:
            assert_never(request)
    return _framed(message)


def _fill_add(message: pb.AddRequest, request: AddRequest) -> None:
    message.ledgerId = request.ledger_id
    message.entryId = request.entry_id
    message.masterKey = request.master_key
    message.body = request.body
    if request.deferred_sync:
        message.writeFlags = WRITE_FLAG_DEFERRED_SYNC
    if request.recovery:
        message.flag = _RECOVERY


def _fill_read(message: pb.ReadRequest, request: ReadRequest) -> None:
    message.ledgerId = request.ledger_id
    message.entryId = request.entry_id
    if request.master_key is not None:
        message.masterKey = request.master_key
    if request.previous_lac is not None:
        message.previousLAC = request.previous_lac
    if request.timeout_ms is not None:
        message.timeOut = request.timeout_ms
    if request.fence:
        if request.piggyback_entry:
            raise UnsupportedInVersionError(VERSION, "a read that both fences and piggy-backs")
        message.flag = _FENCE
    elif request.piggyback_entry:
        message.flag = _PIGGYBACK
    if request.wants_lac:
        message.wantsLac = True
    if request.replies_max > 1:
        message.repliesMax = request.replies_max


def _fill_auth(message: pb.AuthMessage, plugin: str, payload: bytes) -> None:
    message.authPluginName = plugin
    message.payload = payload


def decode_request(data: bytes, start: int, end: int) -> IncomingRequest:
    """The request in ``data[start:end]``, a payload without its length prefix.

    ``version`` is that of the header: unless it is 3, reply BAD_VERSION, in version 3. ``request`` is None if
    the body of the operation is missing, as always for the range operations and the batch read: reply
    BAD_REQUEST.

    Raises:
        WireError: The bytes cannot be parsed, lack a required field, or have an unknown operation. They are
            not version 3; a bookie may try version 2, or else closes the connection.
    """
    if quick := decode_usual_add(data, start, end):
        return quick
    if end - start > UNCOUNTED_BYTES_MAX:
        check_fields(data, start, end, _IN_REQUEST)
    message = pb.Request()
    try:
        # Not initialized: a field is missing, or an enum number is unknown (docs/protocol.md 3.7).
        message.ParseFromString(data[start:end])
        if not message.IsInitialized():
            raise WireError("a version 3 request without one of its required fields")
        header = message.header
        operation = Operation(header.operation)
        return IncomingRequest(
            version=header.version,
            operation=operation,
            request=_request_in(message, operation),
            transaction_id=header.txnId,
            high_priority=header.priority > 0,
        )
    except (DecodeError, UnicodeDecodeError) as exc:
        raise WireError(f"a version 3 request that does not parse: {exc}") from None


def _request_in(message: pb.Request, operation: Operation) -> Request | None:
    match operation:
        case Operation.ADD_ENTRY if message.HasField("addRequest"):
            add = message.addRequest
            return AddRequest(
                ledger_id=add.ledgerId,
                entry_id=add.entryId,
                master_key=add.masterKey,
                body=add.body,
                recovery=add.HasField("flag") and add.flag == _RECOVERY,
                deferred_sync=bool(add.writeFlags & WRITE_FLAG_DEFERRED_SYNC),
            )
        case Operation.READ_ENTRY if message.HasField("readRequest"):
            read = message.readRequest
            flag = read.flag if read.HasField("flag") else None
            return ReadRequest(
                ledger_id=read.ledgerId,
                entry_id=read.entryId,
                fence=flag == _FENCE,
                master_key=read.masterKey if read.HasField("masterKey") else None,
                previous_lac=read.previousLAC if read.HasField("previousLAC") else None,
                timeout_ms=read.timeOut if read.HasField("timeOut") else None,
                piggyback_entry=flag == _PIGGYBACK,
                wants_lac=read.wantsLac,
                replies_max=max(1, read.repliesMax),
            )
        case Operation.WRITE_LAC if message.HasField("writeLacRequest"):
            write_lac = message.writeLacRequest
            return WriteLacRequest(
                write_lac.ledgerId, write_lac.lac, write_lac.masterKey, write_lac.body, write_lac.hint
            )
        case Operation.READ_LAC if message.HasField("readLacRequest"):
            return ReadLacRequest(message.readLacRequest.ledgerId)
        case Operation.FORCE_LEDGER if message.HasField("forceLedgerRequest"):
            return ForceLedgerRequest(message.forceLedgerRequest.ledgerId)
        case Operation.GET_BOOKIE_INFO if message.HasField("getBookieInfoRequest"):
            requested = message.getBookieInfoRequest.requested
            return BookieInfoRequest(
                total_disk_capacity=bool(requested & _TOTAL_DISK),
                free_disk_space=bool(requested & _FREE_DISK),
                features=message.getBookieInfoRequest.features,
            )
        case Operation.LIST_ENTRIES if message.HasField("getListOfEntriesOfLedgerRequest"):
            return ListEntriesRequest(message.getListOfEntriesOfLedgerRequest.ledgerId)
        case Operation.START_TLS if message.HasField("startTLSRequest"):
            return StartTlsRequest()
        case Operation.AUTH if message.HasField("authRequest"):
            return AuthRequest(text_of(message.authRequest.authPluginName), message.authRequest.payload)
        case _:
            return None


# Replies


def encode_reply(reply: Reply, *, version: int, operation: Operation, transaction_id: int = 0) -> bytes:
    """The frame of a reply, length prefix included.

    The code is both in the response and in its body; a ``RefusedReply`` has no body.

    Args:
        version: Ignored: replies have version 3, whatever the version of the request.
        operation: The operation of the request.
        transaction_id: The transaction id of the request.

    Raises:
        UnsupportedInVersionError: It is a reply to a batch read, which version 3 does not have.
    """
    del version
    if isinstance(reply, AddReply) and operation is Operation.ADD_ENTRY:
        return encode_add_reply(reply, transaction_id)
    if isinstance(reply, ReadReply):
        assert operation is Operation.READ_ENTRY, operation  # a bookie replies to reads only with it
        return encode_read_reply(reply, transaction_id)
    status = pb.StatusCode.Name(reply.code.value)
    message = pb.Response(status=status)
    header = message.header
    header.version = pb.VERSION_THREE
    header.operation = operation.value  # type: ignore[assignment]
    header.txnId = transaction_id
    _fill_reply(message, reply, status)
    return _framed(message)


def _fill_reply(message: pb.Response, reply: Reply, status: str) -> None:
    """Add the body of a reply that has no faster encoder."""
    match reply:
        case AddReply():
            message.addResponse.MergeFrom(
                pb.AddResponse(status=status, ledgerId=reply.ledger_id, entryId=reply.entry_id)
            )
        case BatchReadReply() | LocatedReply():
            raise UnsupportedInVersionError(VERSION, "the reply to a batch read")
        case WriteLacReply():
            message.writeLacResponse.MergeFrom(pb.WriteLacResponse(status=status, ledgerId=reply.ledger_id))
        case ForceLedgerReply():
            message.forceLedgerResponse.MergeFrom(
                pb.ForceLedgerResponse(status=status, ledgerId=reply.ledger_id)
            )
        case ReadLacReply():
            message.readLacResponse.MergeFrom(
                pb.ReadLacResponse(
                    status=status,
                    ledgerId=reply.ledger_id,
                    lacBody=reply.lac_body,
                    lastEntryBody=reply.last_entry_body,
                )
            )
        case BookieInfoReply():
            message.getBookieInfoResponse.MergeFrom(
                pb.GetBookieInfoResponse(
                    status=status,
                    totalDiskCapacity=reply.total_disk_bytes,
                    freeDiskSpace=reply.free_disk_bytes,
                )
            )
            if reply.takes_lac_hints:
                message.getBookieInfoResponse.takesLacHints = True
        case ListEntriesReply():
            message.getListOfEntriesOfLedgerResponse.MergeFrom(
                pb.GetListOfEntriesOfLedgerResponse(
                    status=status,
                    ledgerId=reply.ledger_id,
                    availabilityOfEntriesOfLedger=reply.availability,
                )
            )
        case StartTlsReply():
            if reply.code is Code.OK:
                message.startTLSResponse.SetInParent()
        case AuthReply():
            if reply.code is Code.OK:
                _fill_auth(message.authResponse, reply.plugin, reply.payload)
        case ReadReply() | RefusedReply():
            pass  # ``encode_reply`` has encoded a ``ReadReply``; the other one has no body
        case _:
            assert_never(reply)


def decode_reply(data: bytes, start: int, end: int) -> IncomingReply:
    """The reply in ``data[start:end]``, a payload without its length prefix.

    The code is that of the response, or that of the body if the former is OK. Without the body of its
    operation, the reply is a ``RefusedReply``.

    Raises:
        WireError: The bytes cannot be parsed, lack a required field, have an unknown operation or code, or
            say OK without a body.
    """
    if quick := decode_usual_add_reply(data, start, end):
        return quick
    if end - start > UNCOUNTED_BYTES_MAX:
        check_fields(data, start, end, _IN_RESPONSE)
    message = pb.Response()
    try:
        message.ParseFromString(data[start:end])
        if not message.IsInitialized():
            raise WireError("a version 3 reply without one of its required fields")
        header = message.header
        operation = Operation(header.operation)
        reply = _reply_in(message, operation, Code(message.status))
        return IncomingReply(header.version, operation, reply, header.txnId)
    except (DecodeError, UnicodeDecodeError) as exc:
        raise WireError(f"a version 3 reply that does not parse: {exc}") from None


def _reply_in(message: pb.Response, operation: Operation, code: Code) -> Reply:
    match operation:
        case Operation.ADD_ENTRY if message.HasField("addResponse"):
            add = message.addResponse
            return AddReply(_inner(code, add.status), add.ledgerId, add.entryId)
        case Operation.READ_ENTRY if message.HasField("readResponse"):
            read = message.readResponse
            return ReadReply(
                _inner(code, read.status),
                read.ledgerId,
                read.entryId,
                read.body if read.HasField("body") else None,
                read.maxLAC if read.HasField("maxLAC") else None,
                read.lacUpdateTimestamp if read.HasField("lacUpdateTimestamp") else None,
                read.lacBody if read.HasField("lacBody") else None,
                read.moreFollow,
            )
        case Operation.WRITE_LAC if message.HasField("writeLacResponse"):
            write_lac = message.writeLacResponse
            return WriteLacReply(_inner(code, write_lac.status), write_lac.ledgerId)
        case Operation.READ_LAC if message.HasField("readLacResponse"):
            read_lac = message.readLacResponse
            return ReadLacReply(
                _inner(code, read_lac.status),
                read_lac.ledgerId,
                read_lac.lacBody if read_lac.HasField("lacBody") else None,
                read_lac.lastEntryBody if read_lac.HasField("lastEntryBody") else None,
            )
        case Operation.FORCE_LEDGER if message.HasField("forceLedgerResponse"):
            force = message.forceLedgerResponse
            return ForceLedgerReply(_inner(code, force.status), force.ledgerId)
        case Operation.GET_BOOKIE_INFO if message.HasField("getBookieInfoResponse"):
            info = message.getBookieInfoResponse
            return BookieInfoReply(
                _inner(code, info.status),
                info.totalDiskCapacity if info.HasField("totalDiskCapacity") else None,
                info.freeDiskSpace if info.HasField("freeDiskSpace") else None,
                info.takesLacHints,
            )
        case Operation.LIST_ENTRIES if message.HasField("getListOfEntriesOfLedgerResponse"):
            entries = message.getListOfEntriesOfLedgerResponse
            has_list = entries.HasField("availabilityOfEntriesOfLedger")
            return ListEntriesReply(
                _inner(code, entries.status),
                entries.ledgerId,
                entries.availabilityOfEntriesOfLedger if has_list else None,
            )
        case Operation.START_TLS if code is Code.OK:
            return StartTlsReply(code)
        case Operation.AUTH if message.HasField("authResponse"):
            return AuthReply(code, text_of(message.authResponse.authPluginName), message.authResponse.payload)
    if code is Code.OK:
        # Java's client would accept this and use the ids of its request. No bookie sends it, so its OK does
        # not prove that an entry is on disk.
        raise WireError(f"a reply to {operation.name} says OK but has no body")
    return RefusedReply(code, operation)


def _inner(outer: Code, status: int) -> Code:
    return Code(status) if outer is Code.OK else outer
