"""A lost connection is reported once to each request and sink, and the next request dials again."""

# covers: ledger/transport/bookie_connection.py
# covers: ledger/transport/transport.py

from __future__ import annotations

import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ledger.codes import Code
from ledger.errors import BookieError, BookieSecurityError, BookieUnavailableError
from ledger.runtime.tasks.failure_domain import contained_failures
from ledger.transport import bookie_connection
from ledger.transport.pipe import PipeStream
from ledger.transport.transport import Address, Transport, TransportConfig, open_transport
from ledger.wire import v2
from ledger.wire.messages import AddReply, AddRequest, BatchReadRequest, ReadReply, ReadRequest, Reply
from tests.fakes.scripted_bookies import (
    B1,
    RecordingSink,
    ScriptedBookies,
    open_bookies,
    post,
    usual_reply,
)

# Losing a connection and dialling again


async def test_a_loss_is_reported_once_to_each_request_and_sink_and_the_next_request_dials_again() -> None:
    first, second, idle = RecordingSink(), RecordingSink(), RecordingSink()
    async with open_bookies() as (transport, bookies):
        post(transport, 3, [0], idle)
        await wait_all_tasks_blocked()
        bookies.reply_to = lambda _request: None
        post(transport, 1, [0, 1], first)
        post(transport, 1, [2], first)
        post(transport, 1, [0], second)
        with pytest.raises(BookieUnavailableError, match="closed the connection"):  # noqa: PT012
            async with _one_error(), trio.open_nursery() as nursery:
                nursery.start_soon(transport.call, B1, ReadRequest(1, 0))
                await wait_all_tasks_blocked()
                await bookies.peers[0].stream.aclose()
        assert [len(sink.losses) for sink in (first, second, idle)] == [1, 1, 0]
        bookies.reply_to = usual_reply
        post(transport, 1, [0], first)
        assert (await transport.call(B1, ReadRequest(1, 0))).code is Code.OK
        await wait_all_tasks_blocked()
    assert first.entry_ids == [0]
    assert len(first.losses) == 1
    assert len(bookies.peers) == 2


@asynccontextmanager
async def _one_error() -> AsyncIterator[None]:
    try:
        yield
    except BaseExceptionGroup as group:
        (error,) = group.exceptions
        raise error from None


async def test_a_sink_may_post_again_from_its_callback_of_the_loss() -> None:
    sink = RecordingSink()
    async with open_bookies() as (transport, bookies):
        bookies.reply_to = lambda _request: None
        post(transport, 1, [0], sink)
        await wait_all_tasks_blocked()
        bookies.reply_to = usual_reply
        sink.after_loss = lambda: post(transport, 1, [0], sink)
        await bookies.peers[0].stream.aclose()
        await wait_all_tasks_blocked()
    assert sink.entry_ids == [0]
    assert len(sink.losses) == 1


async def test_a_failed_dial_raises_with_address_and_reason() -> None:
    sink = RecordingSink()

    async def fail() -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    async def elsewhere(_bookie: str) -> Address:
        return Address("10.0.0.9", 3181)

    async with trio.open_nursery() as nursery:
        bookies = ScriptedBookies(nursery)
        bookies.before_dial = fail
        async with open_transport(bookies.dial, elsewhere) as transport:
            post(transport, 1, [0], sink)
            with pytest.raises(
                BookieUnavailableError, match=r"b1:3181: connecting to 10.0.0.9:3181 .*refused"
            ):
                await transport.call(B1, ReadRequest(1, 0))
    assert len(sink.losses) == 1


async def test_a_bookie_without_an_address_is_unavailable_for_that_reason() -> None:
    async def lost(bookie: str) -> Address:
        raise BookieUnavailableError(bookie, "not registered")

    async with (
        trio.open_nursery() as nursery,
        open_transport(ScriptedBookies(nursery).dial, lost) as transport,
    ):
        with pytest.raises(BookieUnavailableError, match="not registered"):
            await transport.call(B1, ReadRequest(1, 0))


