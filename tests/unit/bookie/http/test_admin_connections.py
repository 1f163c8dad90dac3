"""Strangers that hold connections to the HTTP port: few are kept, and an operator is served."""

# covers: bookie/disk/descriptor_limit.py
# covers: bookie/http/connections.py

from __future__ import annotations

import contextlib
import errno
import os
from collections import Counter
from pathlib import Path

import pytest
import trio

from bookie.disk import descriptor_limit
from bookie.disk.descriptor_limit import ADMIN_CONNECTIONS_MAX
from bookie.http.connections import AdminConnections
from ledger.runtime.tasks.failure_domain import contained_failures
from tests.unit.bookie.http.test_admin import send_request, serving

WAIT_S = 60.0
ATTACKS = [
    b"",
    b"PUT /api/v1/bookie/gc HTTP/1.1\r\nHost: localhost\r\n",
    b"PUT /api/v1/bookie/gc HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{",
    b"\x16\x03\x01\x02\0",
]


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def is_closed(stream: trio.SocketStream) -> None:
    """Return when the server has closed the connection."""
    async with stream:
        with trio.fail_after(WAIT_S), contextlib.suppress(trio.BrokenResourceError):
            while await stream.receive_some(1000):
                pass


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS)
async def test_strangers_that_hold_all_places_give_way_to_an_operator(tmp_path: Path, attack: bytes) -> None:
    async with serving(tmp_path) as (_, url):
        before = open_files()
        strangers = []
        for _ in range(4 * ADMIN_CONNECTIONS_MAX):
            stranger = await trio.open_tcp_stream("127.0.0.1", int(url.rpartition(":")[2]))
            with contextlib.suppress(trio.BrokenResourceError):
                await stranger.send_all(attack)
            strangers.append(stranger)
        assert (await send_request(url, "GET", "/api/v1/bookie/info"))[0] == 200
        assert (await send_request(url, "PUT", "/api/v1/bookie/gc", b"{}"))[0] == 200
        # The garbage collection opens some files meanwhile.
        assert open_files() <= before + len(strangers) + 2 * ADMIN_CONNECTIONS_MAX
        for stranger in strangers[: 3 * ADMIN_CONNECTIONS_MAX]:
            await is_closed(stranger)
        assert (await send_request(url, "GET", "/heartbeat"))[0] == 200
        for stranger in strangers:
            await stranger.aclose()


@pytest.mark.slow
async def test_an_idle_connection_and_half_a_request_time_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bookie.http.server._IDLE_S", 0.05)
    async with serving(tmp_path) as (_, url):
        for attack in ATTACKS[:2]:
            stranger = await trio.open_tcp_stream("127.0.0.1", int(url.rpartition(":")[2]))
            await stranger.send_all(attack)
            await is_closed(stranger)


class Accepting(trio.abc.Listener[trio.SocketStream]):
    """Finds no descriptor, so many times."""

    def __init__(self, listener: trio.SocketListener) -> None:
        self.listener = listener
        self.shortages = 0

    async def accept(self) -> trio.SocketStream:
        if self.shortages:
            self.shortages -= 1
            await trio.lowlevel.checkpoint()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return await self.listener.accept()

    async def aclose(self) -> None:
        await self.listener.aclose()


async def test_a_peer_that_is_never_done_is_closed_and_a_shortage_of_descriptors_ends_nothing(
    nursery: trio.Nursery,
) -> None:
    (plain,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    listener = Accepting(plain)
    port: int = plain.socket.getsockname()[1]
    served: list[trio.SocketStream] = []

    async def never_done(stream: trio.SocketStream) -> None:
        served.append(stream)
        with trio.CancelScope(shield=True):  # as code that does not notice a cancellation
            await stream.receive_some(1)

    connections = AdminConnections(never_done, connections_max=2, lifetime_s=0.05)
    nursery.start_soon(connections.serve, listener)
    await is_closed(await trio.open_tcp_stream("127.0.0.1", port))
    listener.shortages = 3
    await is_closed(await trio.open_tcp_stream("127.0.0.1", port))
    assert len(served) == 2
    nursery.cancel_scope.cancel()


def test_the_main_port_leaves_descriptors_for_the_http_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptor_limit, "descriptor_limit", lambda: 1024)
    connections = descriptor_limit.connections_below_limit(1, 1)
    monkeypatch.setattr(descriptor_limit, "ADMIN_CONNECTIONS_MAX", 0)
    assert descriptor_limit.connections_below_limit(1, 1) == connections + ADMIN_CONNECTIONS_MAX


class Broken(trio.abc.Listener[trio.SocketStream]):
    """Fails some times with an error that nobody expects, then accepts."""

    def __init__(self, listener: trio.SocketListener) -> None:
        self.listener, self.errors = (
            listener,
            [ZeroDivisionError(), OSError(errno.EPERM, "no"), MemoryError()],
        )

    async def accept(self) -> trio.SocketStream:
        if self.errors:
            await trio.lowlevel.checkpoint()
            raise self.errors.pop()
        return await self.listener.accept()

    async def aclose(self) -> None:
        await self.listener.aclose()


async def test_an_error_of_a_connection_or_of_accepting_ends_nothing_else(nursery: trio.Nursery) -> None:
    (plain,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port: int = plain.socket.getsockname()[1]
    errors: list[Exception] = [
        UnicodeDecodeError("ascii", b"\xff", 0, 1, "no"),
        KeyError(1),
        MemoryError(),
        RecursionError(),
        ExceptionGroup("tasks", [ValueError("x"), OSError("y")]),
    ]

    async def fail(stream: trio.SocketStream) -> None:
        if errors:
            raise errors.pop()
        await stream.send_all(b"served")

    before = Counter(contained_failures)
    nursery.start_soon(AdminConnections(fail, retry_s=0.0).serve, Broken(plain))
    for _ in range(5):
        await is_closed(await trio.open_tcp_stream("127.0.0.1", port))
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        assert await stream.receive_some() == b"served"
    found = contained_failures - before
    assert (found["HTTP listener"], found["HTTP connection"]) == (3, 5)
    nursery.cancel_scope.cancel()
