"""A lost connection is told once to each who waits, and the next request finds a new one."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ledger.errors import BookieError, BookieSecurityError, BookieUnavailableError
from ledger.transport import Address, Transport, TransportConfig, open_transport
from ledger.wire.codes import Code
from ledger.wire.messages import (
    AddReply,
    BatchReadRequest,
    ReadRequest,
)

B1 = "b1:3181"


# Losing and finding again


async def test_a_loss_is_told_once_to_each_who_waits_and_the_next_request_dials_anew(stage: Any) -> None:
    first, second, idle = stage.Sink(), stage.Sink(), stage.Sink()
    async with stage.opened() as (transport, cluster):
        stage.post(transport, 3, [0], idle)
        await wait_all_tasks_blocked()
        cluster.answer = lambda _request: None
        stage.post(transport, 1, [0, 1], first)
        stage.post(transport, 1, [2], first)
        stage.post(transport, 1, [0], second)
        with pytest.raises(BookieUnavailableError, match="closed the connection"):  # noqa: PT012
            async with _one_error(), trio.open_nursery() as nursery:
                nursery.start_soon(transport.call, B1, ReadRequest(1, 0))
                await wait_all_tasks_blocked()
                await cluster.peers[0].stream.aclose()
        assert [len(sink.losses) for sink in (first, second, idle)] == [1, 1, 0]
        cluster.answer = stage.usual_answer
        stage.post(transport, 1, [0], first)
        assert (await transport.call(B1, ReadRequest(1, 0))).code is Code.OK
        await wait_all_tasks_blocked()
    assert first.entry_ids == [0]
    assert len(first.losses) == 1
    assert len(cluster.peers) == 2


@asynccontextmanager
async def _one_error() -> AsyncIterator[None]:
    try:
        yield
    except BaseExceptionGroup as group:
        (error,) = group.exceptions
        raise error from None


async def test_a_sink_may_post_again_while_it_is_told_of_the_loss(stage: Any) -> None:
    sink = stage.Sink()
    async with stage.opened() as (transport, cluster):
        cluster.answer = lambda _request: None
        stage.post(transport, 1, [0], sink)
        await wait_all_tasks_blocked()
        cluster.answer = stage.usual_answer
        sink.on_loss = lambda: stage.post(transport, 1, [0], sink)
        await cluster.peers[0].stream.aclose()
        await wait_all_tasks_blocked()
    assert sink.entry_ids == [0]
    assert len(sink.losses) == 1


async def test_a_failed_dial_is_told_with_address_and_reason(stage: Any) -> None:
    sink = stage.Sink()

    async def fail() -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    async def elsewhere(_bookie: str) -> Address:
        return Address("10.0.0.9", 3181)

    async with trio.open_nursery() as nursery:
        cluster = stage.Cluster(nursery)
        cluster.before_dial = fail
        async with open_transport(cluster.dial, elsewhere) as transport:
            stage.post(transport, 1, [0], sink)
            with pytest.raises(
                BookieUnavailableError, match=r"b1:3181: connecting to 10.0.0.9:3181 .*refused"
            ):
                await transport.call(B1, ReadRequest(1, 0))
    assert len(sink.losses) == 1


async def test_a_bookie_that_cannot_be_found_is_unavailable_for_that_reason(stage: Any) -> None:
    async def lost(bookie: str) -> Address:
        raise BookieUnavailableError(bookie, "not registered")

    async with trio.open_nursery() as nursery, open_transport(stage.Cluster(nursery).dial, lost) as transport:
        with pytest.raises(BookieUnavailableError, match="not registered"):
            await transport.call(B1, ReadRequest(1, 0))


async def test_connecting_has_its_own_time_limit(stage: Any, autojump_clock: MockClock) -> None:
    sink = stage.Sink()
    async with stage.opened(TransportConfig(connect_timeout_s=2)) as (transport, cluster):
        cluster.before_dial = trio.sleep_forever
        stage.post(transport, 1, [0], sink)
        with pytest.raises(BookieUnavailableError, match="no connection within 2 s"):
            await transport.call(B1, ReadRequest(1, 0))
        assert trio.current_time() == pytest.approx(2)
    assert len(sink.losses) == 1


async def test_an_old_bookie_that_closes_on_a_batch_read_costs_no_adds(stage: Any) -> None:
    sink = stage.Sink()
    async with stage.opened() as (transport, cluster):
        cluster.answer = lambda _request: None
        stage.post(transport, 1, [0], sink)
        async with trio.open_nursery() as nursery:

            async def close_it() -> None:
                await wait_all_tasks_blocked()
                for peer in cluster.peers:
                    if isinstance(peer.requests[0].request, BatchReadRequest):
                        await peer.stream.aclose()

            nursery.start_soon(close_it)
            with pytest.raises(BookieUnavailableError, match=r"older than 4\.17"):
                await transport.call(B1, BatchReadRequest(1, 0, 1, 10, 1000))
        assert sink.losses == []


async def test_a_bookie_that_breaks_the_protocol_is_dropped_with_the_reason(stage: Any) -> None:
    sink = stage.Sink()
    async with stage.opened() as (transport, cluster):
        cluster.answer = lambda _request: None
        stage.post(transport, 1, [0], sink)
        await wait_all_tasks_blocked()
        await cluster.peers[0].stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await wait_all_tasks_blocked()
    ((_, cause),) = sink.losses
    assert "broke the protocol: a frame says" in str(cause)


async def test_a_forgotten_sink_hears_nothing_more(stage: Any) -> None:
    forgotten, other = stage.Sink(), stage.Sink()
    async with stage.opened() as (transport, cluster):
        cluster.answer = lambda _request: None
        for sink in (forgotten, other):
            stage.post(transport, 1, [0], sink)
        await wait_all_tasks_blocked()
        transport.forget(1, forgotten)
        (peer,) = cluster.peers
        cluster.answer = stage.usual_answer
        await peer.reply(peer.requests[0], AddReply(Code.FENCED, 1, 0))
        await wait_all_tasks_blocked()
        assert other.answers == [(B1, Code.OK, [0])]
        cluster.answer = lambda _request: None
        stage.post(transport, 2, [0], forgotten)
        stage.post(transport, 2, [0], other)
        transport.forget(2)
        await peer.stream.aclose()
        await wait_all_tasks_blocked()
    assert (forgotten.answers, forgotten.losses, other.losses) == ([], [], [])


async def test_a_sink_forgotten_by_another_s_callback_is_not_told_of_the_same_loss(stage: Any) -> None:
    sinks = [stage.Sink(), stage.Sink()]
    async with stage.opened() as (transport, cluster):
        cluster.answer = lambda _request: None
        for ledger_id, sink in enumerate(sinks):
            sink.on_loss = lambda ledger_id=ledger_id: transport.forget(1 - ledger_id)  # type: ignore[misc]
            stage.post(transport, ledger_id, [0], sink)
        await wait_all_tasks_blocked()
        await cluster.peers[0].stream.aclose()
        await wait_all_tasks_blocked()
    assert sorted(len(sink.losses) for sink in sinks) == [0, 1]


# Closing


async def test_closing_tells_everyone_who_waits(stage: Any) -> None:
    sink, errors = stage.Sink(), []

    async def ask(transport: Transport) -> None:
        try:
            await transport.call(B1, ReadRequest(1, 0))
        except BookieError as exc:
            errors.append(str(exc))

    async with trio.open_nursery() as nursery, stage.opened() as (transport, cluster):
        cluster.answer = lambda _request: None
        stage.post(transport, 1, [0], sink)
        nursery.start_soon(ask, transport)
        await wait_all_tasks_blocked()
        sink.on_loss = lambda: stage.post(transport, 1, [0], sink)
    assert errors == ["bookie b1:3181: the transport was closed"]
    # Once for the connection, once for what was posted on the closed transport; not for ever.
    assert len(sink.losses) == 2
    with pytest.raises(BookieUnavailableError, match="closed"):
        await transport.call(B1, ReadRequest(1, 0))


class BreakingStream(trio.abc.Stream):
    """Takes everything, and breaks when something is received."""

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


@pytest.mark.parametrize(
    ("reason", "kind", "evidence"),
    [
        # In TLS 1.3 a certificate is refused after the client's side of the handshake is over.
        (ssl.SSLError(1, "tlsv13 alert certificate required"), BookieSecurityError, "certificate required"),
        (ssl.SSLEOFError(8, "EOF occurred"), BookieUnavailableError, "EOF occurred"),
        (ConnectionResetError(104, "Connection reset by peer"), BookieUnavailableError, "reset by peer"),
        (ValueError(), BookieUnavailableError, "ValueError"),
    ],
)
async def test_why_a_connection_broke_is_told_and_a_refusal_in_tls_as_such(
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