async def test_connecting_has_its_own_time_limit(autojump_clock: MockClock) -> None:
    sink = RecordingSink()
    async with open_bookies(TransportConfig(connect_timeout_s=2)) as (transport, bookies):
        bookies.before_dial = trio.sleep_forever
        post(transport, 1, [0], sink)
        with pytest.raises(BookieUnavailableError, match="no connection within 2 s"):
            await transport.call(B1, ReadRequest(1, 0))
        assert trio.current_time() == pytest.approx(2)
    assert len(sink.losses) == 1


async def test_an_old_bookie_that_closes_on_a_batch_read_loses_no_adds() -> None:
    sink = RecordingSink()
    async with open_bookies() as (transport, bookies):
        bookies.reply_to = lambda _request: None
        post(transport, 1, [0], sink)
        async with trio.open_nursery() as nursery:

            async def close_it() -> None:
                await wait_all_tasks_blocked()
                for peer in bookies.peers:
                    if isinstance(peer.requests[0].request, BatchReadRequest):
                        await peer.stream.aclose()

            nursery.start_soon(close_it)
            with pytest.raises(BookieUnavailableError, match=r"older than 4\.17"):
                await transport.call(B1, BatchReadRequest(1, 0, 1, 10, 1000))
        assert sink.losses == []


async def test_a_bookie_that_breaks_the_protocol_is_dropped_with_the_reason() -> None:
    sink = RecordingSink()
    async with open_bookies() as (transport, bookies):
        bookies.reply_to = lambda _request: None
        post(transport, 1, [0], sink)
        await wait_all_tasks_blocked()
        await bookies.peers[0].stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await wait_all_tasks_blocked()
    ((_, cause),) = sink.losses
    assert "broke the protocol: a frame says" in str(cause)


async def test_a_reply_to_an_add_that_was_not_sent_drops_the_connection() -> None:
    """The reply to the add that was sent never comes, and a later one would be taken for it."""
    add = AddRequest(1, 0, bytes(20), struct.pack(">qq", 1, 0), recovery=True)
    async with open_bookies() as (transport, bookies):
        bookies.reply_to = lambda _request: AddReply(Code.OK, 1, 98)
        with pytest.raises(BookieUnavailableError, match="a reply to an add of entry 98, which was not sent"):
            await transport.call(B1, add)
        await wait_all_tasks_blocked()
        bookies.reply_to = usual_reply
        for _ in range(2):
            reply = await transport.call(B1, add)
            assert reply == AddReply(Code.OK, 1, 0)


async def test_a_forgotten_sink_is_not_called_again() -> None:
    forgotten, other = RecordingSink(), RecordingSink()
    async with open_bookies() as (transport, bookies):
        bookies.reply_to = lambda _request: None
        for sink in (forgotten, other):
            post(transport, 1, [0], sink)
        await wait_all_tasks_blocked()
        transport.forget(1, forgotten)
        (peer,) = bookies.peers
        bookies.reply_to = usual_reply
        await peer.reply(peer.requests[0], AddReply(Code.FENCED, 1, 0))
        await wait_all_tasks_blocked()
        assert other.replies == [(B1, Code.OK, [0])]
        bookies.reply_to = lambda _request: None
        post(transport, 2, [0], forgotten)
        post(transport, 2, [0], other)
        transport.forget(2)
        await peer.stream.aclose()
        await wait_all_tasks_blocked()
    assert (forgotten.replies, forgotten.losses, other.losses) == ([], [], [])


async def test_no_reply_counts_once_a_connection_is_given_up() -> None:
    sink = RecordingSink()
    async with open_bookies() as (transport, bookies):
        bookies.reply_to = lambda _request: None
        post(transport, 1, [0], sink)
        await wait_all_tasks_blocked()
        (peer,), (connection,) = bookies.peers, transport._alive
        connection.fail(BookieUnavailableError, "given up by the test")
        await peer.reply(peer.requests[0], AddReply(Code.OK, 1, 0))  # before the connection is closed
        await wait_all_tasks_blocked()
    assert (sink.replies, len(sink.losses)) == ([], 1)


