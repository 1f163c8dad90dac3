"""Each reply goes to its own request or is dropped; closing returns every request without a reply."""

# covers: ledger/transport/connection_protocol.py

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Sequence

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.codes import Code, Operation
from ledger.digest import DigestType, EntryCodec
from ledger.transport.connection_protocol import (
    FIRST_TRANSACTION_ID,
    FORGOTTEN_TICKS,
    Call,
    CallReply,
    ConnectionProtocol,
    Received,
)
from ledger.transport.queues import AddReplies
from ledger.wire import v2, v3
from ledger.wire.frame import FrameBuffer
from ledger.wire.messages import (
    AddReply,
    AddRequest,
    BatchReadReply,
    BatchReadRequest,
    BookieInfoReply,
    BookieInfoRequest,
    ReadLacReply,
    ReadLacRequest,
    ReadReply,
    ReadRequest,
    RefusedReply,
    Reply,
    StartTlsReply,
)
from tests.strategies import SEEDS

KEY = bytes(20)


class Sink:
    def __init__(self) -> None:
        self.replies: list[tuple[Code, list[int]]] = []
        self.lost = 0

    def on_add_replies(self, bookie: str, code: Code, entry_ids: Sequence[int]) -> None:
        self.replies.append((code, list(entry_ids)))

    def on_bookie_lost(self, bookie: str, cause: Exception) -> None:
        self.lost += 1


def add_frames(
    ledger_id: int, entry_ids: Sequence[int], version: int = 2, payload: bytes = b"p"
) -> list[bytes]:
    encoder = (v2 if version == 2 else v3).AddEncoder(ledger_id, EntryCodec(DigestType.CRC32C, b""))
    return [encoder.encode(entry_id, -1, 0, payload) for entry_id in entry_ids]


def post(connection: ConnectionProtocol, ledger_id: int, entry_ids: Sequence[int], sink: Sink) -> None:
    connection.post_adds(ledger_id, add_frames(ledger_id, entry_ids, connection.version), entry_ids, sink)


def ok(ledger_id: int, entry_ids: Sequence[int], code: Code = Code.OK) -> bytes:
    return b"".join(v2.add_reply(code, ledger_id, entry_id) for entry_id in entry_ids)


def sent(connection: ConnectionProtocol) -> bytes:
    data = b"".join(connection.send_queue.take())
    connection.send_queue.sent(len(data))
    return data


def add_replies(received: list[Received]) -> list[tuple[int, Code, list[int]]]:
    return [(a.queue.ledger_id, a.code, list(a.entry_ids)) for a in received if isinstance(a, AddReplies)]


def call_replies(received: list[Received]) -> list[tuple[Call, Reply]]:
    return [(a.call, a.reply) for a in received if isinstance(a, CallReply)]


def read_reply(entry_id: int, body: bytes = b"", code: Code = Code.OK) -> bytes:
    reply = ReadReply(code, 1, entry_id, body)
    return v2.encode_reply(reply, version=2, operation=Operation.READ_ENTRY)


# Adds


def test_consecutive_replies_with_one_ledger_and_code_come_together() -> None:
    connection, sink = ConnectionProtocol(2), Sink()
    post(connection, 1, range(5), sink)
    post(connection, 2, range(2), sink)
    chunk = ok(1, [0, 2, 1]) + ok(1, [3], Code.IO_ERROR) + ok(2, [0, 1]) + ok(1, [4])
    assert add_replies(connection.receive(chunk)) == [
        (1, Code.OK, [0, 2, 1]),
        (1, Code.IO_ERROR, [3]),
        (2, Code.OK, [0, 1]),
        (1, Code.OK, [4]),
    ]
    assert not connection.needs_ticks


def test_alternating_replies_to_two_ledgers_are_not_counted_again_for_each_group() -> None:
    connection, sink = ConnectionProtocol(2), Sink()
    post(connection, 1, range(100), sink)
    post(connection, 2, range(100), sink)
    sent(connection)
    chunk = b"".join(ok(ledger_id, [entry_id]) for entry_id in range(100) for ledger_id in (1, 2))
    counted = 0

    def profile(_frame: object, event: str, called: object) -> None:
        nonlocal counted
        counted += event == "c_call" and getattr(called, "__name__", "") == "count"

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        received = connection.receive(chunk)
    finally:
        sys.setprofile(before)
    assert len(add_replies(received)) == 200
    assert counted <= 1


