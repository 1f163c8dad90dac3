"""Frames between a forwarder and an owner: known bytes, arbitrary bytes, and errors that come back whole."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog import errors
from dlog.format.attributes import encode_attributes, with_producer
from dlog.forwarding.frames import (
    Appended,
    Failed,
    ForwardedCall,
    Frame,
    FrameKind,
    Hello,
    Records,
    Refused,
    Request,
    Result,
    Welcome,
    decode,
    encode_appended,
    encode_bare,
    encode_failed,
    encode_hello,
    encode_records,
    encode_refused,
    encode_request,
    encode_result,
    encode_welcome,
    frame_bytes_max,
)
from ledger.errors import WireError
from namespace.dlsn import DLSN, INVALID_DLSN

KEY = encode_attributes(b"k", {"h": b"v"})
RECORDS = [
    Records(0, [b"a"]),
    Records(7, [b"", b"bc"], [1, 2], [None, KEY], is_atomic=True, is_again=True),
]
ERRORS: list[errors.DLogError] = [
    errors.TxidOutOfOrderError("log", 3, 4),
    errors.PositionConflictError("log", DLSN(1, 2, 3), None),
    errors.LogWriteError("log", "it broke", errors.RecordOutcome.UNKNOWN),
    errors.RecordTooLongError(7, 5),
    errors.LogUnavailableError("away"),
    errors.SequenceReusedError("log", "p", 9),
]


def payload_of(frame: bytes) -> bytes:
    assert int.from_bytes(frame[:4]) == len(frame) - 4
    return frame[4:]


def test_frames_have_these_bytes() -> None:
    assert encode_bare(FrameKind.LEAVING).hex() == "0000000146"
    assert encode_records(Records(258, [b"abc"], [5], is_again=True)).hex() == (
        "0000001d" "02" "0000000000000102" "05" "00000001" "0000000000000005" "00000003" "616263"
    )  # fmt: skip
    assert encode_records(Records(1, [b"abc", b""], attributes=[None, b"\0\0"])).hex() == (
        "00000023" "02" "0000000000000001" "08" "00000002" "00000000" "00000002" "0000"
        "00000003" "00000000" "616263"
    )  # fmt: skip
    assert encode_appended(Appended(258, 5, [(1, 2, 3, 4)])).hex() == (
        "00000031" "42" "0000000000000102" "0000000000000005" "00000001"
        "0000000000000001" "0000000000000002" "0000000000000003" "00000004"
    )  # fmt: skip
    assert encode_hello(Hello("p", "01" * 16, INVALID_DLSN)).hex() == (
        "0000002c" "01" "02" "01" "0000000000000000" "ffffffffffffffff" "ffffffffffffffff" + "01" * 16 + "70"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("frame", "encoded"),
    [
        *((each, encode_records(each)) for each in RECORDS),
        (Hello("é", "ab" * 16, DLSN(1, 2, 3)), encode_hello(Hello("é", "ab" * 16, DLSN(1, 2, 3)))),
        (Welcome(-1, 5, INVALID_DLSN), encode_welcome(Welcome(-1, 5, INVALID_DLSN))),
        (Appended(1, 2, [(3, 4, 5, 6)] * 3), encode_appended(Appended(1, 2, [(3, 4, 5, 6)] * 3))),
        (Result(4, []), encode_result(Result(4, []))),
        (Result(4, [DLSN(1, 2, 3)] * 2), encode_result(Result(4, [DLSN(1, 2, 3)] * 2))),
        *(
            (each, encode_request(each))
            for each in (
                Request(1, ForwardedCall.FLUSH),
                Request(1, ForwardedCall.OUTCOME, txid=9),
                Request(2, ForwardedCall.TRUNCATE, position=DLSN(1, 2, 3)),
                Request(2, ForwardedCall.APPEND_AFTER, "p", None, RECORDS[1]),
                Request(2, ForwardedCall.APPEND_ONCE, records=RECORDS[0]),
            )
        ),
        (FrameKind.PING, encode_bare(FrameKind.PING)),
    ],
)
def test_a_frame_comes_back_as_it_was(frame: Frame, encoded: bytes) -> None:
    assert decode(payload_of(encoded)) == frame


@pytest.mark.parametrize("error", ERRORS, ids=lambda each: type(each).__name__)
def test_an_error_comes_back_with_type_text_outcome_and_attributes(error: errors.DLogError) -> None:
    for encoded in (encode_refused(Refused(3, error)), encode_failed(Failed(3, error))):
        found = decode(payload_of(encoded))
        assert isinstance(found, Refused | Failed)
        assert type(found.error) is type(error)
        assert str(found.error) == str(error)
        assert vars(found.error) == vars(error)


def error_frame(**changes: object) -> bytes:
    """A REFUSED frame whose error is changed as no owner of ours would."""
    whole = payload_of(encode_refused(Refused(3, errors.LogWriteError("log", "it failed"))))
    head = json.loads(whole[9:]) | changes
    return whole[:9] + json.dumps(head).encode()


@pytest.mark.parametrize(
    "changes", [{"durable": [7]}, {"values": {"dlsn": {"dlsn": 7}}}, {"outcome": 1}, {"values": [1]}]
)
def test_an_error_with_values_of_other_kinds_is_a_wire_error(changes: dict[str, object]) -> None:
    with pytest.raises(WireError):
        decode(error_frame(**changes))


def test_a_value_of_an_error_replaces_no_method() -> None:
    found = decode(error_frame(values={"about": 7, "with_traceback": 7, "evidence": "it failed"}))
    assert isinstance(found, Refused)
    assert isinstance(found.error, errors.LogWriteError)
    assert found.error.about(errors.RecordOutcome.UNKNOWN).outcome is errors.RecordOutcome.UNKNOWN


def test_an_error_of_no_known_class_is_one_of_writing() -> None:
    data = payload_of(encode_refused(Refused(3, errors.TxidOutOfOrderError("log", 3, 4))))
    found = decode(data.replace(b"TxidOutOfOrderError", b"os.system"))
    assert isinstance(found, Refused)
    assert type(found.error) is errors.LogWriteError


@given(st.binary(max_size=300), st.sampled_from(list(FrameKind)))
def test_any_bytes_are_a_frame_or_a_wire_error(data: bytes, kind: FrameKind) -> None:
    for each in (data, bytes((kind,)) + data):
        try:
            decode(each)
        except WireError:
            continue


@given(st.data())
def test_a_damaged_frame_is_a_frame_or_a_wire_error(data: st.DataObject) -> None:
    frames = [encode_records(RECORDS[1]), encode_failed(Failed(1, ERRORS[1]))]
    frames += [encode_request(Request(2, ForwardedCall.APPEND_AFTER, "p", None, RECORDS[1]))]
    whole = bytearray(payload_of(data.draw(st.sampled_from(frames))))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(whole)))
    for each in (bytes(whole), bytes(whole[:cut])):
        try:
            decode(each)
        except WireError:
            continue


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "index out of range"),
        (b"\xff", "not a valid FrameKind"),
        (payload_of(encode_bare(FrameKind.PING)) + b"x", "1 bytes follow PING"),
        (payload_of(encode_records(RECORDS[0])) + b"x", "1 bytes follow the records"),
        (payload_of(encode_records(RECORDS[0]))[:-1], "a record is cut short"),
        (payload_of(encode_records(Records(0, []))), "0 records"),
        (payload_of(encode_records(Records(-1, [b"a"]))), "from number -1"),
        (payload_of(encode_hello(Hello("p" * 65, "00" * 16, INVALID_DLSN))), "1 to 64 bytes"),
        (payload_of(encode_request(Request(1, ForwardedCall.FLUSH, records=RECORDS[0]))), "has records"),
        (payload_of(encode_request(Request(1, ForwardedCall.APPEND_ONCE))), "or has none"),
        (payload_of(encode_request(Request(1, ForwardedCall.TRUNCATE))), "without a position"),
        (payload_of(encode_records(Records(0, [b"a"], attributes=[b"\x09"]))), "do not decode"),
    ],
)
def test_what_no_peer_sends_is_refused_with_the_reason(data: bytes, why: str) -> None:
    with pytest.raises(WireError, match=why):
        decode(data)


def test_a_forwarder_cannot_name_a_producer_in_a_record() -> None:
    stamped = with_producer(None, b"other", 1)
    with pytest.raises(WireError, match="only the owner does"):
        decode(payload_of(encode_records(Records(0, [b"a"], attributes=[stamped]))))


def test_another_version_is_refused_with_both_versions() -> None:
    data = bytearray(payload_of(encode_hello(Hello("p", "00" * 16, INVALID_DLSN))))
    data[1] = 1
    with pytest.raises(WireError, match="version 1 of the peer, ours is 2"):
        decode(bytes(data))


def test_a_frame_has_room_for_the_greatest_record() -> None:
    for size in (1_000, 64 << 20):
        attributes = with_producer(encode_attributes(b"k" * 32_000, None), b"p" * 64, 1)
        encoded = len(encode_records(Records(0, [b"x" * size], [1], [attributes])))
        assert encoded <= frame_bytes_max(size)