@pytest.mark.parametrize("is_delivered", [True, False])
async def test_a_fault_in_the_handling_of_a_reply_ends_its_connection_and_nothing_else(
    is_delivered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty, other, before = RecordingSink(), RecordingSink(), contained_failures["connection to a bookie"]
    if not is_delivered:
        monkeypatch.setattr(PipeStream, "deliver_to", lambda _stream, _deliver: None)

    def fail() -> None:
        raise RuntimeError("a bug")

    async with open_bookies() as (transport, bookies):
        bookies.reply_to = lambda _request: None
        post(transport, 1, [0], faulty)
        post(transport, 2, [0], other)
        await wait_all_tasks_blocked()
        (peer,) = bookies.peers
        faulty.after_replies = faulty.after_loss = fail
        await peer.reply(peer.requests[0], AddReply(Code.OK, 1, 0))
        await wait_all_tasks_blocked()
        assert [str(cause) for _, cause in other.losses] == [
            "bookie b1:3181: its reply was not handled: RuntimeError: a bug"
        ]
        bookies.reply_to = usual_reply
        assert (await transport.call(B1, ReadRequest(1, 0))).code is Code.OK
    assert contained_failures["connection to a bookie"] == before + 1


async def test_replies_after_one_that_could_not_be_handled_reach_their_callers() -> None:
    faulty, other, found = RecordingSink(), RecordingSink(), list[Code]()

    async def ask(transport: Transport) -> None:
        found.append((await transport.call(B1, ReadRequest(3, 0))).code)

    def fail() -> None:
        raise RuntimeError("a bug")

    async with trio.open_nursery() as nursery, open_bookies() as (transport, bookies):
        bookies.reply_to = lambda _request: None
        faulty.after_replies = fail
        post(transport, 1, [0], faulty)
        post(transport, 2, [0], other)
        nursery.start_soon(ask, transport)
        await wait_all_tasks_blocked()
        replies: list[Reply] = [
            AddReply(Code.OK, 1, 0),
            AddReply(Code.OK, 2, 0),
            ReadReply(Code.OK, 3, 0, b"body"),
        ]
        frames = [
            v2.encode_reply(reply, version=2, operation=incoming.operation)
            for reply, incoming in zip(replies, bookies.peers[0].requests, strict=True)
        ]
        await bookies.peers[0].stream.send_all(b"".join(frames))
        await wait_all_tasks_blocked()
        assert (other.entry_ids, found) == ([0], [Code.OK])
        assert len(transport._alive) == 0


async def test_a_sink_that_fails_at_a_loss_keeps_it_from_no_other_sink_and_no_request() -> None:
    faulty, other, errors = RecordingSink(), RecordingSink(), list[str]()

    async def ask(transport: Transport) -> None:
        try:
            await transport.call(B1, ReadRequest(1, 0))
        except BookieError as exc:
            errors.append(str(exc))

    def fail() -> None:
        raise RuntimeError("a bug")

    async with trio.open_nursery() as nursery, open_bookies() as (transport, bookies):
        bookies.reply_to = lambda _request: None
        faulty.after_loss = fail
        post(transport, 1, [0], faulty)
        post(transport, 2, [0], other)
        nursery.start_soon(ask, transport)
        await wait_all_tasks_blocked()
        await bookies.peers[0].stream.aclose()
        await wait_all_tasks_blocked()
        assert (len(faulty.losses), len(other.losses), len(errors)) == (1, 1, 1)


async def test_a_sink_forgotten_in_the_callback_of_another_is_not_called_for_the_same_loss() -> None:
    sinks = [RecordingSink(), RecordingSink()]
    async with open_bookies() as (transport, bookies):
        bookies.reply_to = lambda _request: None
        for ledger_id, sink in enumerate(sinks):
            sink.after_loss = partial(transport.forget, 1 - ledger_id)
            post(transport, ledger_id, [0], sink)
        await wait_all_tasks_blocked()
        await bookies.peers[0].stream.aclose()
        await wait_all_tasks_blocked()
    assert sorted(len(sink.losses) for sink in sinks) == [0, 1]


# Closing


async def test_closing_reports_the_loss_to_calls_and_sinks() -> None:
    sink, errors = RecordingSink(), []

    async def ask(transport: Transport) -> None:
        try:
            await transport.call(B1, ReadRequest(1, 0))
        except BookieError as exc:
            errors.append(str(exc))

    async with trio.open_nursery() as nursery, open_bookies() as (transport, bookies):
        bookies.reply_to = lambda _request: None
        post(transport, 1, [0], sink)
        nursery.start_soon(ask, transport)
        await wait_all_tasks_blocked()
        sink.after_loss = lambda: post(transport, 1, [0], sink)
    assert errors == ["bookie b1:3181: the transport was closed"]
    # Once for the connection, once for the adds posted to the closed transport, and not again.
    assert len(sink.losses) == 2
    with pytest.raises(BookieUnavailableError, match="closed"):
        await transport.call(B1, ReadRequest(1, 0))


class BreakingStream(trio.abc.Stream):
    """Accepts all bytes, and breaks on the first receive."""

    def __init__(self, reason: Exception) -> None:
        self._reason = reason

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        raise trio.BrokenResourceError from self._reason

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


async def test_a_refusal_that_comes_after_a_send_failed_is_the_reason(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """The bookie has closed the connection; its alert is received a moment later."""

    class LateAlert(BreakingStream):
        async def send_all(self, data: object) -> None:
            await trio.lowlevel.checkpoint()
            raise trio.BrokenResourceError from BrokenPipeError(32, "Broken pipe")

        async def receive_some(self, max_bytes: int | None = None) -> bytes:
            await trio.sleep(0.25)
            return await super().receive_some(max_bytes)

    async def dial(_address: Address) -> trio.abc.Stream:
        return LateAlert(ssl.SSLError(1, "tlsv13 alert unknown ca"))

    async def in_tls(_bookie: str, stream: trio.abc.Stream, *_: object) -> trio.abc.Stream:
        return stream

    async def resolve(_bookie: str) -> Address:
        return Address("b1", 3181)

    monkeypatch.setattr(bookie_connection, "start_tls", in_tls)
    config = TransportConfig(tls=ssl.create_default_context())
    async with open_transport(dial, resolve, config) as transport:
        with pytest.raises(BookieSecurityError, match=r"refuses this client in TLS: .*unknown ca"):
            await transport.call(B1, ReadRequest(1, 0))


@pytest.mark.parametrize(
    ("reason", "kind", "evidence"),
    [
        # In TLS 1.3 a certificate is refused after the client's side of the handshake is over.
        (ssl.SSLError(1, "tlsv13 alert certificate required"), BookieSecurityError, "certificate required"),
        (ssl.SSLEOFError(8, "EOF occurred"), BookieUnavailableError, "EOF occurred"),
        (
            ConnectionResetError(104, "Connection reset by peer"),
            BookieUnavailableError,
            "reset by peer",
        ),
        (ValueError(), BookieUnavailableError, "ValueError"),
    ],
)
async def test_the_reason_of_a_broken_connection_is_raised_and_a_tls_refusal_as_a_security_error(
    reason: Exception, kind: type[BookieError], evidence: str
) -> None:
    async def dial(_address: Address) -> trio.abc.Stream:
        return BreakingStream(reason)

    async def resolve(_bookie: str) -> Address:
        return Address("b1", 3181)

    async with open_transport(dial, resolve) as transport:
        with pytest.raises(BookieError, match=f"broke while receiving: .*{evidence}") as caught:
            await transport.call(B1, ReadRequest(1, 0))
        assert type(caught.value) is kind
