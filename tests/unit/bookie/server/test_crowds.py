"""Many connections that do the same thing at once: each step of the loop does a bounded part of it."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import trio
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from bookie.requests.session import BookieService
from bookie.requests.turns import CLOSE_UNITS, HANDSHAKE_UNITS, STEP_UNITS, Turns
from bookie.server import server as server_module
from bookie.server.config import ServerConfig
from bookie.server.connection import Connection
from bookie.server.handshake import shake_hands
from bookie.server.server import Server
from tests.fakes.service_by_hand import HandDisk
from tests.unit.bookie.requests.test_turns import SLOW_FRAME, Work
from tests.unit.bookie.server.gated_bookie import Certificates, Words

CROWD = 300
CLOSED_IN_STEP_MAX = STEP_UNITS // CLOSE_UNITS + 1


class WaitingDisk(HandDisk):
    must_wait = True

    async def wait_capacity(self) -> None:
        return


@pytest.fixture
async def work() -> AsyncIterator[Work]:
    counter = Work()
    trio.lowlevel.add_instrument(counter)
    yield counter
    trio.lowlevel.remove_instrument(counter)


Open = Callable[..., Server]


@pytest.fixture
def open_server(work: Work, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Makes a server whose ended connections are counted."""

    def make(**config: object) -> Server:
        server = Server(
            BookieService(WaitingDisk()),  # type: ignore[arg-type]
            ServerConfig(connections_max=0, **config),  # type: ignore[arg-type]
        )
        leave = server.admitted.leave

        def counted(peer: object) -> None:
            work.done("end")
            leave(peer)  # type: ignore[arg-type]

        monkeypatch.setattr(server.admitted, "leave", counted)
        return server

    return make


@pytest.fixture
def server(open_server: Open) -> Server:
    return open_server()


async def connect(
    server: Server,
    nursery: trio.Nursery,
    wrapped: Callable[[trio.abc.Stream], trio.abc.Stream] = lambda stream: stream,
) -> list[trio.abc.Stream]:
    """``wrapped``: makes the bookie's end of each connection."""
    ends: list[trio.abc.Stream] = []
    for _ in range(CROWD):
        ours, theirs = memory_stream_pair()
        ends.append(ours)
        nursery.start_soon(server.serve_stream, wrapped(theirs))
    await wait_all_tasks_blocked()
    assert server.connections_count == CROWD
    return ends


async def do_at_once(
    ends: list[trio.abc.Stream], act: Callable[[trio.abc.Stream], Awaitable[object]]
) -> None:
    async with trio.open_nursery() as nursery:
        for end in ends:
            nursery.start_soon(act, end)
    await wait_all_tasks_blocked()


@pytest.mark.slow
async def test_a_crowd_that_disconnects_at_once_is_taken_leave_of_in_many_steps(
    server: Server, work: Work, nursery: trio.Nursery
) -> None:
    ends = await connect(server, nursery)
    await do_at_once(ends, trio.aclose_forcefully)
    assert server.connections_count == 0
    assert work.total["end"] == CROWD
    assert work.most_in_step["end"] <= CLOSED_IN_STEP_MAX


@pytest.mark.slow
async def test_a_crowd_that_sends_garbage_at_once_is_closed_in_many_steps(
    server: Server, work: Work, nursery: trio.Nursery
) -> None:
    ends = await connect(server, nursery)
    await do_at_once(ends, lambda end: end.send_all(b"\0\0\0\4\xff\xff\xff\xff"))
    assert server.connections_count == 0
    assert work.most_in_step["end"] <= CLOSED_IN_STEP_MAX


