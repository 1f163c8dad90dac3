# covers: ledger/codes.py
# covers: ledger/wire/messages.py

from __future__ import annotations

import struct

import pytest

from ledger.codes import Code, Operation
from ledger.digest import DigestType, EntryCodec
from ledger.errors import UnsupportedInVersionError, WireError
from ledger.wire import v2
from ledger.wire.messages import (
    AddReply,
    AddRequest,
    AuthReply,
    BatchReadReply,
    BatchReadRequest,
    ForceLedgerReply,
    LocatedReply,
    ReadLacRequest,
    ReadReply,
    ReadRequest,
    RefusedReply,
    Request,
)

KEY = bytes(range(20))
BODY = bytes(32) + b"payload"


def payload_of(frame: bytes) -> tuple[bytes, int, int]:
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    return frame, 4, len(frame)


def test_the_layouts_for_hot_paths_equal_those_of_the_codec() -> None:
    frame = v2.AddEncoder(7, EntryCodec(DigestType.CRC32C, b"pass")).encode(5, 4, 100, b"hello")
    header, key, ledger_id, entry_id, lac = v2.ADD_REQUEST.unpack_from(frame, 4)
    request = v2.decode_request(*payload_of(frame)).request
    assert isinstance(request, AddRequest)
    assert (header, key, ledger_id, entry_id, lac) == (v2.ADD_HEADER, request.master_key, 7, 5, 4)
    assert frame[4 + v2.ADD_BODY_OFFSET :] == request.body
    reply = v2.add_reply(Code.FENCED, 7, 5)
    assert len(reply) == 28
    assert v2.ADD_REPLY.unpack_from(reply, 4) == (v2.ADD_HEADER, 104, 7, 5)
    assert v2.encode_reply(AddReply(Code.FENCED, 7, 5), version=2, operation=Operation.ADD_ENTRY) == reply


@pytest.mark.parametrize("code", Code)
def test_every_code_is_encoded_and_decoded(code: Code) -> None:
    frame = v2.add_reply(code, 1, 2)
    assert v2.decode_reply(*payload_of(frame)).reply == AddReply(code, 1, 2)


def test_a_refused_read_has_no_entry() -> None:
    reply = ReadReply(Code.NO_ENTRY, 1, -1, BODY)
    frame = v2.encode_reply(reply, version=2, operation=Operation.READ_ENTRY)
    assert len(frame) == 28
    assert v2.decode_reply(*payload_of(frame)).reply == ReadReply(Code.NO_ENTRY, 1, -1)


@pytest.mark.parametrize(
    "request_",
    [
        AddRequest(1, 2, KEY, BODY, deferred_sync=True),
        ReadRequest(1, -1, previous_lac=3),
        ReadRequest(1, -1, timeout_ms=3),
        ReadRequest(1, 2, fence=True),
        ReadLacRequest(1),
    ],
)
def test_requests_that_version_2_lacks_are_refused(request_: Request) -> None:
    with pytest.raises(UnsupportedInVersionError, match="version 2"):
        v2.encode_request(request_)


def test_replies_that_version_2_lacks_are_refused() -> None:
    for reply, operation in (
        (RefusedReply(Code.UNAUTHORIZED, Operation.READ_ENTRY), Operation.READ_ENTRY),
        (AuthReply(Code.UNAUTHORIZED), Operation.AUTH),
        (ForceLedgerReply(Code.OK, 1), Operation.FORCE_LEDGER),
    ):
        with pytest.raises(UnsupportedInVersionError):
            v2.encode_reply(reply, version=2, operation=operation)


def test_deferred_sync_needs_version_3() -> None:
    with pytest.raises(UnsupportedInVersionError, match="deferred sync"):
        v2.AddEncoder(1, EntryCodec(DigestType.DUMMY, b""), deferred_sync=True)


def test_a_fencing_read_without_its_complete_key_is_a_wire_error() -> None:
    frame = v2.encode_request(ReadRequest(1, -1, fence=True, master_key=KEY))
    for missing in range(1, 21):
        with pytest.raises(WireError, match="key"):
            v2.decode_request(frame, 4, len(frame) - missing)


