"""Requests use the connection where they delay no others; every wait ends."""

from __future__ import annotations

import contextlib
from typing import Literal

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ledger.codes import Code, Operation
from ledger.errors import BookieTimeoutError, BookieUnavailableError
from ledger.transport.dial import dial_tcp
from ledger.transport.transport import SAY_S, TransportConfig, open_transport
from ledger.wire.messages import (
    AddReply,
    AddRequest,
    BookieInfoReply,
    BookieInfoRequest,
    ForceLedgerRequest,
    ReadReply,
    ReadRequest,
    RefusedReply,
    Reply,
    Request,
)
from tests.fakes.scripted_bookies import (
    B1,
    RecordingSink,
    add_request,
    frames_of,
    open_bookies,
    post,
    resolve,
    usual_reply,
)

# Requests and replies


@pytest.mark.parametrize("version", [2, 3])
async def test_adds_and_calls_get_replies(version: Literal[2, 3]) -> None:
    sink = RecordingSink()
    async with open_bookies(TransportConfig(add_version=version)) as (transport, bookies):
        post(transport, 1, range(3), sink)
        assert await transport.call(B1, ReadRequest(1, 0)) == ReadReply(Code.OK, 1, 0, b"body")
        assert await transport.call(B1, BookieInfoRequest()) == BookieInfoReply(Code.OK, 2, 1)
        await wait_all_tasks_blocked()
    assert sink.entry_ids == [0, 1, 2]
    assert sink.losses == []
    assert [peer.requests[0].version for peer in bookies.peers] == [version, 3]


async def test_requests_made_while_connecting_are_sent_in_order() -> None:
    sink, connected = RecordingSink(), trio.Event()
    async with open_bookies() as (transport, bookies):
        bookies.before_dial = connected.wait
        post(transport, 1, [0], sink)
        post(transport, 1, [1, 2], sink)
        await wait_all_tasks_blocked()
        assert transport.queued_bytes(B1) == sum(map(len, frames_of(1, range(3))))
        connected.set()
        await wait_all_tasks_blocked()
        assert transport.queued_bytes(B1) == 0
    assert sink.entry_ids == [0, 1, 2]
    assert len(bookies.peers) == 1


async def test_a_refusal_is_returned_as_it_is() -> None:
    async with open_bookies() as (transport, bookies):
        bookies.reply_to = lambda _request: RefusedReply(Code.UNAUTHORIZED, Operation.GET_BOOKIE_INFO)
        reply = await transport.call(B1, BookieInfoRequest())
    assert reply == RefusedReply(Code.UNAUTHORIZED, Operation.GET_BOOKIE_INFO)


async def test_a_sink_may_post_again_from_inside_its_callback() -> None:
    sink = RecordingSink()
    async with open_bookies() as (transport, _):
        sink.after_replies = lambda: (
            post(transport, 1, [len(sink.replies)], sink) if len(sink.replies) < 4 else None
        )
        post(transport, 1, [0], sink)
        await wait_all_tasks_blocked()
    assert sink.entry_ids == [0, 1, 2, 3]


async def test_a_long_poll_delays_nothing_else() -> None:
    sink = RecordingSink()
    async with open_bookies() as (transport, _), trio.open_nursery() as nursery:
        poll = ReadRequest(1, -1, previous_lac=4, timeout_ms=60_000, piggyback_entry=True)
        nursery.start_soon(transport.call, B1, poll)
        await wait_all_tasks_blocked()
        post(transport, 1, [0], sink)
        assert (await transport.call(B1, BookieInfoRequest())).code is Code.OK
        assert (await transport.call(B1, ReadRequest(1, 0))).code is Code.OK
        nursery.cancel_scope.cancel()
    assert sink.entry_ids == [0]


async def test_an_add_with_deferred_sync_uses_version_3() -> None:
    sink = RecordingSink()
    async with open_bookies() as (transport, bookies):
        transport.post_adds(B1, 1, frames_of(1, [0], version=3), [0], sink)
        request = attrs.evolve(add_request(1, 1), deferred_sync=True)
        assert await transport.call(B1, request) == AddReply(Code.OK, 1, 1)
        await wait_all_tasks_blocked()
    assert sink.entry_ids == [0]
    assert [peer.requests[0].version for peer in bookies.peers] == [3]


async def test_adds_by_call_and_posted_adds_of_one_ledger_get_their_own_replies() -> None:
    sink, codes = RecordingSink(), iter([Code.FENCED, Code.OK, Code.OK])
    async with open_bookies() as (transport, bookies):
        bookies.reply_to = lambda request: (
            AddReply(next(codes), 1, 7) if isinstance(request, AddRequest) else None
        )
        post(transport, 1, [7], sink)
        replies: list[Reply] = []
        async with trio.open_nursery() as nursery:
            for _ in range(2):

                async def call() -> None:
                    replies.append(await transport.call(B1, add_request(1, 7)))

                nursery.start_soon(call)
    assert sink.replies == [(B1, Code.FENCED, [7])]
    assert replies == [AddReply(Code.OK, 1, 7)] * 2


