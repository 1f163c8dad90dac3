"""A pending request completes exactly once, unless it is forgotten."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ledger.codes import Code
from ledger.errors import (
    BookieError,
    BookieTimeoutError,
    BookieUnavailableError,
)
from ledger.transport.transport import TransportConfig
from ledger.wire.messages import (
    AddReply,
    BookieInfoRequest,
    ReadReply,
    ReadRequest,
    Reply,
    Request,
)
from tests.fakes.scripted_bookies import (
    B1,
    add_request,
    open_bookies,
    request_timers,
    usual_reply,
)


async def test_on_reply_is_called_once_and_not_before_send_returns() -> None:
    results: list[Reply | BookieError] = []
    async with open_bookies() as (transport, _):
        for request in (ReadRequest(1, 7), BookieInfoRequest(), add_request(1, 8)):
            transport.send(B1, request, results.append)
        assert results == [], "on_reply must not be called before send returns"
        await wait_all_tasks_blocked()
    replies = {type(reply): reply for reply in results}
    assert replies[ReadReply] == ReadReply(Code.OK, 1, 7, b"body")
    assert replies[AddReply] == AddReply(Code.OK, 1, 8)
    assert len(results) == 3


async def test_on_reply_may_send_again_at_once() -> None:
    results: list[Reply | BookieError] = []
    async with open_bookies() as (transport, _):

        def send_next(reply: Reply | BookieError) -> None:
            results.append(reply)
            if len(results) < 5:
                transport.send(B1, ReadRequest(1, len(results)), send_next)

        transport.send(B1, ReadRequest(1, 0), send_next)
        await wait_all_tasks_blocked()
    assert results == [ReadReply(Code.OK, 1, entry_id, b"body") for entry_id in range(5)]


@pytest.mark.parametrize("make_request", [lambda: ReadRequest(1, 0), lambda: add_request(1, 0)])
async def test_a_timeout_is_reported_once_and_a_late_reply_is_dropped(
    autojump_clock: MockClock, make_request: Callable[[], Request]
) -> None:
    results: list[Reply | BookieError] = []
    config = TransportConfig(request_timeout_s=3, add_timeout_s=100)
    async with open_bookies(config) as (transport, bookies):
        bookies.reply_to = lambda _request: None
        transport.send(B1, make_request(), results.append)
        await trio.sleep(2.9)
        assert results == []
        await trio.sleep(0.2)
        assert [type(one) for one in results] == [BookieTimeoutError]
        assert "within 3 s" in str(results[0])
        (incoming,) = bookies.peers[0].requests
        late = usual_reply(incoming.request)
        assert late is not None
        await bookies.peers[0].reply(incoming, late)
        await trio.sleep(10)
        assert len(results) == 1
        bookies.reply_to = usual_reply
        transport.send(B1, ReadRequest(1, 0), results.append)
        await trio.sleep(1)
    assert results[1:] == [ReadReply(Code.OK, 1, 0, b"body")]


async def test_a_forgotten_request_gets_no_reply_no_loss_and_no_timeout(autojump_clock: MockClock) -> None:
    results: list[Reply | BookieError] = []
    async with open_bookies(TransportConfig(request_timeout_s=3)) as (transport, bookies):
        for end in ("reply", "loss", "timeout"):
            bookies.reply_to = usual_reply if end == "reply" else lambda _request: None
            for request in (ReadRequest(1, 0), BookieInfoRequest(), add_request(1, 0)):
                transport.send(B1, request, results.append).forget()
            if end == "loss":
                await wait_all_tasks_blocked()
                for peer in bookies.peers:
                    await peer.stream.aclose()
            await trio.sleep(10 if end == "timeout" else 1)
        assert request_timers(transport) == 0
    assert results == []


async def test_a_lost_connection_completes_each_request_once_with_the_reason() -> None:
    results: list[Reply | BookieError] = []
    async with open_bookies() as (transport, bookies):
        bookies.reply_to = lambda _request: None
        for request in (ReadRequest(1, 0), add_request(1, 0)):
            transport.send(B1, request, results.append)
        await wait_all_tasks_blocked()
        await bookies.peers[0].stream.aclose()
        await wait_all_tasks_blocked()
        assert request_timers(transport) == 0
    assert [type(one) for one in results] == [BookieUnavailableError] * 2
    assert results[0] is not results[1], "each may be raised in its own task"


async def test_closing_the_transport_completes_requests_and_later_ones_raise() -> None:
    results: list[Reply | BookieError] = []
    async with open_bookies() as (transport, bookies):
        bookies.reply_to = lambda _request: None
        transport.send(B1, ReadRequest(1, 0), results.append)
        await wait_all_tasks_blocked()
    assert [type(one) for one in results] == [BookieUnavailableError]
    with pytest.raises(BookieUnavailableError, match="closed"):
        transport.send(B1, ReadRequest(1, 0), results.append)
    assert len(results) == 1


async def test_adds_with_replies_leave_no_state_on_the_connection() -> None:
    """A client that recovers many ledgers adds a few entries to each."""
    results: list[Reply | BookieError] = []

    async with open_bookies() as (transport, _):

        def send_more(reply: Reply | BookieError) -> None:
            results.append(reply)
            transport.send(B1, add_request(1, 0), results.append)
            transport.send(B1, add_request(1, 1), results.append)

        transport.send(B1, add_request(1, 0), send_more)
        for ledger_id in range(2, 50):
            for entry_id in (0, 1):
                reply = await transport.call(B1, add_request(ledger_id, entry_id))
                assert reply == AddReply(Code.OK, ledger_id, entry_id)
        await wait_all_tasks_blocked()
        assert results == [AddReply(Code.OK, 1, entry_id) for entry_id in (0, 0, 1)]
        (connection,) = transport._data_connections.values()
        assert not connection._single_adds


async def test_each_reply_to_a_long_poll_that_goes_on_gives_the_next_one_the_whole_time(
    autojump_clock: MockClock,
) -> None:
    results: list[Reply | BookieError] = []
    async with open_bookies(TransportConfig(request_timeout_s=3)) as (transport, bookies):
        bookies.reply_to = lambda _request: None
        request = ReadRequest(1, -1, previous_lac=0, timeout_ms=1000, replies_max=9)
        transport.send(B1, request, results.append)
        more = ReadReply(Code.OK, 1, -1, b"body", more_follow=True)
        for count in range(1, 4):
            await trio.sleep(3.9)
            await bookies.peers[0].reply(bookies.peers[0].requests[0], more)
            await wait_all_tasks_blocked()
            assert results == [more] * count
        await trio.sleep(3.9)
        assert results == [more] * 3
        await trio.sleep(0.2)
        assert [type(one) for one in results[3:]] == [BookieTimeoutError]
