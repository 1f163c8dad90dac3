"""Accepting: a shortage of descriptors, refused newcomers, sweeps, and few lines of log."""

from __future__ import annotations

import errno
import os

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair, wait_all_tasks_blocked

from bookie.errors import ListenError
from bookie.requests.session import BookieService
from bookie.server.config import ServerConfig
from bookie.server.server import Server
from ledger.runtime.tasks.failure_domain import contained_failures
from ledger.wire import v2
from ledger.wire.messages import ReadRequest
from tests.fakes.service_by_hand import HandDisk

HALF_FRAME = (1000).to_bytes(4, "big")


class ShortListener(trio.abc.Listener[trio.abc.Stream]):
    """Finds no descriptor a few times, then accepts one connection after the other."""

    def __init__(self, misses: int) -> None:
        self.misses, self.tries = misses, 0
        self.clients: list[trio.abc.Stream] = []
        self.arrived = trio.Event()

    async def accept(self) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        self.tries += 1
        if self.tries <= self.misses:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        if self.clients:
            await trio.sleep_forever()
        ours, theirs = memory_stream_pair()
        self.clients.append(ours)
        self.arrived.set()
        return theirs

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


class RoomyDisk(HandDisk):
    must_wait = True

    async def wait_capacity(self) -> None:
        await trio.lowlevel.checkpoint()


def server_of(**config: object) -> Server:
    return Server(BookieService(RoomyDisk()), ServerConfig(**config))  # type: ignore[arg-type]


async def is_closed(stream: trio.abc.Stream) -> bool:
    await wait_all_tasks_blocked()
    with trio.move_on_after(1):
        return await stream.receive_some(1000) == b""
    return False


async def test_a_shortage_while_accepting_closes_strangers_and_neither_spins_nor_ends_the_server(
    nursery: trio.Nursery, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    server = server_of()
    strangers = []
    for _ in range(40):
        ours, theirs = memory_stream_pair()
        nursery.start_soon(server.serve_stream, theirs)
        strangers.append(ours)
    await wait_all_tasks_blocked()
    listener = ShortListener(2)
    began_s = trio.current_time()
    await nursery.start(server.serve, [listener])
    await listener.arrived.wait()
    assert trio.current_time() - began_s >= 0.1, "it pauses after each"
    assert [await is_closed(stranger) for stranger in strangers].count(True) == 32
    assert not await is_closed(listener.clients[0])
    assert len(caplog.records) == 1
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("error", [OSError(errno.EIO, "broken"), RecursionError(), KeyError("a fault")])
async def test_another_error_while_accepting_costs_a_pause_and_one_line(
    nursery: trio.Nursery, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    class FaultyListener(ShortListener):
        async def accept(self) -> trio.abc.Stream:
            self.tries += 1
            if self.tries <= 100:
                raise error
            return await super().accept()

    before, began_s = contained_failures["accept"], trio.current_time()
    listener = FaultyListener(0)
    await nursery.start(server_of().serve, [listener])
    await listener.arrived.wait()
    assert trio.current_time() - began_s > 99 * 0.05, "it pauses after each"
    assert contained_failures["accept"] == before + 100
    assert len(caplog.records) == 1
    nursery.cancel_scope.cancel()


async def test_a_listening_socket_that_is_closed_ends_the_server_by_name() -> None:
    class ClosedListener(ShortListener):
        async def accept(self) -> trio.abc.Stream:
            raise trio.ClosedResourceError

    with pytest.RaisesGroup(ListenError):
        await server_of().serve([ClosedListener(0)])


async def test_a_newcomer_beyond_the_limit_is_closed_at_once(nursery: trio.Nursery) -> None:
    server = server_of(connections_max=2)
    clients = []
    for _ in range(3):
        ours, theirs = memory_stream_pair()
        nursery.start_soon(server.serve_stream, theirs)
        await ours.send_all(v2.encode_request(ReadRequest(9, 0)))
        clients.append(ours)
        await wait_all_tasks_blocked()
    assert [await client.receive_some(4) != b"" for client in clients] == [True, True, False]
    assert server.connections_count == 2
    nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_a_sweep_closes_silent_and_half_framed_connections_and_keeps_idle_clients(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    server = server_of(first_frame_timeout_s=5, frame_timeout_s=7)
    sweeps: list[float] = []
    nursery.start_soon(server.sweep, lambda: sweeps.append(trio.current_time()))
    whole = v2.encode_request(ReadRequest(9, 0))
    streams = []
    for data in (b"", HALF_FRAME, whole, whole + HALF_FRAME):
        ours, theirs = memory_stream_pair()
        nursery.start_soon(server.serve_stream, theirs)
        await ours.send_all(data)
        streams.append(ours)
    await trio.sleep(5.5)
    assert server.connections_count == 2
    await trio.sleep(4)
    assert server.connections_count == 1
    await trio.sleep(3600)
    assert server.connections_count == 1, "a client may be idle for an hour"
    await streams[2].aclose()
    await trio.sleep(5)
    swept = len(sweeps)
    await trio.sleep(3600)
    assert len(sweeps) <= swept + 1, "no timer runs while nothing is connected"
    nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_a_thousand_connections_of_garbage_write_one_line(
    nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    server = server_of()
    for _ in range(1000):
        ours, theirs = memory_stream_pair()
        await ours.send_all(b"\xff" * 100)
        await server.serve_stream(theirs)
    assert len(caplog.records) == 1
    assert len(caplog.text) < 600
