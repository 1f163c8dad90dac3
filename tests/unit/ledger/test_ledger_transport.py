"""Whoever asks a bookie is answered or told of the loss, once; nothing waits for ever."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ledger.digest import DigestType, EntryCodec
from ledger.errors import BookieError, BookieTimeoutError, BookieUnavailableError
from ledger.pipe import PipeStream, stream_pair
from ledger.transport import Address, Transport, TransportConfig, open_transport
from ledger.wire import v2, v3
from ledger.wire.codes import Code, Operation
from ledger.wire.frame import FrameBuffer
from ledger.wire.messages import (
    AddReply,
    AddRequest,
    BatchReadRequest,
    BookieInfoReply,
    BookieInfoRequest,
    ForceLedgerReply,
    ForceLedgerRequest,
    IncomingRequest,
    ReadReply,
    ReadRequest,
    RefusedReply,
    Reply,
)

B1 = "b1:3181"


def usual_answer(request: object) -> Reply | None:
    match request:
        case AddRequest():
            return AddReply(Code.OK, request.ledger_id, request.entry_id)
        case ReadRequest(previous_lac=None):
            return ReadReply(Code.OK, request.ledger_id, request.entry_id, b"body")
        case BookieInfoRequest():
            return BookieInfoReply(Code.OK, 2, 1)
        case ForceLedgerRequest():
            return ForceLedgerReply(Code.OK, request.ledger_id)
        case _:
            return None


class Peer:
    """The bookie's end of one connection."""

    def __init__(self, stream: PipeStream, address: Address) -> None:
        self.stream = stream
        self.address = address
        self.requests: list[IncomingRequest] = []

    async def reply(self, incoming: IncomingRequest, reply: Reply) -> None:
        codec = v3 if incoming.version == 3 else v2
        await self.stream.send_all(
            codec.encode_reply(
                reply,
                version=incoming.version,
                operation=incoming.operation,
                transaction_id=incoming.transaction_id,
            )
        )

    async def serve(self, cluster: Cluster) -> None:
        frames = FrameBuffer()
        try:
            while chunk := await self.stream.receive_some():
                data, payloads = frames.feed(chunk)
                for start, end in payloads:
                    codec = v2 if data[start] <= 7 else v3
                    incoming = codec.decode_request(data, start, end)
                    self.requests.append(incoming)
                    reply = cluster.answer(incoming.request)
                    if reply is not None:
                        await self.reply(incoming, reply)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # one side closed it, as many tests want


