"""Arbitrary bytes into each decoder of the wire, and the hand-written adds against protobuf as a twin."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from ledger.codes import Code, Operation
from ledger.digest import DigestType, EntryCodec
from ledger.errors import WireError
from ledger.wire import bookkeeper_protocol_pb2 as pb
from ledger.wire import v2, v3
from ledger.wire.frame import FrameBuffer
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
from ledger.wire.v3_add import decode_usual_add, decode_usual_add_reply
from tests.strategies import IDS, INT64, MASTER_KEYS, NEAR_IDS, damaged

ids = NEAR_IDS | INT64
transaction_ids = st.integers(0, 2**64 - 1) | st.integers(0, 300)
bodies = st.binary(min_size=32, max_size=200)
codes = st.sampled_from(Code)
texts = st.text(max_size=20)
optional_ids = st.none() | ids


@st.composite
def fence_and_key(draw: st.DrawFn) -> tuple[bool, bytes | None]:
    fence = draw(st.booleans())
    return fence, draw(MASTER_KEYS) if fence else None


@st.composite
def adds(draw: st.DrawFn, *, deferred_sync: st.SearchStrategy[bool]) -> AddRequest:
    body = draw(bodies)
    ledger_id, entry_id = (int.from_bytes(body[at : at + 8], "big", signed=True) for at in (0, 8))
    return AddRequest(ledger_id, entry_id, draw(MASTER_KEYS), body, draw(st.booleans()), draw(deferred_sync))


v2_requests: st.SearchStrategy[Request] = st.one_of(
    adds(deferred_sync=st.just(False)),
    st.builds(lambda i, e, f: ReadRequest(i, e, *f), ids, ids, fence_and_key()),
    st.builds(
        lambda i, e, r, c, s, f, at: BatchReadRequest(i, e, r, c, s, f[0], f[1], at),
        ids,
        ids,
        INT64,
        st.integers(-(2**31), 2**31 - 1),
        INT64,
        fence_and_key(),
        st.booleans(),
    ),
    st.builds(AuthRequest, texts, st.binary(max_size=50)),
)
v3_requests: st.SearchStrategy[Request] = st.one_of(
    adds(deferred_sync=st.booleans()),
    st.builds(lambda i, e, f: ReadRequest(i, e, *f), ids, ids, fence_and_key()),
    st.builds(
        lambda i, e, lac, t, p, w, r: ReadRequest(
            i, e, previous_lac=lac, timeout_ms=t, piggyback_entry=p, wants_lac=w, replies_max=r
        ),
        ids,
        ids,
        ids,
        optional_ids,
        st.booleans(),
        st.booleans(),
        st.integers(1, 2**31 - 1),
    ),
    st.builds(WriteLacRequest, ids, ids, MASTER_KEYS, st.binary(max_size=40)),
    st.builds(ReadLacRequest, ids),
    st.builds(ForceLedgerRequest, ids),
    st.builds(BookieInfoRequest, st.booleans(), st.booleans()),
    st.builds(ListEntriesRequest, ids),
    st.just(StartTlsRequest()),
    st.builds(AuthRequest, texts, st.binary(max_size=50)),
)


v2_replies: st.SearchStrategy[tuple[Operation, Reply]] = st.one_of(
    st.builds(lambda *a: (Operation.ADD_ENTRY, AddReply(*a)), codes, ids, ids),
    st.builds(lambda *a: (Operation.READ_ENTRY, ReadReply(Code.OK, *a)), ids, ids, bodies),
    st.builds(
        lambda c, *a: (Operation.READ_ENTRY, ReadReply(c, *a)),
        codes.filter(lambda code: code is not Code.OK),
        ids,
        ids,
    ),
    st.builds(
        lambda i, e, r, b: (Operation.BATCH_READ_ENTRY, BatchReadReply(Code.OK, i, e, r, tuple(b))),
        ids,
        ids,
        INT64,
        st.lists(st.binary(max_size=50), max_size=5),
    ),
    st.builds(
        lambda *a: (Operation.BATCH_READ_ENTRY, LocatedReply(Code.OK, *a)),
        ids,
        ids,
        *[INT64, INT64, st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), INT64],
        st.lists(st.integers(0, 2**32 - 1), max_size=5).map(tuple),
    ),
    st.builds(lambda *a: (Operation.AUTH, AuthReply(Code.OK, *a)), texts, st.binary(max_size=50)),
)
optional_bytes = st.none() | st.binary(max_size=50)
v3_replies: st.SearchStrategy[tuple[Operation, Reply]] = st.one_of(
    st.builds(lambda *a: (Operation.ADD_ENTRY, AddReply(*a)), codes, ids, ids),
    st.builds(
        lambda *a: (Operation.READ_ENTRY, ReadReply(*a)),
        codes,
        ids,
        ids,
        optional_bytes,
        optional_ids,
        optional_ids,
        optional_bytes,
        st.booleans(),
    ),
    st.builds(lambda *a: (Operation.WRITE_LAC, WriteLacReply(*a)), codes, ids),
    st.builds(lambda *a: (Operation.READ_LAC, ReadLacReply(*a)), codes, ids, optional_bytes, optional_bytes),
    st.builds(lambda *a: (Operation.FORCE_LEDGER, ForceLedgerReply(*a)), codes, ids),
    st.builds(lambda *a: (Operation.GET_BOOKIE_INFO, BookieInfoReply(*a)), codes, optional_ids, optional_ids),
    st.builds(lambda *a: (Operation.LIST_ENTRIES, ListEntriesReply(*a)), codes, ids, optional_bytes),
    st.just((Operation.START_TLS, StartTlsReply(Code.OK))),
    st.builds(lambda *a: (Operation.AUTH, AuthReply(Code.OK, *a)), texts, st.binary(max_size=50)),
    st.builds(
        lambda c, o: (o, RefusedReply(c, o)),
        codes.filter(lambda code: code is not Code.OK),
        st.sampled_from(Operation),
    ),
)


def in_a_stream(frame: bytes) -> tuple[bytes, int, int]:
    """The frame between others, so that a read outside it is noticed."""
    data, spans = FrameBuffer().feed(b"\x00\x00\x00\x01\x0a" + frame + frame)
    assert spans[1] == (9, 5 + len(frame))
    return data, *spans[1]


@given(v2_requests, st.booleans())
def test_a_decoded_version_2_request_equals_the_encoded_one(request: Request, high_priority: bool) -> None:
    frame = v2.encode_request(request, high_priority=high_priority)
    incoming = v2.decode_request(*in_a_stream(frame))
    assert incoming.request == request
    assert (incoming.version, incoming.high_priority) == (2, high_priority)


@given(v3_requests, transaction_ids, st.booleans())
def test_a_decoded_version_3_request_equals_the_encoded_one(
    request: Request, transaction_id: int, high_priority: bool
) -> None:
    frame = v3.encode_request(request, transaction_id=transaction_id, high_priority=high_priority)
    incoming = v3.decode_request(*in_a_stream(frame))
    assert incoming.request == request
    assert (incoming.version, incoming.transaction_id) == (3, transaction_id)
    assert incoming.high_priority == high_priority


@given(v2_replies, st.integers(1, 255))
def test_a_decoded_version_2_reply_equals_the_encoded_one(
    case: tuple[Operation, Reply], version: int
) -> None:
    operation, reply = case
    frame = v2.encode_reply(reply, version=version, operation=operation)
    assert v2.decode_reply(*in_a_stream(frame)) == IncomingReply(version, operation, reply)


@given(v3_replies, transaction_ids)
def test_a_decoded_version_3_reply_equals_the_encoded_one(
    case: tuple[Operation, Reply], transaction_id: int
) -> None:
    operation, reply = case
    frame = v3.encode_reply(reply, version=3, operation=operation, transaction_id=transaction_id)
    assert v3.decode_reply(*in_a_stream(frame)) == IncomingReply(3, operation, reply, transaction_id)


@st.composite
def damaged_frames(draw: st.DrawFn) -> bytes:
    """A good payload with some bytes changed, removed or inserted."""
    good = draw(
        st.one_of(
            v2_requests.map(v2.encode_request),
            v3_requests.map(v3.encode_request),
            v2_replies.map(lambda a: v2.encode_reply(a[1], version=2, operation=a[0])),
            v3_replies.map(lambda a: v3.encode_reply(a[1], version=3, operation=a[0])),
        )
    )[4:]
    return draw(damaged(good))


DECODERS = (v2.decode_request, v2.decode_reply, v3.decode_request, v3.decode_reply)


@given(st.binary(max_size=200) | damaged_frames())
@example(b"\x02\x03\x00\x00\x0a\x02\xff\xfe\x12\x00")  # an AUTH with a plug-in name that is not UTF-8
@example(bytes.fromhex("0a06080310051805b206060a02fffe1200"))  # the same in version 3
@example(bytes.fromhex("0a0608031002180190f603"))
def test_any_bytes_are_a_message_or_a_wire_error(payload: bytes) -> None:
    for decode in DECODERS:
        try:
            incoming = decode(payload, 0, len(payload))
        except WireError:
            continue
        message = incoming.request if isinstance(incoming, IncomingRequest) else incoming.reply
        if isinstance(message, AuthRequest | AuthReply):
            assert isinstance(message.plugin, str)


def decode_request_by_protobuf(payload: bytes) -> IncomingRequest | None:
    message = pb.Request()
    try:
        message.ParseFromString(payload)
    except Exception:
        return None
    if not message.IsInitialized():
        return None
    add = message.addRequest
    return IncomingRequest(
        message.header.version,
        Operation(message.header.operation),
        AddRequest(
            add.ledgerId,
            add.entryId,
            add.masterKey,
            add.body,
            add.HasField("flag") and add.flag == pb.AddRequest.RECOVERY_ADD,
            bool(add.writeFlags & 1),
        ),
        message.header.txnId,
        message.header.priority > 0,
    )


@st.composite
def damaged_adds(draw: st.DrawFn) -> bytes:
    request = draw(adds(deferred_sync=st.booleans()))
    frame = v3.encode_request(
        request, transaction_id=draw(transaction_ids), high_priority=draw(st.booleans())
    )
    payload = bytearray(frame[4:])
    for _ in range(draw(st.integers(0, 2))):
        payload[draw(st.integers(0, min(60, len(payload) - 1)))] = draw(st.integers(0, 255))
    return bytes(payload)


@given(damaged_adds(), st.binary(max_size=40))
def test_adds_decoded_by_hand_equal_those_decoded_by_protobuf(payload: bytes, next_frame: bytes) -> None:
    quick = decode_usual_add(payload + next_frame, 0, len(payload))
    if quick is not None:
        assert quick == decode_request_by_protobuf(payload)


@given(
    IDS,
    st.integers(0, 2**63 - 2),
    st.booleans(),
    st.booleans(),
    st.binary(max_size=300),
)
def test_adds_encoded_by_hand_equal_those_encoded_by_protobuf(
    ledger_id: int, entry_id: int, recovery: bool, deferred_sync: bool, payload: bytes
) -> None:
    entries = EntryCodec(DigestType.CRC32C, b"pass")
    body = entries.pack(ledger_id, entry_id, entry_id - 1, 7, payload)
    request = AddRequest(ledger_id, entry_id, entries.master_key, body, recovery, deferred_sync)
    twin = v3.encode_request(request, transaction_id=entry_id + 1, high_priority=recovery)
    encoder = v3.AddEncoder(ledger_id, entries, recovery=recovery, deferred_sync=deferred_sync)
    frame = encoder.encode(entry_id, entry_id - 1, 7, payload)
    assert frame == twin
    quick = decode_usual_add(frame, 4, len(frame))
    assert quick is not None
    assert quick.request == request


@given(codes, INT64, INT64, transaction_ids)
def test_add_replies_encoded_by_hand_equal_those_encoded_by_protobuf(
    code: Code, ledger_id: int, entry_id: int, transaction_id: int
) -> None:
    twin = pb.Response(status=pb.StatusCode.Name(code.value))
    twin.header.version = pb.VERSION_THREE
    twin.header.operation = pb.ADD_ENTRY
    twin.header.txnId = transaction_id
    twin.addResponse.status = twin.status
    twin.addResponse.ledgerId = ledger_id
    twin.addResponse.entryId = entry_id
    reply = AddReply(code, ledger_id, entry_id)
    frame = v3.encode_reply(reply, version=3, operation=Operation.ADD_ENTRY, transaction_id=transaction_id)
    assert frame[4:] == twin.SerializeToString()
    quick = decode_usual_add_reply(frame + b"\x00" * 8, 4, len(frame))
    assert quick is None or quick.reply == reply
    assert v3.decode_reply(frame, 4, len(frame)).reply == reply


@given(
    codes,
    st.tuples(INT64, INT64 | st.just(-1)),
    st.none() | st.binary(max_size=300),
    st.tuples(st.none() | INT64, st.none() | INT64),
    st.none() | st.binary(max_size=60),
    st.booleans(),
    transaction_ids,
)
def test_replies_to_reads_encoded_by_hand_equal_those_encoded_by_protobuf(
    code: Code,
    read: tuple[int, int],
    body: bytes | None,
    lac: tuple[int | None, int | None],
    lac_body: bytes | None,
    more_follow: bool,
    transaction_id: int,
) -> None:
    status = pb.StatusCode.Name(code.value)
    twin = pb.Response(status=status)
    twin.header.version = pb.VERSION_THREE
    twin.header.operation = pb.READ_ENTRY
    twin.header.txnId = transaction_id
    twin.readResponse.MergeFrom(
        pb.ReadResponse(
            status=status,
            ledgerId=read[0],
            entryId=read[1],
            body=body,
            maxLAC=lac[0],
            lacUpdateTimestamp=lac[1],
            lacBody=lac_body,
        )
    )
    if more_follow:
        twin.readResponse.moreFollow = True
    reply = ReadReply(code, *read, body, *lac, lac_body, more_follow)
    frame = v3.encode_reply(reply, version=3, operation=Operation.READ_ENTRY, transaction_id=transaction_id)
    assert frame[4:] == twin.SerializeToString()
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4


@given(st.binary(max_size=60), st.integers(0, 3), st.data())
def test_add_replies_decoded_by_hand_equal_those_decoded_by_protobuf(
    next_frame: bytes, changes: int, data: st.DataObject
) -> None:
    reply = AddReply(Code.OK, data.draw(ids), data.draw(ids))
    frame = v3.encode_reply(
        reply, version=3, operation=Operation.ADD_ENTRY, transaction_id=data.draw(transaction_ids)
    )
    payload = bytearray(frame[4:])
    for _ in range(changes):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    quick = decode_usual_add_reply(bytes(payload) + next_frame, 0, len(payload))
    if quick is not None:
        twin = pb.Response.FromString(bytes(payload))
        assert (twin.header.version, twin.header.operation, twin.status) == (3, 2, 0)
        assert quick.transaction_id == twin.header.txnId
        assert quick.reply == AddReply(Code.OK, twin.addResponse.ledgerId, twin.addResponse.entryId)
