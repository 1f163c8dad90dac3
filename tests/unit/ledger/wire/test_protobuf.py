"""How many fields a message of a peer may have, and that counting them costs little."""

from __future__ import annotations

import pytest

from ledger.errors import WireError
from ledger.wire import bookkeeper_protocol_pb2 as pb
from ledger.wire import v2, v3
from ledger.wire.frame import FRAME_BYTES_MAX
from ledger.wire.messages import AuthRequest, ReadLacRequest, WriteLacRequest
from ledger.wire.protobuf import FIELDS_MAX, UNCOUNTED_BYTES_MAX, check_fields, sub_messages

HEADER = b"\x0a\x06\x08\x03\x10\x07\x18\x01"  # version 3, READ_LAC, transaction 1
BODY = b"\xc2\x06\x02\x08\x05"  # readLacRequest of ledger 5
UNITS = {
    "pairs of the context": b"\xc2\x0c\x04\x0a\x00\x12\x00",
    "empty pairs": b"\xc2\x0c\x00",
    "the body again": BODY,
    "the header again": b"\x0a\x00",
    "unknown numbers": b"\xf8\x3f\x01",
    "unknown bytes": b"\xfa\x3f\x00",
    "unknown groups": b"\xfb\x3f\xfc\x3f",
    "nested groups": b"\xfb\x3f",
    "fixed numbers": b"\xf9\x3f" + bytes(8),
    "short fixed numbers": b"\xfd\x3f" + bytes(4),
    "no message": b"\xff",
    "zeros": b"\x00",
}


def large(unit: bytes, size_bytes: int = FRAME_BYTES_MAX - 100) -> bytes:
    return HEADER + BODY + unit * (size_bytes // len(unit))


class Counted(bytes):
    """Bytes that count how often one of them is looked at; a slice ends the game."""

    looks = 0

    def __getitem__(self, index: object) -> int:  # type: ignore[override]
        assert isinstance(index, int), "the message was copied before it was counted"
        self.looks += 1
        return super().__getitem__(index)


@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
def test_a_message_of_many_fields_is_refused_before_it_is_parsed(unit: bytes) -> None:
    data = Counted(large(unit))
    with pytest.raises(WireError):
        check_fields(data, 0, len(data), sub_messages(pb.Request.DESCRIPTOR))
    assert data.looks < 25 * FIELDS_MAX
    for decode in (v3.decode_request, v3.decode_reply):
        with pytest.raises(WireError):
            decode(bytes(data), 0, len(data))


def test_a_long_field_of_many_fields_counts_as_these() -> None:
    inside = b"\x08\x05" * 1_000_000
    data = HEADER + b"\xc2\x06" + b"\x80\x89\x7a" + inside
    with pytest.raises(WireError, match="more than 512 fields"):
        v3.decode_request(data, 0, len(data))


def test_an_auth_message_of_version_2_is_counted_too() -> None:
    data = b"\x02\x03\x00\x00" + b"\x0a\x00" * 1_000_000
    for decode in (v2.decode_request, v2.decode_reply):
        with pytest.raises(WireError, match="more than 512 fields"):
            decode(data, 0, len(data))


@pytest.mark.parametrize("size_bytes", [0, UNCOUNTED_BYTES_MAX, FRAME_BYTES_MAX - 200])
def test_one_large_field_passes(size_bytes: int) -> None:
    for request in (
        AuthRequest("words", bytes(size_bytes)),
        WriteLacRequest(5, 4, bytes(20), bytes(size_bytes)),
    ):
        data = v3.encode_request(request)
        assert v3.decode_request(data, 4, len(data)).request == request
    data = v2.encode_request(AuthRequest("words", bytes(size_bytes)))
    assert v2.decode_request(data, 4, len(data)).request == AuthRequest("words", bytes(size_bytes))


def test_a_context_as_apaches_client_sends_it_passes() -> None:
    message = pb.Request()
    message.ParseFromString(HEADER + BODY)
    for number in range(100):
        message.requestContext.add(key=f"key {number}", value="x" * 100)
    data = message.SerializeToString()
    assert len(data) > UNCOUNTED_BYTES_MAX
    assert v3.decode_request(data, 0, len(data)).request == ReadLacRequest(5)


@pytest.mark.parametrize(
    "tail", [b"\xfa\x3f\x05abcd", b"\xf9\x3f\x00", b"\xf8\x3f", b"\xf8\x3f" + b"\xff" * 11]
)
def test_a_field_that_is_cut_short_is_refused(tail: bytes) -> None:
    data = HEADER + b"\xfa\x3f\xe8\x07" + bytes(1000) + tail
    with pytest.raises(WireError):
        check_fields(data, 0, len(data), {})
