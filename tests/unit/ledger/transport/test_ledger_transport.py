"""Requests go where they delay nobody; nothing waits for ever."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ledger.errors import BookieTimeoutError
from ledger.transport import TransportConfig, open_transport
from ledger.wire.codes import Code, Operation
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
)

B1 = "b1:3181"


# Asking and being answered


@pytest.mark.parametrize("version", [2, 3])
async def test_adds_and_calls_are_answered(stage: Any, version: int) -> None:
    sink = stage.Sink()
    async with stage.opened(TransportConfig(add_version=version)) as (transport, cluster):  # type: ignore[arg-type]
        stage.post(transport, 1, range(3), sink)
        assert await transport.call(B1, ReadRequest(1, 0)) == ReadReply(Code.OK, 1, 0, b"body")
        assert await transport.call(B1, BookieInfoRequest()) == BookieInfoReply(Code.OK, 2, 1)
        await wait_all_tasks_blocked()
    assert sink.entry_ids == [0, 1, 2]
    assert sink.losses == []
    assert [peer.requests[0].version for peer in cluster.peers] == [version, 3]


async def test_what_is_asked_while_connecting_is_sent_in_order(stage: Any) -> None:
    sink, connected = stage.Sink(), trio.Event()
    async with stage.opened() as (transport, cluster):
        cluster.before_dial = connected.wait
        stage.post(transport, 1, [0], sink)
        stage.post(transport, 1, [1, 2], sink)
        await wait_all_tasks_blocked()
        assert transport.queued_bytes(B1) == sum(map(len, stage.frames_of(1, range(3))))
        connected.set()
        await wait_all_tasks_blocked()
        assert transport.queued_bytes(B1) == 0
    assert sink.entry_ids == [0, 1, 2]
    assert len(cluster.peers) == 1


async def test_a_refusal_is_returned_as_it_is(stage: Any) -> None:
    async with stage.opened() as (transport, cluster):
        cluster.answer = lambda _request: RefusedReply(Code.UNAUTHORIZED, Operation.GET_BOOKIE_INFO)
        reply = await transport.call(B1, BookieInfoRequest())
    assert reply == RefusedReply(Code.UNAUTHORIZED, Operation.GET_BOOKIE_INFO)


async def test_a_sink_may_post_again_from_inside_its_callback(stage: Any) -> None:
    sink = stage.Sink()
    async with stage.opened() as (transport, _):
        sink.on_answer = lambda: (
            stage.post(transport, 1, [len(sink.answers)], sink) if len(sink.answers) < 4 else None
        )
        stage.post(transport, 1, [0], sink)
        await wait_all_tasks_blocked()
    assert sink.entry_ids == [0, 1, 2, 3]


async def test_a_long_poll_delays_nothing_else(stage: Any) -> None:
    sink = stage.Sink()
    async with stage.opened() as (transport, _), trio.open_nursery() as nursery:
        poll = ReadRequest(1, -1, previous_lac=4, timeout_ms=60_000, piggyback_entry=True)
        nursery.start_soon(transport.call, B1, poll)
        await wait_all_tasks_blocked()
        stage.post(transport, 1, [0], sink)
        assert (await transport.call(B1, BookieInfoRequest())).code is Code.OK
        assert (await transport.call(B1, ReadRequest(1, 0))).code is Code.OK
        nursery.cancel_scope.cancel()
    assert sink.entry_ids == [0]


async def test_an_add_with_deferred_sync_goes_over_version_3(stage: Any) -> None:
    sink = stage.Sink()
    async with stage.opened() as (transport, cluster):
        transport.post_adds(B1, 1, stage.frames_of(1, [0], version=3), [0], sink)
        request = attrs.evolve(stage.add(1, 1), deferred_sync=True)
        assert await transport.call(B1, request) == AddReply(Code.OK, 1, 1)
        await wait_all_tasks_blocked()
    assert sink.entry_ids == [0]
    assert [peer.requests[0].version for peer in cluster.peers] == [3]


async def test_adds_by_call_and_posted_ones_of_one_ledger_are_kept_apart(stage: Any) -> None:
    sink, codes = stage.Sink(), iter([Code.FENCED, Code.OK, Code.OK])
    async with stage.opened() as (transport, cluster):
        cluster.answer = lambda request: attrs.evolve(stage.usual_answer(request), code=next(codes))  # type: ignore[type-var]
        stage.post(transport, 1, [7], sink)
        replies: list[Reply] = []
        async with trio.open_nursery() as nursery:
            for _ in range(2):

                async def ask() -> None:
                    replies.append(await transport.call(B1, stage.add(1, 7)))

                nursery.start_soon(ask)
    assert sink.answers == [(B1, Code.FENCED, [7])]
    assert replies == [AddReply(Code.OK, 1, 7)] * 2


# Giving up


async def test_a_call_is_given_up_after_its_time(stage: Any, autojump_clock: MockClock) -> None:
    async with stage.opened(TransportConfig(request_timeout_s=3)) as (transport, cluster):
        cluster.answer = lambda _request: None
        for request, named, expected_s in [
            (ReadRequest(1, 0), None, 3),
            (BookieInfoRequest(), 1.5, 1.5),
            (stage.add(1, 0), None, 3),
            (ReadRequest(1, -1, previous_lac=3, timeout_ms=2000), None, 5),
        ]:
            started = trio.current_time()
            with pytest.raises(BookieTimeoutError, match="no answer"):
                await transport.call(B1, request, timeout_s=named)
            assert trio.current_time() - started == pytest.approx(expected_s)


async def test_a_cancelled_call_is_forgotten_and_its_late_answer_dropped(stage: Any) -> None:
    async with stage.opened() as (transport, cluster):
        cluster.answer = lambda _request: None
        for request in (ReadRequest(1, 0), stage.add(1, 0)):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(transport.call, B1, request)
                await wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
            (peer,) = cluster.peers
            async with trio.open_nursery() as nursery:
                replies: list[Reply] = []

                async def ask(
                    request: ReadRequest | AddRequest = request, into: list[Reply] = replies
                ) -> None:
                    into.append(await transport.call(B1, request))

                nursery.start_soon(ask)
                await wait_all_tasks_blocked()
                reply = stage.usual_answer(request)
                assert reply is not None
                await peer.reply(peer.requests[-2], attrs.evolve(reply, code=Code.IO_ERROR))  # type: ignore[type-var]
                await wait_all_tasks_blocked()
                assert replies == []
                await peer.reply(peer.requests[-1], reply)
            assert replies == [reply]


async def test_a_silent_bookie_is_given_up_and_every_ledger_it_owes_is_told(
    stage: Any,
    autojump_clock: MockClock,
) -> None:
    sinks = [stage.Sink() for _ in range(3)]
    async with stage.opened(TransportConfig(add_timeout_s=8)) as (transport, cluster):
        stage.post(transport, 2, [0], sinks[2])
        await wait_all_tasks_blocked()
        cluster.answer = lambda _request: None
        stage.post(transport, 0, [0, 1], sinks[0])
        stage.post(transport, 1, [0], sinks[1])
        started = trio.current_time()
        lost = trio.Event()
        sinks[1].on_loss = lost.set
        with trio.fail_after(60):
            await lost.wait()
        assert 8 <= trio.current_time() - started <= 10
        # Its answers come after all: nobody may take them, least of all for those of adds sent again.
        (peer,) = cluster.peers
        with pytest.raises(trio.BrokenResourceError):
            await peer.reply(peer.requests[-1], AddReply(Code.OK, 1, 0))
    assert [len(sink.losses) for sink in sinks] == [1, 1, 0]
    assert isinstance(sinks[0].losses[0][1], BookieTimeoutError)
    assert sinks[0].losses[0][1] is not sinks[1].losses[0][1], "each may raise it in a task of its own"
    assert sinks[0].answers == []


async def test_a_bookie_that_leaves_out_one_answer_is_given_up_once_the_rest_is_done(
    stage: Any,
    autojump_clock: MockClock,
) -> None:
    sink = stage.Sink()
    async with stage.opened(TransportConfig(add_timeout_s=4)) as (transport, cluster):
        cluster.answer = lambda r: (
            None if isinstance(r, AddRequest) and r.entry_id == 0 else stage.usual_answer(r)
        )
        lost = trio.Event()
        sink.on_loss = lost.set
        stage.post(transport, 1, range(100), sink)
        with trio.fail_after(60):
            await lost.wait()
    assert len(sink.entry_ids) == 99
    assert len(sink.losses) == 1


async def test_a_slow_bookie_that_keeps_answering_in_time_is_not_given_up(
    stage: Any, autojump_clock: MockClock
) -> None:
    sink = stage.Sink()
    async with stage.opened(TransportConfig(add_timeout_s=4)) as (transport, cluster):
        cluster.answer = lambda _request: None
        stage.post(transport, 1, range(3), sink)
        await wait_all_tasks_blocked()
        (peer,) = cluster.peers
        for entry_id in range(20):
            await trio.sleep(1.2)
            stage.post(transport, 1, [entry_id + 3], sink)
            await peer.reply(peer.requests[entry_id], AddReply(Code.OK, 1, entry_id))
        await wait_all_tasks_blocked()
        assert sink.losses == []
    assert sink.entry_ids == list(range(20))


async def test_an_idle_transport_keeps_no_clock_running(stage: Any, autojump_clock: MockClock) -> None:
    async with stage.opened() as (transport, _):
        stage.post(transport, 1, [0], stage.Sink())
        await trio.sleep(1000)
        assert trio.current_time() == pytest.approx(1000)
        assert not transport._is_ticking


# Waiting for room, and the end of the block


async def test_an_error_in_the_block_comes_out_as_it_is(stage: Any) -> None:
    with pytest.raises(ValueError, match="mine"):
        await _fail_inside(stage)


async def _fail_inside(stage: Any) -> None:
    async with open_transport(stage.Cluster.dial, stage.Cluster.dial):  # type: ignore[arg-type]  # never dialled
        raise ValueError("mine")


async def test_a_producer_waits_while_too_much_is_queued(stage: Any) -> None:
    sink, sender_done = stage.Sink(), trio.Event()
    async with stage.opened(TransportConfig(queued_bytes_max=1000)) as (transport, cluster):
        cluster.is_reading, cluster.buffer_bytes_max = False, 100
        transport.post_adds(B1, 1, stage.frames_of(1, range(2), size=70_000), range(2), sink)

        async def wait() -> None:
            await transport.wait_writable(["elsewhere:1", B1])
            sender_done.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            assert not sender_done.is_set()
            (peer,) = cluster.peers
            nursery.start_soon(peer.serve, cluster)
            await sender_done.wait()
            assert transport.queued_bytes(B1) <= 1000
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    assert sink.entry_ids == [0, 1]


async def test_a_producer_that_waits_goes_on_when_the_bookie_is_lost(stage: Any) -> None:
    async with stage.opened(TransportConfig(queued_bytes_max=1000)) as (transport, cluster):
        cluster.is_reading, cluster.buffer_bytes_max = False, 100
        transport.post_adds(B1, 1, stage.frames_of(1, range(2), size=70_000), range(2), stage.Sink())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(transport.wait_writable, [B1])
            await wait_all_tasks_blocked()
            await cluster.peers[0].stream.aclose()
        assert transport.queued_bytes(B1) == 0


async def test_it_says_what_it_is(stage: Any) -> None:
    async with stage.opened() as (transport, _):
        await transport.call(B1, ReadRequest(1, 0))
        assert repr(transport) == "<Transport 1 connections>"
    assert repr(transport) == "<Transport closed>"


# Which process is behind a connection


async def test_a_connection_has_a_number_of_its_own_from_when_it_is_made_until_it_is_lost(stage: Any) -> None:
    sink, may_connect = stage.Sink(), trio.Event()
    async with stage.opened() as (transport, cluster):
        cluster.before_dial = may_connect.wait
        stage.post(transport, 1, [0], sink)
        await wait_all_tasks_blocked()
        assert transport.connection_to(B1, add_version=2) is None
        may_connect.set()
        await wait_all_tasks_blocked()
        first = transport.connection_to(B1, add_version=2)
        assert first is not None
        assert transport.connection_to(B1, add_version=3) is None
        assert transport.losses == 0
        await cluster.peers[0].stream.aclose()
        await wait_all_tasks_blocked()
        assert (transport.connection_to(B1, add_version=2), transport.losses) == (None, 1)
        assert sink.losses == []  # no answer was due: nobody is told
        stage.post(transport, 1, [1], sink)
        await wait_all_tasks_blocked()
        assert transport.connection_to(B1, add_version=2) not in (None, first)


@pytest.mark.parametrize("version", [2, 3])
async def test_force_goes_over_the_connection_of_the_adds_that_it_syncs(stage: Any, version: int) -> None:
    async with stage.opened(TransportConfig(add_version=version)) as (transport, cluster):  # type: ignore[arg-type]
        add = AddRequest(1, 0, b"k" * 20, b"\0" * 40, deferred_sync=True)
        await transport.call(B1, add)
        await transport.call(B1, ForceLedgerRequest(1))
        await transport.call(B1, BookieInfoRequest())
    with_adds = [
        peer for peer in cluster.peers if any(isinstance(one.request, AddRequest) for one in peer.requests)
    ]
    with_force = [
        peer
        for peer in cluster.peers
        if any(isinstance(one.request, ForceLedgerRequest) for one in peer.requests)
    ]
    assert with_adds == with_force
    assert len(with_adds) == 1