# Timeouts and silent bookies


async def test_a_call_fails_after_its_timeout(autojump_clock: MockClock) -> None:
    async with open_bookies(TransportConfig(request_timeout_s=3)) as (transport, bookies):
        bookies.reply_to = lambda _request: None
        cases: list[tuple[Request, float | None, float]] = [
            (ReadRequest(1, 0), None, 3),
            (BookieInfoRequest(), 1.5, 1.5),
            (add_request(1, 0), None, 3),
            (ReadRequest(1, -1, previous_lac=3, timeout_ms=2000), None, 5),
        ]
        for request, named, expected_s in cases:
            started = trio.current_time()
            with pytest.raises(BookieTimeoutError, match="no reply"):
                await transport.call(B1, request, timeout_s=named)
            assert trio.current_time() - started == pytest.approx(expected_s)


async def test_a_cancelled_call_is_forgotten_and_its_late_reply_is_dropped() -> None:
    async with open_bookies() as (transport, bookies):
        bookies.reply_to = lambda _request: None
        for request in (ReadRequest(1, 0), add_request(1, 0)):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(transport.call, B1, request)
                await wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
            (peer,) = bookies.peers
            async with trio.open_nursery() as nursery:
                replies: list[Reply] = []

                async def ask(
                    request: ReadRequest | AddRequest = request, into: list[Reply] = replies
                ) -> None:
                    into.append(await transport.call(B1, request))

                nursery.start_soon(ask)
                await wait_all_tasks_blocked()
                reply = usual_reply(request)
                assert reply is not None
                await peer.reply(peer.requests[-2], attrs.evolve(reply, code=Code.IO_ERROR))
                await wait_all_tasks_blocked()
                assert replies == []
                await peer.reply(peer.requests[-1], reply)
            assert replies == [reply]


async def test_the_connection_to_a_silent_bookie_is_given_up_and_its_sinks_are_notified(
    autojump_clock: MockClock,
) -> None:
    sinks = [RecordingSink() for _ in range(3)]
    async with open_bookies(TransportConfig(add_timeout_s=8)) as (transport, bookies):
        post(transport, 2, [0], sinks[2])
        await wait_all_tasks_blocked()
        bookies.reply_to = lambda _request: None
        post(transport, 0, [0, 1], sinks[0])
        post(transport, 1, [0], sinks[1])
        started = trio.current_time()
        lost = trio.Event()
        sinks[1].after_loss = lost.set
        with trio.fail_after(60):
            await lost.wait()
        assert 8 <= trio.current_time() - started <= 10
        # A late reply must not be taken for one to an add that was sent again: the connection is closed.
        (peer,) = bookies.peers
        with pytest.raises(trio.BrokenResourceError):
            await peer.reply(peer.requests[-1], AddReply(Code.OK, 1, 0))
    assert [len(sink.losses) for sink in sinks] == [1, 1, 0]
    assert isinstance(sinks[0].losses[0][1], BookieTimeoutError)
    assert sinks[0].losses[0][1] is not sinks[1].losses[0][1], "each sink may raise it in its own task"
    assert sinks[0].replies == []


async def test_a_bookie_that_omits_one_reply_is_given_up_once_the_others_arrived(
    autojump_clock: MockClock,
) -> None:
    sink = RecordingSink()
    async with open_bookies(TransportConfig(add_timeout_s=4)) as (transport, bookies):
        bookies.reply_to = lambda r: None if isinstance(r, AddRequest) and r.entry_id == 0 else usual_reply(r)
        lost = trio.Event()
        sink.after_loss = lost.set
        post(transport, 1, range(100), sink)
        with trio.fail_after(60):
            await lost.wait()
    assert len(sink.entry_ids) == 99
    assert len(sink.losses) == 1


async def test_a_slow_bookie_that_replies_in_time_is_not_given_up(autojump_clock: MockClock) -> None:
    sink = RecordingSink()
    async with open_bookies(TransportConfig(add_timeout_s=4)) as (transport, bookies):
        bookies.reply_to = lambda _request: None
        post(transport, 1, range(3), sink)
        await wait_all_tasks_blocked()
        (peer,) = bookies.peers
        for entry_id in range(20):
            await trio.sleep(1.2)
            post(transport, 1, [entry_id + 3], sink)
            await peer.reply(peer.requests[entry_id], AddReply(Code.OK, 1, entry_id))
        await wait_all_tasks_blocked()
        assert sink.losses == []
    assert sink.entry_ids == list(range(20))