def test_a_fencing_read_of_version_1_has_no_key() -> None:
    frame = bytearray(v2.encode_request(ReadRequest(1, -1, fence=True, master_key=KEY)))
    frame[4] = 1
    request = v2.decode_request(bytes(frame), 4, len(frame)).request
    assert request == ReadRequest(1, -1, fence=True, master_key=None)


def test_in_version_0_the_whole_word_is_the_opcode() -> None:
    good = struct.pack(">Iqq", 2, 1, 5)
    assert v2.decode_request(good, 0, len(good)).request == ReadRequest(1, 5)
    shifted = struct.pack(">Iqq", 0x00020000, 1, 5)
    with pytest.raises(WireError, match="opcode"):
        v2.decode_request(shifted, 0, len(shifted))
    answer = v2.encode_reply(ReadReply(Code.NO_ENTRY, 1, 5), version=0, operation=Operation.READ_ENTRY)
    assert answer[4:8] == b"\x00\x00\x00\x02"


@pytest.mark.parametrize("opcode", [0, 4, 5, 6, 8, 99, 255])
def test_unknown_opcodes_are_wire_errors(opcode: int) -> None:
    data = struct.pack(">I", 2 << 24 | opcode << 16) + bytes(60)
    for decode in (v2.decode_request, v2.decode_reply):
        with pytest.raises(WireError, match=f"opcode {opcode}"):
            decode(data, 0, len(data))


def test_an_add_with_ids_but_no_complete_header_is_decoded_for_its_reply() -> None:
    frame = v2.encode_request(AddRequest(1, 2, KEY, struct.pack(">qq", 1, 2)))
    assert v2.decode_request(*payload_of(frame)).request == AddRequest(1, 2, KEY, struct.pack(">qq", 1, 2))
    with pytest.raises(WireError):
        v2.decode_request(frame, 4, len(frame) - 1)


@pytest.mark.parametrize(
    "tail", [b"\x00", b"\x00\x00\x00\x05abcd", b"\xff\xff\xff\xff", b"\x00\x00\x00\x01a\x00\x00"]
)
def test_a_batch_that_does_not_fill_its_frame_is_a_wire_error(tail: bytes) -> None:
    data = struct.pack(">IIqqq", 0x02070000, 0, 1, 2, 3) + tail
    with pytest.raises(WireError, match="batch"):
        v2.decode_reply(data, 0, len(data))


def test_an_unknown_code_is_a_wire_error() -> None:
    data = struct.pack(">IIqq", v2.ADD_HEADER, 9, 1, 2)
    with pytest.raises(WireError, match="code 9"):
        v2.decode_reply(data, 0, len(data))


@pytest.mark.parametrize("tail", ["00000005 61", "ffffffff", "00000001 61 0000", "7fffffff"])
def test_a_batch_whose_sizes_do_not_fit_the_frame_breaks_the_protocol(tail: str) -> None:
    reply = BatchReadReply(Code.OK, 1, 0, 9, (b"good",))
    frame = v2.encode_reply(reply, version=2, operation=Operation.BATCH_READ_ENTRY) + bytes.fromhex(tail)
    with pytest.raises(WireError, match="batch"):
        v2.decode_reply(frame, 4, len(frame))


def test_the_bytes_of_a_request_for_the_place_of_entries_and_of_its_reply() -> None:
    request = BatchReadRequest(1, 0, 99, 10, 5242880, locate=True)
    frame = v2.encode_request(request)
    assert frame.hex(" ", 4) == (
        "00000028 02074000 00000000 00000001 00000000 00000000 00000000 00000063 0000000a 00000000 00500000"
    )
    assert v2.decode_request(*payload_of(frame)).request == request
    reply = LocatedReply(Code.OK, 1, 0, 99, 0x2A, 0xFE01, 2**64 - 1, 1024, (0, 700, 70_000))
    frame = v2.encode_reply(reply, version=2, operation=Operation.BATCH_READ_ENTRY)
    assert frame.hex(" ", 4) == (
        "00000050 02074000 00000000 00000000 00000001 00000000 00000000 00000000 00000063 00000000 0000002a"
        " 00000000 0000fe01 ffffffff ffffffff 00000000 00000400 00000003 00000000 000002bc 00011170"
    )
    assert v2.decode_reply(*payload_of(frame)).reply == reply
    with pytest.raises(WireError):
        v2.decode_reply(frame, 4, len(frame) - 1)