class Cluster:
    """Bookies made of pipes, and a dialler to them."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.peers: list[Peer] = []
        self.answer: Callable[[object], Reply | None] = usual_answer
        self.before_dial: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
        self.buffer_bytes_max = 1_048_576
        self.is_reading = True
        self.nursery = nursery

    async def dial(self, address: Address) -> trio.abc.Stream:
        await self.before_dial()
        ours, theirs = stream_pair(self.buffer_bytes_max)
        peer = Peer(theirs, address)
        self.peers.append(peer)
        if self.is_reading:
            self.nursery.start_soon(peer.serve, self)
        return ours

    @property
    def requests(self) -> list[object]:
        return [incoming.request for peer in self.peers for incoming in peer.requests]


async def resolve(bookie: str) -> Address:
    host, _, port = bookie.rpartition(":")
    return Address(host, int(port))


@asynccontextmanager
async def opened(config: TransportConfig | None = None) -> AsyncIterator[tuple[Transport, Cluster]]:
    async with trio.open_nursery() as nursery:
        cluster = Cluster(nursery)
        async with open_transport(cluster.dial, resolve, config) as transport:
            yield transport, cluster
        nursery.cancel_scope.cancel()


@attrs.define(eq=False)
class Sink:
    answers: list[tuple[str, Code, list[int]]] = attrs.field(factory=list)
    losses: list[tuple[str, Exception]] = attrs.field(factory=list)
    on_answer: Callable[[], None] = lambda: None
    on_loss: Callable[[], None] = lambda: None

    def adds_answered(self, bookie: str, code: Code, entry_ids: Sequence[int]) -> None:
        self.answers.append((bookie, code, list(entry_ids)))
        self.on_answer()

    def bookie_lost(self, bookie: str, cause: Exception) -> None:
        self.losses.append((bookie, cause))
        self.on_loss()

    @property
    def entry_ids(self) -> list[int]:
        return [entry_id for _, _, ids in self.answers for entry_id in ids]


def frames_of(ledger_id: int, entry_ids: Sequence[int], version: int = 2, size: int = 10) -> list[bytes]:
    encoder = (v2 if version == 2 else v3).AddEncoder(ledger_id, EntryCodec(DigestType.CRC32C, b""))
    return [encoder.encode(entry_id, -1, 0, bytes(size)) for entry_id in entry_ids]


def post(
    transport: Transport, ledger_id: int, entry_ids: Sequence[int], sink: Sink, bookie: str = B1
) -> None:
    version = transport.config.add_version
    transport.post_adds(bookie, ledger_id, frames_of(ledger_id, entry_ids, version), entry_ids, sink)


def add(ledger_id: int, entry_id: int) -> AddRequest:
    body = EntryCodec(DigestType.CRC32C, b"").pack(ledger_id, entry_id, -1, 0, b"")
    return AddRequest(ledger_id, entry_id, bytes(20), body)


# Asking and being answered


@pytest.mark.parametrize("version", [2, 3])
async def test_adds_and_calls_are_answered(version: int) -> None:
    sink = Sink()
    async with opened(TransportConfig(add_version=version)) as (transport, cluster):  # type: ignore[arg-type]
        post(transport, 1, range(3), sink)
        assert await transport.call(B1, ReadRequest(1, 0)) == ReadReply(Code.OK, 1, 0, b"body")
        assert await transport.call(B1, BookieInfoRequest()) == BookieInfoReply(Code.OK, 2, 1)
        await wait_all_tasks_blocked()
    assert sink.entry_ids == [0, 1, 2]
    assert sink.losses == []
    assert [peer.requests[0].version for peer in cluster.peers] == [version, 3]


async def test_what_is_asked_while_connecting_is_sent_in_order() -> None:
    sink, connected = Sink(), trio.Event()
    async with opened() as (transport, cluster):
        cluster.before_dial = connected.wait
        post(transport, 1, [0], sink)
        post(transport, 1, [1, 2], sink)
        await wait_all_tasks_blocked()
        assert transport.queued_bytes(B1) == sum(map(len, frames_of(1, range(3))))
        connected.set()
        await wait_all_tasks_blocked()
        assert transport.queued_bytes(B1) == 0
    assert sink.entry_ids == [0, 1, 2]
    assert len(cluster.peers) == 1


async def test_a_refusal_is_returned_as_it_is() -> None:
    async with opened() as (transport, cluster):
        cluster.answer = lambda _request: RefusedReply(Code.UNAUTHORIZED, Operation.GET_BOOKIE_INFO)
        reply = await transport.call(B1, BookieInfoRequest())
    assert reply == RefusedReply(Code.UNAUTHORIZED, Operation.GET_BOOKIE_INFO)


async def test_a_sink_may_post_again_from_inside_its_callback() -> None:
    sink = Sink()
    async with opened() as (transport, _):
        sink.on_answer = lambda: (
            post(transport, 1, [len(sink.answers)], sink) if len(sink.answers) < 4 else None
        )
        post(transport, 1, [0], sink)
        await wait_all_tasks_blocked()
    assert sink.entry_ids == [0, 1, 2, 3]


async def test_a_long_poll_delays_nothing_else() -> None:
    sink = Sink()
    async with opened() as (transport, _), trio.open_nursery() as nursery:
        poll = ReadRequest(1, -1, previous_lac=4, timeout_ms=60_000, piggyback_entry=True)
        nursery.start_soon(transport.call, B1, poll)
        await wait_all_tasks_blocked()
        post(transport, 1, [0], sink)
        assert (await transport.call(B1, BookieInfoRequest())).code is Code.OK
        assert (await transport.call(B1, ReadRequest(1, 0))).code is Code.OK
        nursery.cancel_scope.cancel()
    assert sink.entry_ids == [0]


async def test_an_add_with_deferred_sync_goes_over_version_3() -> None:
    sink = Sink()
    async with opened() as (transport, cluster):
        transport.post_adds(B1, 1, frames_of(1, [0], version=3), [0], sink)
        request = attrs.evolve(add(1, 1), deferred_sync=True)
        assert await transport.call(B1, request) == AddReply(Code.OK, 1, 1)
        await wait_all_tasks_blocked()
    assert sink.entry_ids == [0]
    assert [peer.requests[0].version for peer in cluster.peers] == [3]


async def test_adds_by_call_and_posted_ones_of_one_ledger_are_kept_apart() -> None:
    sink, codes = Sink(), iter([Code.FENCED, Code.OK, Code.OK])
    async with opened() as (transport, cluster):
        cluster.answer = lambda request: attrs.evolve(usual_answer(request), code=next(codes))  # type: ignore[type-var]
        post(transport, 1, [7], sink)
        replies: list[Reply] = []
        async with trio.open_nursery() as nursery:
            for _ in range(2):

                async def ask() -> None:
                    replies.append(await transport.call(B1, add(1, 7)))

                nursery.start_soon(ask)
    assert sink.answers == [(B1, Code.FENCED, [7])]
    assert replies == [AddReply(Code.OK, 1, 7)] * 2


# Giving up


async def test_a_call_is_given_up_after_its_time(autojump_clock: MockClock) -> None:
    async with opened(TransportConfig(request_timeout_s=3)) as (transport, cluster):
        cluster.answer = lambda _request: None
        for request, named, expected_s in [
            (ReadRequest(1, 0), None, 3),
            (BookieInfoRequest(), 1.5, 1.5),
            (add(1, 0), None, 3),
            (ReadRequest(1, -1, previous_lac=3, timeout_ms=2000), None, 5),
        ]:
            started = trio.current_time()
            with pytest.raises(BookieTimeoutError, match="no answer"):
                await transport.call(B1, request, timeout_s=named)
            assert trio.current_time() - started == pytest.approx(expected_s)


async def test_a_cancelled_call_is_forgotten_and_its_late_answer_dropped() -> None:
    async with opened() as (transport, cluster):
        cluster.answer = lambda _request: None
        for request in (ReadRequest(1, 0), add(1, 0)):
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
                reply = usual_answer(request)
                assert reply is not None
                await peer.reply(peer.requests[-2], attrs.evolve(reply, code=Code.IO_ERROR))  # type: ignore[type-var]
                await wait_all_tasks_blocked()
                assert replies == []
                await peer.reply(peer.requests[-1], reply)
            assert replies == [reply]


async def test_a_silent_bookie_is_given_up_and_every_ledger_it_owes_is_told(
    autojump_clock: MockClock,
) -> None:
    sinks = [Sink() for _ in range(3)]
    async with opened(TransportConfig(add_timeout_s=8)) as (transport, cluster):
        post(transport, 2, [0], sinks[2])
        await wait_all_tasks_blocked()
        cluster.answer = lambda _request: None
        post(transport, 0, [0, 1], sinks[0])
        post(transport, 1, [0], sinks[1])
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
    autojump_clock: MockClock,
) -> None:
    sink = Sink()
    async with opened(TransportConfig(add_timeout_s=4)) as (transport, cluster):
        cluster.answer = lambda r: None if isinstance(r, AddRequest) and r.entry_id == 0 else usual_answer(r)
        lost = trio.Event()
        sink.on_loss = lost.set
        post(transport, 1, range(100), sink)
        with trio.fail_after(60):
            await lost.wait()
    assert len(sink.entry_ids) == 99
    assert len(sink.losses) == 1


async def test_a_slow_bookie_that_keeps_answering_in_time_is_not_given_up(autojump_clock: MockClock) -> None:
    sink = Sink()
    async with opened(TransportConfig(add_timeout_s=4)) as (transport, cluster):
        cluster.answer = lambda _request: None
        post(transport, 1, range(3), sink)
        await wait_all_tasks_blocked()
        (peer,) = cluster.peers
        for entry_id in range(20):
            await trio.sleep(1.2)
            post(transport, 1, [entry_id + 3], sink)
            await peer.reply(peer.requests[entry_id], AddReply(Code.OK, 1, entry_id))
        await wait_all_tasks_blocked()
        assert sink.losses == []
    assert sink.entry_ids == list(range(20))


async def test_an_idle_transport_keeps_no_clock_running(autojump_clock: MockClock) -> None:
    async with opened() as (transport, _):
        post(transport, 1, [0], Sink())
        await trio.sleep(1000)
        assert trio.current_time() == pytest.approx(1000)
        assert not transport._is_ticking


# Losing and finding again


async def test_a_loss_is_told_once_to_each_who_waits_and_the_next_request_dials_anew() -> None:
    first, second, idle = Sink(), Sink(), Sink()
    async with opened() as (transport, cluster):
        post(transport, 3, [0], idle)
        await wait_all_tasks_blocked()
        cluster.answer = lambda _request: None
        post(transport, 1, [0, 1], first)
        post(transport, 1, [2], first)
        post(transport, 1, [0], second)
        with pytest.raises(BookieUnavailableError, match="closed the connection"):  # noqa: PT012
            async with _one_error(), trio.open_nursery() as nursery:
                nursery.start_soon(transport.call, B1, ReadRequest(1, 0))
                await wait_all_tasks_blocked()
                await cluster.peers[0].stream.aclose()
        assert [len(sink.losses) for sink in (first, second, idle)] == [1, 1, 0]
        cluster.answer = usual_answer
        post(transport, 1, [0], first)
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


async def test_a_sink_may_post_again_while_it_is_told_of_the_loss() -> None:
    sink = Sink()
    async with opened() as (transport, cluster):
        cluster.answer = lambda _request: None
        post(transport, 1, [0], sink)
        await wait_all_tasks_blocked()
        cluster.answer = usual_answer
        sink.on_loss = lambda: post(transport, 1, [0], sink)
        await cluster.peers[0].stream.aclose()
        await wait_all_tasks_blocked()
    assert sink.entry_ids == [0]
    assert len(sink.losses) == 1


async def test_a_failed_dial_is_told_with_address_and_reason() -> None:
    sink = Sink()

    async def fail() -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    async def elsewhere(_bookie: str) -> Address:
        return Address("10.0.0.9", 3181)

    async with trio.open_nursery() as nursery:
        cluster = Cluster(nursery)
        cluster.before_dial = fail
        async with open_transport(cluster.dial, elsewhere) as transport:
            post(transport, 1, [0], sink)
            with pytest.raises(
                BookieUnavailableError, match=r"b1:3181: connecting to 10.0.0.9:3181 .*refused"
            ):
                await transport.call(B1, ReadRequest(1, 0))
    assert len(sink.losses) == 1


async def test_a_bookie_that_cannot_be_found_is_unavailable_for_that_reason() -> None:
    async def lost(bookie: str) -> Address:
        raise BookieUnavailableError(bookie, "not registered")

    async with trio.open_nursery() as nursery, open_transport(Cluster(nursery).dial, lost) as transport:
        with pytest.raises(BookieUnavailableError, match="not registered"):
            await transport.call(B1, ReadRequest(1, 0))


async def test_connecting_has_its_own_time_limit(autojump_clock: MockClock) -> None:
    sink = Sink()
    async with opened(TransportConfig(connect_timeout_s=2)) as (transport, cluster):
        cluster.before_dial = trio.sleep_forever
        post(transport, 1, [0], sink)
        with pytest.raises(BookieUnavailableError, match="no connection within 2 s"):
            await transport.call(B1, ReadRequest(1, 0))
        assert trio.current_time() == pytest.approx(2)
    assert len(sink.losses) == 1


async def test_an_old_bookie_that_closes_on_a_batch_read_costs_no_adds() -> None:
    sink = Sink()
    async with opened() as (transport, cluster):
        cluster.answer = lambda _request: None
        post(transport, 1, [0], sink)
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


async def test_a_bookie_that_breaks_the_protocol_is_dropped_with_the_reason() -> None:
    sink = Sink()
    async with opened() as (transport, cluster):
        cluster.answer = lambda _request: None
        post(transport, 1, [0], sink)
        await wait_all_tasks_blocked()
        await cluster.peers[0].stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await wait_all_tasks_blocked()
    ((_, cause),) = sink.losses
    assert "broke the protocol: a frame says" in str(cause)


async def test_a_forgotten_sink_hears_nothing_more() -> None:
    forgotten, other = Sink(), Sink()
    async with opened() as (transport, cluster):
        cluster.answer = lambda _request: None
        for sink in (forgotten, other):
            post(transport, 1, [0], sink)
        await wait_all_tasks_blocked()
        transport.forget(1, forgotten)
        (peer,) = cluster.peers
        cluster.answer = usual_answer
        await peer.reply(peer.requests[0], AddReply(Code.FENCED, 1, 0))
        await wait_all_tasks_blocked()
        assert other.answers == [(B1, Code.OK, [0])]
        cluster.answer = lambda _request: None
        post(transport, 2, [0], forgotten)
        post(transport, 2, [0], other)
        transport.forget(2)
        await peer.stream.aclose()
        await wait_all_tasks_blocked()
    assert (forgotten.answers, forgotten.losses, other.losses) == ([], [], [])


async def test_a_sink_forgotten_by_another_s_callback_is_not_told_of_the_same_loss() -> None:
    sinks = [Sink(), Sink()]
    async with opened() as (transport, cluster):
        cluster.answer = lambda _request: None
        for ledger_id, sink in enumerate(sinks):
            sink.on_loss = lambda ledger_id=ledger_id: transport.forget(1 - ledger_id)  # type: ignore[misc]
            post(transport, ledger_id, [0], sink)
        await wait_all_tasks_blocked()
        await cluster.peers[0].stream.aclose()
        await wait_all_tasks_blocked()
    assert sorted(len(sink.losses) for sink in sinks) == [0, 1]


# Closing, and waiting for room


async def test_closing_tells_everyone_who_waits() -> None:
    sink, errors = Sink(), []

    async def ask(transport: Transport) -> None:
        try:
            await transport.call(B1, ReadRequest(1, 0))
        except BookieError as exc:
            errors.append(str(exc))

    async with trio.open_nursery() as nursery, opened() as (transport, cluster):
        cluster.answer = lambda _request: None
        post(transport, 1, [0], sink)
        nursery.start_soon(ask, transport)
        await wait_all_tasks_blocked()
        sink.on_loss = lambda: post(transport, 1, [0], sink)
    assert errors == ["bookie b1:3181: the transport was closed"]
    # Once for the connection, once for what was posted on the closed transport; not for ever.
    assert len(sink.losses) == 2
    with pytest.raises(BookieUnavailableError, match="closed"):
        await transport.call(B1, ReadRequest(1, 0))


async def test_an_error_in_the_block_comes_out_as_it_is() -> None:
    with pytest.raises(ValueError, match="mine"):
        await _fail_inside()


async def _fail_inside() -> None:
    async with open_transport(Cluster.dial, resolve):  # type: ignore[arg-type]  # never dialled
        raise ValueError("mine")


async def test_a_producer_waits_while_too_much_is_queued() -> None:
    sink, sender_done = Sink(), trio.Event()
    async with opened(TransportConfig(queued_bytes_max=1000)) as (transport, cluster):
        cluster.is_reading, cluster.buffer_bytes_max = False, 100
        transport.post_adds(B1, 1, frames_of(1, range(2), size=70_000), range(2), sink)

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


async def test_a_producer_that_waits_goes_on_when_the_bookie_is_lost() -> None:
    async with opened(TransportConfig(queued_bytes_max=1000)) as (transport, cluster):
        cluster.is_reading, cluster.buffer_bytes_max = False, 100
        transport.post_adds(B1, 1, frames_of(1, range(2), size=70_000), range(2), Sink())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(transport.wait_writable, [B1])
            await wait_all_tasks_blocked()
            await cluster.peers[0].stream.aclose()
        assert transport.queued_bytes(B1) == 0


async def test_it_says_what_it_is() -> None:
    async with opened() as (transport, _):
        await transport.call(B1, ReadRequest(1, 0))
        assert repr(transport) == "<Transport 1 connections>"
    assert repr(transport) == "<Transport closed>"