async def test_an_idle_transport_has_no_running_timer(autojump_clock: MockClock) -> None:
    async with open_bookies() as (transport, _):
        post(transport, 1, [0], RecordingSink())
        await trio.sleep(1000)
        assert trio.current_time() == pytest.approx(1000)
        assert not transport._is_ticking


# Waiting until bytes are sent, and the end of the block


async def test_an_error_in_the_block_is_raised_unchanged() -> None:
    with pytest.raises(ValueError, match="mine"):
        await _fail_inside()


async def _fail_inside() -> None:
    async with open_transport(dial_tcp, resolve):  # never dialled
        raise ValueError("mine")


async def test_wait_writable_waits_while_too_many_bytes_are_queued() -> None:
    sink, sender_done = RecordingSink(), trio.Event()
    async with open_bookies(TransportConfig(queued_bytes_max=1000)) as (transport, bookies):
        bookies.is_reading, bookies.buffer_bytes_max = False, 100
        transport.post_adds(B1, 1, frames_of(1, range(2), size=70_000), range(2), sink)

        async def wait() -> None:
            await transport.wait_writable(["elsewhere:1", B1])
            sender_done.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            assert not sender_done.is_set()
            (peer,) = bookies.peers
            nursery.start_soon(peer.serve, bookies)
            await sender_done.wait()
            assert transport.queued_bytes(B1) <= 1000
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    assert sink.entry_ids == [0, 1]


async def test_wait_writable_returns_when_the_connection_is_lost() -> None:
    async with open_bookies(TransportConfig(queued_bytes_max=1000)) as (transport, bookies):
        bookies.is_reading, bookies.buffer_bytes_max = False, 100
        transport.post_adds(B1, 1, frames_of(1, range(2), size=70_000), range(2), RecordingSink())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(transport.wait_writable, [B1])
            await wait_all_tasks_blocked()
            await bookies.peers[0].stream.aclose()
        assert transport.queued_bytes(B1) == 0


async def test_the_repr_shows_the_state() -> None:
    async with open_bookies() as (transport, _):
        await transport.call(B1, ReadRequest(1, 0))
        assert repr(transport) == "<Transport 1 connections>"
    assert repr(transport) == "<Transport closed>"


# The numbers of connections


async def test_a_connection_has_its_own_number_from_connecting_to_loss() -> None:
    sink, may_connect = RecordingSink(), trio.Event()
    async with open_bookies() as (transport, bookies):
        bookies.before_dial = may_connect.wait
        post(transport, 1, [0], sink)
        await wait_all_tasks_blocked()
        assert transport.connection_to(B1, add_version=2) is None
        may_connect.set()
        await wait_all_tasks_blocked()
        first = transport.connection_to(B1, add_version=2)
        assert first is not None
        assert transport.connection_to(B1, add_version=3) is None
        assert transport.losses == 0
        await bookies.peers[0].stream.aclose()
        await wait_all_tasks_blocked()
        assert (transport.connection_to(B1, add_version=2), transport.losses) == (None, 1)
        assert sink.losses == []  # no reply was due
        post(transport, 1, [1], sink)
        await wait_all_tasks_blocked()
        assert transport.connection_to(B1, add_version=2) not in (None, first)


@pytest.mark.parametrize("version", [2, 3])
async def test_force_uses_the_connection_of_the_adds_that_it_syncs(version: Literal[2, 3]) -> None:
    async with open_bookies(TransportConfig(add_version=version)) as (transport, bookies):
        add = AddRequest(1, 0, b"k" * 20, b"\0" * 40, deferred_sync=True)
        await transport.call(B1, add)
        await transport.call(B1, ForceLedgerRequest(1))
        await transport.call(B1, BookieInfoRequest())
    with_adds = [
        peer for peer in bookies.peers if any(isinstance(one.request, AddRequest) for one in peer.requests)
    ]
    with_force = [
        peer
        for peer in bookies.peers
        if any(isinstance(one.request, ForceLedgerRequest) for one in peer.requests)
    ]
    assert with_adds == with_force
    assert len(with_adds) == 1


async def test_a_bookie_that_cannot_be_reached_is_one_line_a_minute(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "ledger.transport.bookie_connection")
    is_up = False

    async def refuse() -> None:
        if not is_up:
            raise OSError("refused")

    async with open_bookies() as (transport, bookies):
        bookies.before_dial = refuse

        async def call_often() -> int:
            caplog.clear()
            for _ in range(9):
                with contextlib.suppress(BookieUnavailableError):
                    await transport.call(B1, BookieInfoRequest())
            return sum("connecting failed" in line for line in caplog.messages)

        assert [await call_often(), await call_often()] == [1, 0]
        await trio.sleep(SAY_S)
        assert await call_often() == 1
        is_up = True
        await transport.call(B1, BookieInfoRequest())
        is_up = False
        await trio.aclose_forcefully(bookies.peers[-1].stream)
        await wait_all_tasks_blocked()
        assert await call_often() == 1