@pytest.mark.parametrize("version", [2, 3])
def test_replies_are_found_however_the_bytes_are_cut(version: int) -> None:
    whole = b""
    codec = v2 if version == 2 else v3
    for entry_id in range(4):
        reply = AddReply(Code.OK, 1, entry_id)
        whole += codec.encode_reply(
            reply, version=version, operation=Operation.ADD_ENTRY, transaction_id=entry_id + 1
        )
    for cut in range(1, len(whole)):
        connection, sink = ConnectionProtocol(version), Sink()
        post(connection, 1, range(4), sink)
        received = connection.receive(whole[:cut]) + connection.receive(whole[cut:])
        assert [entry_id for _, _, ids in add_replies(received) for entry_id in ids] == [0, 1, 2, 3]
        assert connection.failure is None


def test_a_partial_reply_after_the_last_add_reply_is_kept() -> None:
    connection = ConnectionProtocol(2)
    post(connection, 1, [0], Sink())
    call = connection.start_call(ReadRequest(1, 7), False, "reader")
    chunk = ok(1, [0]) + read_reply(7, b"body of the entry")
    assert add_replies(connection.receive(chunk[:40])) == [(1, Code.OK, [0])]
    assert [(c, r.code) for c, r in call_replies(connection.receive(chunk[40:]))] == [(call, Code.OK)]


def test_replies_to_reads_and_adds_in_one_chunk_are_distinguished() -> None:
    connection, sink = ConnectionProtocol(2), Sink()
    post(connection, 1, [0, 1, 2], sink)
    call = connection.start_call(ReadRequest(1, 7), False, "reader")
    no_entry = read_reply(7, code=Code.NO_ENTRY)  # as long as the reply to an add
    received = connection.receive(ok(1, [0]) + no_entry + ok(1, [1, 2]))
    assert add_replies(received) == [(1, Code.OK, [0]), (1, Code.OK, [1, 2])]
    assert call_replies(received) == [(call, ReadReply(Code.NO_ENTRY, 1, 7))]


def test_version_3_replies_to_adds_come_together_too() -> None:
    connection = ConnectionProtocol(3)
    post(connection, 1, range(3), Sink())
    chunk = b"".join(
        v3.encode_reply(
            AddReply(Code.OK, 1, i), version=3, operation=Operation.ADD_ENTRY, transaction_id=i + 1
        )
        for i in (2, 0, 1)
    )
    assert add_replies(connection.receive(chunk)) == [(1, Code.OK, [2, 0, 1])]


@pytest.mark.parametrize(
    "chunk",
    [
        ok(1, [0, 1]),  # one more than was sent
        ok(2, [0]),  # a ledger without adds
        v2.add_reply(Code.OK, 1, 0).replace(bytes(4) + (1).to_bytes(8), b"\0\0\0\x37" + (1).to_bytes(8)),
        read_reply(3),  # not requested
        b"\xff\xff\xff\xff",  # not a frame
        b"\0\0\0\x04\x02\x09\0\0",  # unknown operation
    ],
)
def test_a_reply_without_a_request_breaks_the_connection_and_every_sink_is_notified(chunk: bytes) -> None:
    connection, sink = ConnectionProtocol(2), Sink()
    post(connection, 1, [0], sink)
    received = connection.receive(chunk)
    assert connection.failure is not None
    notified = {id(queue.sink) for queue in connection.close().queues}
    assert add_replies(received) or notified == {id(sink)}


def test_after_a_protocol_error_no_more_replies_are_accepted() -> None:
    connection = ConnectionProtocol(2)
    post(connection, 1, [0], Sink())
    connection.receive(read_reply(3))
    assert connection.receive(ok(1, [0])) == []


def test_a_refusal_of_an_add_without_ids_breaks_the_connection() -> None:
    connection = ConnectionProtocol(3)
    post(connection, 1, [0], Sink())
    refusal = RefusedReply(Code.UNAUTHORIZED, Operation.ADD_ENTRY)
    connection.receive(v3.encode_reply(refusal, version=3, operation=Operation.ADD_ENTRY, transaction_id=1))
    assert "UNAUTHORIZED" in str(connection.failure)


# Calls


