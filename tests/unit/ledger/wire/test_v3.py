# covers: ledger/wire/v3_add.py
# covers: ledger/wire/v3_read.py

from __future__ import annotations

from typing import cast

import pytest

from ledger.codes import Code, Operation
from ledger.digest import DigestType, EntryCodec
from ledger.errors import UnsupportedInVersionError, WireError
from ledger.wire import bookkeeper_protocol_pb2 as pb
from ledger.wire import v3
from ledger.wire.messages import (
    AddReply,
    AddRequest,
    BatchReadRequest,
    IncomingReply,
    IncomingRequest,
    ReadReply,
    ReadRequest,
    RefusedReply,
    StartTlsReply,
)
from ledger.wire.v3_add import decode_usual_add

KEY = bytes(range(20))
BODY = bytes(32) + b"payload"


def request_message(operation: pb.OperationType) -> pb.Request:
    message = pb.Request()
    message.header.version = pb.VERSION_THREE
    message.header.operation = operation
    message.header.txnId = 9
    return message


def reply_message(operation: pb.OperationType, status: pb.StatusCode) -> pb.Response:
    message = pb.Response(status=status)
    message.header.version = pb.VERSION_THREE
    message.header.operation = operation
    message.header.txnId = 9
    return message


def decode_request(message: pb.Request) -> IncomingRequest:
    data = message.SerializePartialToString()
    return v3.decode_request(data, 0, len(data))


def decode_reply(message: pb.Response) -> IncomingReply:
    data = message.SerializePartialToString()
    return v3.decode_reply(data, 0, len(data))


def test_an_unset_flag_neither_fences_nor_recovers() -> None:
    read = request_message(pb.READ_ENTRY)
    read.readRequest.ledgerId, read.readRequest.entryId = 1, 2
    assert read.readRequest.flag == pb.ReadRequest.FENCE_LEDGER, "the trap that HasField keeps shut"
    assert decode_request(read).request == ReadRequest(1, 2)
    add = request_message(pb.ADD_ENTRY)
    add.addRequest.ledgerId, add.addRequest.entryId = 1, 2
    add.addRequest.masterKey, add.addRequest.body = KEY, BODY
    assert add.addRequest.flag == pb.AddRequest.RECOVERY_ADD
    add.requestContext.add(key="k", value="v")  # so that protobuf reads it
    assert decode_request(add).request == AddRequest(1, 2, KEY, BODY)


def test_an_unusual_add_is_left_to_protobuf() -> None:
    request = AddRequest(1, 2, KEY, BODY)
    frame = v3.encode_request(request, transaction_id=5)
    assert decode_usual_add(frame, 4, len(frame)) is not None
    message = pb.Request.FromString(frame[4:])
    message.addRequest.writeFlags = 3
    data = message.SerializeToString()
    assert decode_usual_add(data, 0, len(data)) is None
    assert decode_request(message).request == AddRequest(1, 2, KEY, BODY, deferred_sync=True)
    message.addRequest.masterKey = b"short"
    assert decode_request(message).request == AddRequest(1, 2, b"short", BODY, deferred_sync=True)


def test_a_field_after_the_add_is_not_taken_for_its_flag() -> None:
    frame = v3.encode_request(AddRequest(1, 2, KEY, BODY), transaction_id=5)
    data = (
        frame[4:] + b"\xa0\x06\x01"
    )  # an unknown field of the request, with the add's recovery flag's bytes
    assert decode_usual_add(data, 0, len(data)) is None
    assert v3.decode_request(data, 0, len(data)).request == AddRequest(1, 2, KEY, BODY)


def test_a_missing_required_field_is_a_wire_error() -> None:
    message = request_message(pb.ADD_ENTRY)
    message.addRequest.ledgerId = 1
    with pytest.raises(WireError, match="required"):
        decode_request(message)
    reply = reply_message(pb.ADD_ENTRY, pb.EOK)
    reply.addResponse.ledgerId = 1
    with pytest.raises(WireError, match="required"):
        decode_reply(reply)


def test_unknown_enum_numbers_are_wire_errors() -> None:
    for operation, status in ((77, 0), (2, 9)):
        header = bytes((8, 3, 16, operation, 24, 9))
        request = b"\x0a\x06" + header
        if operation == 77:
            with pytest.raises(WireError):
                v3.decode_request(request, 0, len(request))
        reply = request + bytes((16, status))
        with pytest.raises(WireError):
            v3.decode_reply(reply, 0, len(reply))


@pytest.mark.parametrize("operation", Operation)
def test_a_request_without_its_body_is_none(operation: Operation) -> None:
    # At run time the numbers of an enum are plain ints: its stub's class cannot be called.
    number = cast(pb.OperationType, operation.value)
    incoming = decode_request(request_message(number))
    assert (incoming.operation, incoming.request, incoming.transaction_id) == (operation, None, 9)


def test_the_code_of_the_body_decides_if_the_outer_one_is_ok() -> None:
    message = reply_message(pb.ADD_ENTRY, pb.EOK)
    message.addResponse.status, message.addResponse.ledgerId, message.addResponse.entryId = pb.EFENCED, 1, 2
    assert decode_reply(message).reply == AddReply(Code.FENCED, 1, 2)
    message.status, message.addResponse.status = pb.EUA, pb.EOK
    assert decode_reply(message).reply == AddReply(Code.UNAUTHORIZED, 1, 2)


def test_a_refusal_without_a_body_keeps_code_and_operation() -> None:
    message = reply_message(pb.READ_ENTRY, pb.EUA)
    assert decode_reply(message).reply == RefusedReply(Code.UNAUTHORIZED, Operation.READ_ENTRY)


def test_ok_without_a_body_is_a_wire_error() -> None:
    with pytest.raises(WireError, match="OK but has no body"):
        decode_reply(reply_message(pb.ADD_ENTRY, pb.EOK))
    assert decode_reply(reply_message(pb.START_TLS, pb.EOK)).reply == StartTlsReply(Code.OK)


def test_an_empty_read_body_is_not_a_missing_one() -> None:
    for body in (b"", None):
        reply = ReadReply(Code.OK, 1, -1, body, 5)
        frame = v3.encode_reply(reply, version=3, operation=Operation.READ_ENTRY, transaction_id=1)
        assert v3.decode_reply(frame, 4, len(frame)).reply == reply


def test_replies_have_version_3_for_every_request() -> None:
    refused = AddReply(Code.BAD_VERSION, 1, 2)
    frame = v3.encode_reply(refused, version=1, operation=Operation.ADD_ENTRY, transaction_id=1)
    assert v3.decode_reply(frame, 4, len(frame)).version == 3


def test_messages_that_version_3_lacks_are_refused() -> None:
    with pytest.raises(UnsupportedInVersionError, match="batch"):
        v3.encode_request(BatchReadRequest(1, 2, 3, 4, 5))
    with pytest.raises(UnsupportedInVersionError, match="fences and piggy-backs"):
        v3.encode_request(ReadRequest(1, 2, fence=True, master_key=KEY, piggyback_entry=True))


def test_adds_carry_entry_id_plus_one_as_transaction() -> None:
    encoder = v3.AddEncoder(7, EntryCodec(DigestType.CRC32C, b"pass"))
    frame = encoder.encode(41, 40, 100, b"x")
    assert v3.decode_request(frame, 4, len(frame)).transaction_id == 42
