"""What only the ZooKeeper store does: lost connections, expired sessions, dead servers. Real ones."""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from kazoo import exceptions as kazoo_errors
from trio.testing import wait_all_tasks_blocked

from dlog.cluster.zookeeper_process import open_zookeeper_process, start_zookeeper, stop_zookeeper
from namespace.errors import (
    BadVersionError,
    ConnectionLostError,
    InvalidUriError,
    LockTakenError,
    NoNodeError,
    SessionExpiredError,
    StoreError,
    StoreUnreachableError,
)
from namespace.lock import DistributedLock
from namespace.store import Create, MetadataStore, SessionState
from namespace.zookeeper import ZookeeperStore, open_zookeeper_store

pytestmark = pytest.mark.zookeeper

SESSION_TIMEOUT_MS = 1000


class Line:
    """A TCP connection to the server that can be silenced: nothing passes, yet nothing is closed."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._passing = trio.Event()
        self._passing.set()
        self.hosts = ""

    def silence(self) -> None:
        self._passing = trio.Event()

    def heal(self) -> None:
        self._passing.set()

    async def serve(self, client: trio.SocketStream) -> None:
        server = await trio.open_tcp_stream("127.0.0.1", self._server_port)
        async with client, server, trio.open_nursery() as nursery:
            nursery.start_soon(self._pass, client, server, nursery.cancel_scope)
            nursery.start_soon(self._pass, server, client, nursery.cancel_scope)

    async def _pass(
        self, source: trio.SocketStream, sink: trio.SocketStream, scope: trio.CancelScope
    ) -> None:
        try:
            async for chunk in source:
                await self._passing.wait()
                await sink.send_all(chunk)
        except trio.BrokenResourceError:
            pass
        scope.cancel()


@asynccontextmanager
async def line_to(port: int) -> AsyncIterator[Line]:
    line = Line(port)
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        line.hosts = f"127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.start_soon(trio.serve_listeners, line.serve, [listener])
        yield line
        line.heal()
        nursery.cancel_scope.cancel()


async def until(store: MetadataStore, state: SessionState) -> None:
    with trio.fail_after(30):
        while (seen := store.state) is not state:
            await store.wait_state_change(seen)


def calls(store: MetadataStore) -> list[Callable[[], object]]:
    return [
        lambda: store.get("/"),
        lambda: store.exists("/a"),
        lambda: store.children("/"),
        lambda: store.create("/b", parents=True),
        lambda: store.put("/a", b""),
        lambda: store.delete("/a"),
        lambda: store.commit([Create("/b")]),
        lambda: store.sync("/"),
    ]


async def test_nobody_at_the_address_is_an_unreachable_store() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        hosts = f"127.0.0.1:{unused.getsockname()[1]}"
        with trio.fail_after(10), pytest.raises(StoreUnreachableError, match=f"{hosts} within 0.3 s: "):
            async with open_zookeeper_store(hosts, connect_timeout_s=0.3):
                pass


async def test_somebody_who_never_answers_is_an_unreachable_store() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        hosts = f"127.0.0.1:{mute.getsockname()[1]}"
        with trio.fail_after(20), pytest.raises(StoreUnreachableError, match=hosts):
            async with open_zookeeper_store(hosts, connect_timeout_s=0.3, session_timeout_ms=1000):
                pass


@pytest.mark.parametrize("hosts", ["h:x", "h:2181/a//b:c"])
async def test_hosts_that_cannot_be_understood_are_refused(hosts: str) -> None:
    with pytest.raises((InvalidUriError, StoreUnreachableError)):
        async with open_zookeeper_store(hosts, connect_timeout_s=0.2):
            pass


async def test_a_server_killed_and_restarted_suspends_the_session_and_continues_it(tmp_path: Path) -> None:
    server = await start_zookeeper(tmp_path)
    try:
        async with open_zookeeper_store(server.hosts) as store:
            session_id = store.session_id
            await store.create("/e", b"mine", ephemeral=True)
            watch = trio.Event()
            await store.get("/e", watch=watch)
            lock = DistributedLock(store, "/", "me")
            os.kill(server.pid, signal.SIGKILL)
            await until(store, SessionState.SUSPENDED)
            for call in calls(store):
                with pytest.raises(ConnectionLostError), trio.fail_after(1):
                    await call()  # type: ignore[misc]
            assert not watch.is_set()
            with pytest.raises(ConnectionLostError):
                await lock.acquire(5)
            await stop_zookeeper(server.identity)
            server = await start_zookeeper(tmp_path, port=server.port)
            await until(store, SessionState.CONNECTED)
            assert store.session_id == session_id
            with trio.fail_after(10):
                await watch.wait()
            node = await store.get("/e")
            assert (node.value, node.stat.ephemeral_owner) == (b"mine", session_id)
            assert (await store.children("/")).names == ("e", "zookeeper")
    finally:
        await stop_zookeeper(server.identity)


async def test_a_session_that_expired_unheard_is_over_and_no_other_is_begun(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "namespace.zookeeper.kazoo")
    async with (
        open_zookeeper_process(tmp_path) as server,
        line_to(server.port) as line,
        # Several addresses: kazoo tries the next one without a pause.
        open_zookeeper_store(
            ",".join([line.hosts] * 5), session_timeout_ms=SESSION_TIMEOUT_MS, connect_timeout_s=20
        ) as store,
        open_zookeeper_store(server.hosts) as other,
    ):
        await store.create("/lock")
        lock = DistributedLock(store, "/lock", "me")
        await lock.acquire(0)
        with pytest.raises(LockTakenError, match="current owner is me"):
            await DistributedLock(other, "/lock", "other").acquire(0)
        watch, gone = trio.Event(), trio.Event()
        await store.exists("/nothing", watch=watch)
        await other.children("/lock", watch=gone)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lock.wait_lost)
            line.silence()
            with trio.fail_after(20):
                await gone.wait()  # the server has given the session up
            # From here on another may hold the lock, and the old holder must not think it does.
            await until(store, SessionState.SUSPENDED)
            assert not lock.held
            line.heal()
            await until(store, SessionState.EXPIRED)
        assert watch.is_set()
        assert not lock.held
        for call in calls(store):
            with pytest.raises(SessionExpiredError):
                await call()  # type: ignore[misc]
        await DistributedLock(other, "/lock", "other").acquire(0)
        with trio.fail_after(20):
            await store._stopped.wait()
        begun = [line for line in caplog.messages if "connection established" in line]
        assert len(begun) == 2, "one for each store"
        assert store.state is SessionState.EXPIRED


async def test_calls_without_an_answer_fail_when_the_connection_is_lost(tmp_path: Path) -> None:
    async with (
        open_zookeeper_process(tmp_path) as server,
        line_to(server.port) as line,
        open_zookeeper_store(line.hosts, session_timeout_ms=SESSION_TIMEOUT_MS) as store,
    ):
        await store.create("/a")
        outcomes: list[type[BaseException]] = []

        async def call(function: Callable[[], object]) -> None:
            try:
                await function()  # type: ignore[misc]
            except Exception as exc:
                outcomes.append(type(exc))

        line.silence()
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                for function in calls(store):
                    nursery.start_soon(call, function)
        assert outcomes == [ConnectionLostError] * len(calls(store))


async def test_an_answer_is_not_waited_for_once_the_connection_is_known_to_be_lost(tmp_path: Path) -> None:
    async with (
        open_zookeeper_process(tmp_path) as server,
        line_to(server.port) as line,
        open_zookeeper_store(line.hosts) as store,
    ):
        line.silence()
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                with pytest.raises(ConnectionLostError):
                    await store.get("/")

            nursery.start_soon(ask)
            await wait_all_tasks_blocked()
            with trio.fail_after(1):
                # As if the request had slipped into kazoo's queue just after it lost the connection.
                store._enter("SUSPENDED")
                while nursery.child_tasks:
                    await trio.lowlevel.checkpoint()
        store._enter("CONNECTED")
        line.heal()


async def test_calls_piling_up_behind_a_full_connection_do_not_block_the_loop(tmp_path: Path) -> None:
    async with (
        open_zookeeper_process(tmp_path) as server,
        line_to(server.port) as line,
        open_zookeeper_store(line.hosts) as store,
    ):
        await store.create("/large")
        line.silence()
        async with trio.open_nursery() as nursery:
            for _ in range(10):  # more than the sockets' buffers hold
                nursery.start_soon(store.put, "/large", bytes(900_000))
            await wait_all_tasks_blocked(0.1)
            for _ in range(1000):
                nursery.start_soon(store.exists, "/small")
            for _ in range(100):
                await trio.lowlevel.checkpoint()
            line.heal()
        assert (await store.get("/large")).stat.version == 10


async def test_closing_while_the_server_is_silent_ends_soon(tmp_path: Path) -> None:
    async with open_zookeeper_process(tmp_path) as server, line_to(server.port) as line:
        with trio.fail_after(20):
            async with open_zookeeper_store(line.hosts, session_timeout_ms=SESSION_TIMEOUT_MS) as store:
                line.silence()
        assert store.state is SessionState.CLOSED


@pytest.mark.parametrize(
    ("answers", "error", "path"),
    [
        ([kazoo_errors.RolledBackError(), kazoo_errors.BadVersionError()], BadVersionError, "/b"),
        ([kazoo_errors.NoNodeError(), kazoo_errors.RuntimeInconsistency()], NoNodeError, "/a"),
        # No server says so, but nothing was done, and that is not to be taken for success.
        ([kazoo_errors.RolledBackError(), kazoo_errors.RolledBackError()], StoreError, "/a"),
        ([kazoo_errors.RuntimeInconsistency(), "/b"], StoreError, "/a"),
    ],
)
async def test_a_transaction_of_which_anything_failed_is_not_taken_for_done(
    answers: list[object], error: type[StoreError], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ZookeeperStore("127.0.0.1:1", SESSION_TIMEOUT_MS)  # never connected

    async def answered(path: str, ask: Callable[[], object]) -> list[object]:
        return answers

    monkeypatch.setattr(store, "_call", answered)
    with pytest.raises(error) as caught:
        await store.commit([Create("/a"), Create("/b")])
    assert caught.value.path == path