def test_a_plain_read_waits_while_a_fencing_one_of_the_same_entry_is_in_flight() -> None:
    connection = ConnectionProtocol(2)
    plain = connection.start_call(ReadRequest(1, -1), False, "reader")
    fencing = connection.start_call(ReadRequest(1, -1, fence=True, master_key=KEY), False, "recovery")
    later = connection.start_call(ReadRequest(1, -1), False, "reader")
    assert sent(connection) == plain.frame
    assert [c for c, _ in call_replies(connection.receive(read_reply(-1)))] == [plain]
    assert sent(connection) == fencing.frame
    assert [c for c, _ in call_replies(connection.receive(read_reply(-1)))] == [fencing]
    assert sent(connection) == later.frame
    assert [c for c, _ in call_replies(connection.receive(read_reply(-1)))] == [later]


def test_equal_reads_are_in_flight_together_and_get_replies_in_order() -> None:
    connection = ConnectionProtocol(2)
    calls = [connection.start_call(ReadRequest(1, 5), False, n) for n in range(3)]
    assert sent(connection) == calls[0].frame * 3
    received = connection.receive(read_reply(5, b"0") + read_reply(5, b"1") + read_reply(5, b"2"))
    assert [c for c, _ in call_replies(received)] == calls


def test_the_late_reply_to_a_forgotten_read_does_not_go_to_the_next_one() -> None:
    connection = ConnectionProtocol(2)
    forgotten = connection.start_call(ReadRequest(1, 5), False, "cancelled")
    connection.forget_call(forgotten)
    call = connection.start_call(ReadRequest(1, 5), False, "reader")
    assert connection.receive(read_reply(5, b"old")) == []
    assert call_replies(connection.receive(read_reply(5, b"new"))) == [
        (call, ReadReply(Code.OK, 1, 5, b"new"))
    ]
    assert not connection.needs_ticks


def test_a_held_read_that_is_forgotten_is_never_sent() -> None:
    connection = ConnectionProtocol(2)
    connection.start_call(ReadRequest(1, -1), False, "reader")
    held = connection.start_call(ReadRequest(1, -1, fence=True, master_key=KEY), False, "recovery")
    connection.forget_call(held)
    sent(connection)
    connection.receive(read_reply(-1))
    assert sent(connection) == b""


def test_a_forgotten_read_without_a_reply_ends_the_connection_in_the_end() -> None:
    connection = ConnectionProtocol(2)
    connection.forget_call(connection.start_call(ReadRequest(1, 5), False, "cancelled"))
    ticks = [connection.tick() for _ in range(FORGOTTEN_TICKS)]
    assert ticks[:-1] == [None] * (FORGOTTEN_TICKS - 1)
    assert ticks[-1] is not None


def test_batch_reads_with_equal_request_ids_get_their_own_replies() -> None:
    connection = ConnectionProtocol(2)
    first = connection.start_call(BatchReadRequest(1, 0, 99, 10, 1000), False, "a")
    second = connection.start_call(BatchReadRequest(1, 0, 99, 10, 1000), False, "b")
    assert connection.batch_read_in_flight
    frames = FrameBuffer()
    data, payloads = frames.feed(sent(connection))
    ids = [attrs.asdict(v2.decode_request(data, s, e).request)["request_id"] for s, e in payloads]  # type: ignore[arg-type]
    chunk = b"".join(
        v2.encode_reply(
            BatchReadReply(Code.OK, 1, 0, number, (body,)), version=2, operation=Operation.BATCH_READ_ENTRY
        )
        for number, body in zip(reversed(ids), (b"for b", b"for a"), strict=True)
    )
    assert call_replies(connection.receive(chunk)) == [
        (second, BatchReadReply(Code.OK, 1, 0, 99, (b"for b",))),
        (first, BatchReadReply(Code.OK, 1, 0, 99, (b"for a",))),
    ]
    assert not connection.batch_read_in_flight


def v3_reply(reply: Reply, number: int, operation: Operation) -> bytes:
    return v3.encode_reply(
        reply, version=3, operation=operation, transaction_id=FIRST_TRANSACTION_ID + number
    )