@pytest.mark.slow
async def test_a_crowd_that_is_overdue_is_closed_in_many_steps(
    server: Server,
    work: Work,
    nursery: trio.Nursery,
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await connect(server, nursery)
    nursery.start_soon(server.sweep)
    await trio.sleep(60)
    assert server.connections_count == 0
    assert work.total["end"] >= CROWD
    assert work.most_in_step["end"] <= 2 * server_module._CLOSE_STEP


@pytest.mark.slow
async def test_a_crowd_is_watched_in_many_steps_once_memory_is_tight(
    server: Server, work: Work, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    await connect(server, nursery)
    monkeypatch.setattr(server_module, "_WATCH_STEP", 16)
    watch = Connection.watch

    def counted(connection: Connection) -> None:
        work.done("watch")
        watch(connection)

    monkeypatch.setattr(Connection, "watch", counted)
    server.memory.take(server.memory.bytes_max)
    await wait_all_tasks_blocked()
    assert work.total["watch"] == CROWD
    assert work.most_in_step["watch"] <= 16
    server.memory.give_back(server.memory.bytes_max)


class SendingStream(trio.abc.Stream):
    """The bookie's end of a connection, whose sends are those of the test."""

    def __init__(
        self, stream: trio.abc.Stream, send_all: Callable[[bytes | bytearray | memoryview], Awaitable[None]]
    ) -> None:
        self._stream, self._send_all = stream, send_all

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(max_bytes)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._stream.aclose()


@pytest.mark.slow
async def test_a_crowd_that_is_not_authenticated_in_time_is_closed_in_many_steps(
    open_server: Open, work: Work, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    server = open_server(auth=Words(), authentication_s=10.0)
    await connect(server, nursery)
    await trio.sleep(11)
    assert server.connections_count == 0
    assert work.total["end"] == CROWD
    assert work.most_in_step["end"] <= CLOSED_IN_STEP_MAX


@pytest.mark.slow
async def test_a_crowd_that_takes_no_replies_is_closed_in_many_steps(
    open_server: Open, work: Work, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    server = open_server(response_timeout_s=10.0)

    async def send_all(_: object) -> None:
        await trio.sleep_forever()

    ends = await connect(server, nursery, lambda stream: SendingStream(stream, send_all))
    await do_at_once(ends, lambda end: end.send_all(SLOW_FRAME))
    await trio.sleep(21)
    assert server.connections_count == 0
    assert work.total["end"] == CROWD
    assert work.most_in_step["end"] <= CLOSED_IN_STEP_MAX


@pytest.mark.slow
async def test_a_crowd_whose_connections_break_while_replies_are_sent_is_closed_in_many_steps(
    server: Server, work: Work, nursery: trio.Nursery
) -> None:
    broken = trio.Event()

    async def send_all(_: object) -> None:
        await broken.wait()
        raise trio.BrokenResourceError

    ends = await connect(server, nursery, lambda stream: SendingStream(stream, send_all))
    await do_at_once(ends, lambda end: end.send_all(SLOW_FRAME))
    broken.set()
    await wait_all_tasks_blocked()
    assert server.connections_count == 0
    assert work.total["end"] == CROWD
    assert work.most_in_step["end"] <= CLOSED_IN_STEP_MAX


@pytest.mark.slow
async def test_a_crowd_that_holds_parts_of_frames_while_memory_is_exhausted_is_closed_in_many_steps(
    open_server: Open, work: Work, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    server = open_server(share_bytes_min=1024, stalled_s=10.0)
    ends = await connect(server, nursery)
    server.memory.take(server.memory.bytes_max)
    await do_at_once(ends, lambda end: end.send_all((100_000).to_bytes(4, "big") + bytes(50_000)))
    await trio.sleep(11)
    assert server.connections_count == 0
    assert work.total["end"] == CROWD
    assert work.most_in_step["end"] <= CLOSED_IN_STEP_MAX
    server.memory.give_back(server.memory.bytes_max)


def client_hello(context: ssl.SSLContext) -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="bookie.test").do_handshake()
    return outgoing.read()


@pytest.mark.slow
async def test_a_crowd_of_handshakes_is_computed_in_many_steps_and_silent_ones_delay_no_other(
    certificates: Certificates, work: Work, nursery: trio.Nursery
) -> None:
    def counted(stream: trio.abc.Stream) -> SendingStream:
        async def send_all(data: bytes | bytearray | memoryview) -> None:
            work.done("handshake")  # TLS has computed its first reply
            await stream.send_all(data)

        return SendingStream(stream, send_all)

    turns, context = Turns(), ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    ends: list[trio.abc.Stream] = []
    for _ in range(60):
        ours, theirs = memory_stream_pair()
        ends.append(ours)
        nursery.start_soon(shake_hands, counted(theirs), certificates.bookie, turns)
    await wait_all_tasks_blocked()
    hellos = [client_hello(context) for _ in ends]
    async with trio.open_nursery() as sending:
        for end, hello in zip(ends, hellos, strict=True):
            sending.start_soon(end.send_all, hello)
    await wait_all_tasks_blocked()
    assert work.total["handshake"] == len(ends)
    assert work.most_in_step["handshake"] <= STEP_UNITS // HANDSHAKE_UNITS + 1
    # All of them are silent from now on.
    ours, theirs = memory_stream_pair()
    encrypted: list[trio.SSLStream[trio.abc.Stream]] = []

    async def serve() -> None:
        encrypted.append(await shake_hands(theirs, certificates.bookie, turns))
        assert encrypted[0].transport_stream is theirs
        await encrypted[0].send_all(b"served")

    nursery.start_soon(serve)
    client = trio.SSLStream(ours, context, server_hostname="bookie.test")
    assert await client.receive_some(6) == b"served"
    nursery.cancel_scope.cancel()
