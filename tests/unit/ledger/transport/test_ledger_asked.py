"""Questions that nobody waits for in a task: told once, or taken back."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ledger.add_lanes import SILENT_TICKS
from ledger.errors import (
    BookieError,
    BookieTimeoutError,
    BookieUnavailableError,
)
from ledger.transport import TransportConfig
from ledger.wire.codes import Code
from ledger.wire.messages import (
    AddReply,
    BookieInfoRequest,
    ReadReply,
    ReadRequest,
    Reply,
)

B1 = "b1:3181"


def timers_of_questions(transport: Any) -> int:
    """Running timers, but for the one that looks for silence."""
    tick_s = transport.config.add_timeout_s / SILENT_TICKS
    return sum(len(row) for seconds, row in transport.timers._rows.items() if seconds != tick_s)


async def test_who_asks_is_told_the_answer_once_and_later(stage: Any) -> None:
    told: list[Reply | BookieError] = []
    async with stage.opened() as (transport, _):
        for request in (ReadRequest(1, 7), BookieInfoRequest(), stage.add(1, 8)):
            transport.ask(B1, request, told.append)
        assert told == [], "never from inside: who asks may not be ready for the answer"
        await wait_all_tasks_blocked()
    replies = {type(reply): reply for reply in told}
    assert replies[ReadReply] == ReadReply(Code.OK, 1, 7, b"body")
    assert replies[AddReply] == AddReply(Code.OK, 1, 8)
    assert len(told) == 3


async def test_who_is_told_may_ask_again_at_once(stage: Any) -> None:
    told: list[Reply | BookieError] = []
    async with stage.opened() as (transport, _):

        def and_the_next(reply: Reply | BookieError) -> None:
            told.append(reply)
            if len(told) < 5:
                transport.ask(B1, ReadRequest(1, len(told)), and_the_next)

        transport.ask(B1, ReadRequest(1, 0), and_the_next)
        await wait_all_tasks_blocked()
    assert told == [ReadReply(Code.OK, 1, entry_id, b"body") for entry_id in range(5)]


@pytest.mark.parametrize("request_of", [lambda stage: ReadRequest(1, 0), lambda stage: stage.add(1, 0)])
async def test_too_long_without_an_answer_is_told_once_and_a_late_answer_dropped(
    stage: Any, autojump_clock: MockClock, request_of: Any
) -> None:
    told: list[Reply | BookieError] = []
    config = TransportConfig(request_timeout_s=3, add_timeout_s=100)
    async with stage.opened(config) as (transport, cluster):
        cluster.answer = lambda _request: None
        transport.ask(B1, request_of(stage), told.append)
        await trio.sleep(2.9)
        assert told == []
        await trio.sleep(0.2)
        assert [type(one) for one in told] == [BookieTimeoutError]
        assert "within 3 s" in str(told[0])
        (incoming,) = cluster.peers[0].requests
        await cluster.peers[0].reply(incoming, stage.usual_answer(incoming.request))
        await trio.sleep(10)
        assert len(told) == 1
        cluster.answer = stage.usual_answer
        transport.ask(B1, ReadRequest(1, 0), told.append)
        await trio.sleep(1)
    assert told[1:] == [ReadReply(Code.OK, 1, 0, b"body")]


async def test_a_question_taken_back_is_not_told_of_answer_loss_or_time(
    stage: Any, autojump_clock: MockClock
) -> None:
    told: list[Reply | BookieError] = []
    async with stage.opened(TransportConfig(request_timeout_s=3)) as (transport, cluster):
        for end in ("answer", "loss", "time"):
            cluster.answer = stage.usual_answer if end == "answer" else lambda _request: None
            for request in (ReadRequest(1, 0), BookieInfoRequest(), stage.add(1, 0)):
                transport.ask(B1, request, told.append).forget()
            if end == "loss":
                await wait_all_tasks_blocked()
                for peer in cluster.peers:
                    await peer.stream.aclose()
            await trio.sleep(10 if end == "time" else 1)
        assert timers_of_questions(transport) == 0
    assert told == []


async def test_losing_the_connection_is_told_once_with_the_reason(stage: Any) -> None:
    told: list[Reply | BookieError] = []
    async with stage.opened() as (transport, cluster):
        cluster.answer = lambda _request: None
        for request in (ReadRequest(1, 0), stage.add(1, 0)):
            transport.ask(B1, request, told.append)
        await wait_all_tasks_blocked()
        await cluster.peers[0].stream.aclose()
        await wait_all_tasks_blocked()
        assert timers_of_questions(transport) == 0
    assert [type(one) for one in told] == [BookieUnavailableError] * 2
    assert told[0] is not told[1], "each may be raised in a task of its own"


async def test_closing_the_transport_tells_who_waits_and_nothing_can_be_asked_any_more(stage: Any) -> None:
    told: list[Reply | BookieError] = []
    async with stage.opened() as (transport, cluster):
        cluster.answer = lambda _request: None
        transport.ask(B1, ReadRequest(1, 0), told.append)
        await wait_all_tasks_blocked()
    assert [type(one) for one in told] == [BookieUnavailableError]
    with pytest.raises(BookieUnavailableError, match="closed"):
        transport.ask(B1, ReadRequest(1, 0), told.append)
    assert len(told) == 1


async def test_adds_that_were_answered_leave_nothing_behind_on_the_connection(stage: Any) -> None:
    """A client that recovers many ledgers writes to many, each a few times."""
    told: list[object] = []

    async with stage.opened() as (transport, _):

        def again(reply: object) -> None:
            told.append(reply)
            transport.ask(B1, stage.add(1, 0), told.append)
            transport.ask(B1, stage.add(1, 1), told.append)

        transport.ask(B1, stage.add(1, 0), again)
        for ledger_id in range(2, 50):
            for entry_id in (0, 1):
                reply = await transport.call(B1, stage.add(ledger_id, entry_id))
                assert (reply.ledger_id, reply.entry_id) == (ledger_id, entry_id)
        await wait_all_tasks_blocked()
        assert [(reply.code, reply.entry_id) for reply in told] == [(Code.OK, 0), (Code.OK, 0), (Code.OK, 1)]
        (line,) = transport._data_lines.values()
        assert not line._called_adds