def test_version_3_calls_are_matched_by_their_transaction_ids() -> None:
    connection = ConnectionProtocol(3)
    read = connection.start_call(ReadLacRequest(1), False, "a")
    info = connection.start_call(BookieInfoRequest(), False, "b")
    received = connection.receive(
        v3_reply(BookieInfoReply(Code.OK, 2, 1), 1, Operation.GET_BOOKIE_INFO)
        + v3_reply(ReadLacReply(Code.NO_ENTRY, 1), 0, Operation.READ_LAC)
    )
    assert call_replies(received) == [
        (info, BookieInfoReply(Code.OK, 2, 1)),
        (read, ReadLacReply(Code.NO_ENTRY, 1)),
    ]


def test_a_refusal_is_a_reply_to_its_call() -> None:
    connection = ConnectionProtocol(3)
    call = connection.start_call(ReadLacRequest(1), False, "a")
    refusal = RefusedReply(Code.UNAUTHORIZED, Operation.READ_LAC)
    assert call_replies(connection.receive(v3_reply(refusal, 0, Operation.READ_LAC))) == [(call, refusal)]


def test_the_late_reply_to_a_forgotten_version_3_call_is_dropped() -> None:
    connection = ConnectionProtocol(3)
    connection.forget_call(connection.start_call(ReadLacRequest(1), False, "a"))
    late = v3_reply(ReadLacReply(Code.NO_ENTRY, 1), 0, Operation.READ_LAC)
    assert connection.receive(late) == []
    assert connection.failure is None
    assert not connection.needs_ticks


@pytest.mark.parametrize(("number", "operation"), [(0, Operation.FORCE_LEDGER), (1, Operation.READ_LAC)])
def test_a_version_3_reply_with_another_operation_or_number_breaks_the_connection(
    number: int, operation: Operation
) -> None:
    connection = ConnectionProtocol(3)
    call = connection.start_call(ReadLacRequest(1), False, "a")
    assert connection.receive(v3_reply(RefusedReply(Code.OK, operation), number, operation)) == []
    assert connection.failure is not None
    assert connection.close().calls == [call]


def test_a_second_reply_to_start_tls_is_ignored() -> None:
    connection = ConnectionProtocol(2)
    post(connection, 1, [0], Sink())
    stray = v3.encode_reply(
        StartTlsReply(Code.IO_ERROR), version=3, operation=Operation.START_TLS, transaction_id=1
    )
    assert add_replies(connection.receive(stray + ok(1, [0]))) == [(1, Code.OK, [0])]
    assert connection.failure is None


# The end


def test_closing_returns_each_call_once_and_no_forgotten_one() -> None:
    connection = ConnectionProtocol(2)
    waiting = connection.start_call(ReadRequest(1, 5), False, "a")
    held = connection.start_call(ReadRequest(1, 5, fence=True, master_key=KEY), False, "b")
    batch = connection.start_call(BatchReadRequest(1, 0, 99, 10, 1000), False, "c")
    connection.forget_call(connection.start_call(ReadRequest(1, 6), False, "d"))
    assert set(connection.close().calls) == {waiting, held, batch}
    assert connection.send_queue.queued_bytes == 0


def test_the_repr_counts_requests_in_flight() -> None:
    connection = ConnectionProtocol(2)
    post(connection, 1, range(3), Sink())
    connection.start_call(ReadRequest(1, 5), False, "a")
    assert "3 adds and 1 calls in flight" in repr(connection)


# Against a bookie that replies in any order and in any pieces until the connection is lost


class Bookie:
    """Keeps requests and replies to any of them; the contents of a reply identify the request."""

    def __init__(self, version: int) -> None:
        self.codec = v2 if version == 2 else v3
        self.version = version
        self.frames = FrameBuffer()
        self.requests: list[tuple[object, int]] = []
        self.bytes_out = b""

    def take(self, chunk: bytes) -> None:
        data, payloads = self.frames.feed(chunk)
        for start, end in payloads:
            incoming = self.codec.decode_request(data, start, end)
            self.requests.append((incoming.request, incoming.transaction_id))

    def reply_to(self, index: int) -> None:
        request, transaction_id = self.requests.pop(index)
        reply: Reply
        match request:
            case AddRequest():
                code = Code.FENCED if request.body.endswith(b"second") else Code.OK
                reply = AddReply(code, request.ledger_id, request.entry_id)
                operation = Operation.ADD_ENTRY
            case ReadRequest():
                body = b"fencing" if request.fence else b"plain"
                reply = ReadReply(Code.OK, request.ledger_id, request.entry_id, body)
                operation = Operation.READ_ENTRY
            case _:
                raise AssertionError(request)
        self.bytes_out += self.codec.encode_reply(
            reply, version=self.version, operation=operation, transaction_id=transaction_id
        )


@given(seed=SEEDS, version=st.sampled_from([2, 3]))
def test_in_any_order_each_request_gets_its_own_reply_or_the_loss(seed: int, version: int) -> None:
    rng = random.Random(seed)
    connection, bookie = ConnectionProtocol(version), Bookie(version)
    sinks = {name: Sink() for name in ("first", "second")}  # two writers of the same ledgers
    due_ids: dict[tuple[str, int], Counter[int]] = {}
    forgotten: set[tuple[str, int]] = set()
    waiting: dict[Call, bytes] = {}

    def deliver(received: list[Received]) -> None:
        for one in received:
            if isinstance(one, CallReply):
                assert isinstance(one.reply, ReadReply)
                assert one.reply.body == waiting.pop(one.call)
                continue
            if one.queue.sink is None:
                continue
            name = next(n for n, sink in sinks.items() if sink is one.queue.sink)
            assert one.code is (Code.FENCED if name == "second" else Code.OK)
            due = due_ids[name, one.queue.ledger_id]
            due.subtract(one.entry_ids)
            assert min(due.values()) >= 0

    for _ in range(rng.randrange(1, 120)):
        match rng.randrange(7):
            case 0 | 1:
                name, ledger_id = rng.choice(["first", "second"]), rng.randrange(2)
                if (name, ledger_id) in forgotten:
                    continue
                ids = [rng.randrange(10) for _ in range(rng.randrange(1, 4))]
                frames = add_frames(ledger_id, ids, version, name.encode())
                connection.post_adds(ledger_id, frames, ids, sinks[name])
                due_ids.setdefault((name, ledger_id), Counter()).update(ids)
            case 2:
                fence = rng.random() < 0.5
                request = ReadRequest(1, rng.randrange(2), fence=fence, master_key=KEY if fence else None)
                call = connection.start_call(request, False, "waiter")
                waiting[call] = b"fencing" if fence else b"plain"
            case 3 if waiting and rng.random() < 0.3:
                call = rng.choice(list(waiting))
                connection.forget_call(call)
                del waiting[call]
            case 3 if rng.random() < 0.1:
                name, ledger_id = rng.choice(["first", "second"]), rng.randrange(2)
                connection.forget(ledger_id, lambda sink, name=name: sink is sinks[name])  # type: ignore[misc]
                forgotten.add((name, ledger_id))
                due_ids.pop((name, ledger_id), None)
            case 4:
                bookie.take(sent(connection))
            case 5 if bookie.requests:
                # In any order. Version 2 reads of one entry in flight together are equal, so theirs does not
                # matter.
                bookie.reply_to(rng.randrange(len(bookie.requests)))
            case _:
                size = rng.randrange(0, 60)
                chunk, bookie.bytes_out = bookie.bytes_out[:size], bookie.bytes_out[size:]
                deliver(connection.receive(chunk))
    if rng.random() < 0.5:
        while connection.send_queue.queued_bytes or bookie.requests or bookie.bytes_out:
            bookie.take(sent(connection))
            while bookie.requests:
                bookie.reply_to(rng.randrange(len(bookie.requests)))
            chunk, bookie.bytes_out = bookie.bytes_out, b""
            deliver(connection.receive(chunk))
        assert not waiting
        assert not any(due.total() for due in due_ids.values())
    assert connection.failure is None
    lost = connection.close()
    assert set(lost.calls) == set(waiting)
    notified = Counter((id(queue.sink), queue.ledger_id) for queue in lost.queues)
    due_now = {(id(sinks[name]), ledger_id) for (name, ledger_id), due in due_ids.items() if due.total()}
    assert set(notified) == due_now
    assert set(notified.values()) <= {1}


@given(st.lists(st.binary(max_size=80), max_size=8), st.sampled_from([2, 3]))
def test_any_bytes_are_replies_or_end_the_connection(chunks: list[bytes], version: int) -> None:
    connection, sink = ConnectionProtocol(version), Sink()
    post(connection, 1, range(3), sink)
    reply_count = 0
    for chunk in chunks:
        reply_count += sum(len(ids) for _, _, ids in add_replies(connection.receive(chunk)))
    assert reply_count <= 3
    assert bool(connection.close().queues) is (reply_count < 3)
