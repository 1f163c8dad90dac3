"""The ZooKeeper store beside real servers: lost connections, expired sessions, dead servers."""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from kazoo import exceptions as kazoo_errors
from kazoo.client import KazooClient
from kazoo.protocol.states import KazooState
from trio.testing import wait_all_tasks_blocked

from dlog.cluster.zookeeper_process import start_zookeeper, stop_zookeeper
from ledger.metadata_store.errors import (
    BadVersionError,
    ConnectionLostError,
    InvalidStoreAddressError,
    LockTakenError,
    NoNodeError,
    SessionExpiredError,
    StoreError,
    StoreSecurityError,
    StoreUnreachableError,
)
from ledger.metadata_store.lock import DistributedLock
from ledger.metadata_store.store import Create, MetadataStore, SessionState
from ledger.metadata_store.zookeeper import ZookeeperStore, open_zookeeper_store
from ledger.metadata_store.zookeeper_security import ZooKeeperSecurity
from tests.fakes.silenceable_proxy import SilenceableProxy, proxy_to
from tests.fakes.zookeeper_server import open_zookeeper_process

pytestmark = pytest.mark.zookeeper

SESSION_TIMEOUT_MS = 1000


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


async def test_an_address_without_a_server_is_an_unreachable_store() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        hosts = f"127.0.0.1:{unused.getsockname()[1]}"
        with trio.fail_after(60), pytest.raises(StoreUnreachableError, match=f"{hosts} within 0.3 s: "):
            async with open_zookeeper_store(hosts, connect_timeout_s=0.3):
                pass


async def test_a_server_that_never_replies_is_an_unreachable_store() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        hosts = f"127.0.0.1:{mute.getsockname()[1]}"
        with trio.fail_after(60), pytest.raises(StoreUnreachableError, match=hosts):
            async with open_zookeeper_store(hosts, connect_timeout_s=0.3, session_timeout_ms=1000):
                pass


@pytest.mark.parametrize("hosts", ["h:x", "h:2181/a//b:c"])
async def test_hosts_that_cannot_be_parsed_are_refused(hosts: str) -> None:
    with pytest.raises((InvalidStoreAddressError, StoreUnreachableError)):
        async with open_zookeeper_store(hosts, connect_timeout_s=0.2):
            pass


@pytest.mark.parametrize(
    ("security", "expected"),
    [
        (ZooKeeperSecurity(), StoreUnreachableError),
        (ZooKeeperSecurity(scheme="sasl", username="ann", password="wrong"), StoreSecurityError),
    ],
)
async def test_a_session_that_ends_before_the_loop_saw_it_begin_is_an_error_at_once(
    security: ZooKeeperSecurity, expected: type[StoreError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin_and_end(client: KazooClient) -> None:
        for listener in client.state_listeners:
            listener(KazooState.CONNECTED)
            listener(KazooState.LOST)

    monkeypatch.setattr(KazooClient, "start_async", begin_and_end)
    with trio.fail_after(30), pytest.raises(expected):
        async with open_zookeeper_store("127.0.0.1:1", security=security, connect_timeout_s=1000):
            pass


async def test_a_restarted_server_suspends_the_session_and_continues_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
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
                with pytest.raises(ConnectionLostError), trio.fail_after(60):
                    await call()  # type: ignore[misc]
            assert not watch.is_set()
            with pytest.raises(ConnectionLostError):
                await lock.acquire(5)
            await stop_zookeeper(server.identity)
            server = await start_zookeeper(tmp_path, port=server.port)
            await until(store, SessionState.CONNECTED)
            assert store.session_id == session_id
            with trio.fail_after(60):
                await watch.wait()
            node = await store.get("/e")
            assert (node.value, node.stat.ephemeral_owner) == (b"mine", session_id)
            assert (await store.children("/")).names == ("e", "zookeeper")
        assert caplog.messages == [
            f"ZooKeeper at {server.hosts}: the connection is lost; trying again",
            f"ZooKeeper at {server.hosts}: connected again",
        ], "one line for each change, however often kazoo tried"
    finally:
        await stop_zookeeper(server.identity)


async def test_a_session_that_expired_unnoticed_is_over_and_no_other_begins(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ledger.metadata_store.zookeeper.kazoo")
    async with (
        open_zookeeper_process(tmp_path) as server,
        proxy_to(server.port) as proxy,
        # Several addresses: kazoo tries the next one without a pause.
        open_zookeeper_store(
            ",".join([proxy.hosts] * 5), session_timeout_ms=SESSION_TIMEOUT_MS, connect_timeout_s=20
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
            proxy.silence()
            with trio.fail_after(60):
                await gone.wait()  # the server has ended the session
            # From here on another client may hold the lock, so the old holder must not report that it does.
            await until(store, SessionState.SUSPENDED)
            assert not lock.held
            proxy.heal()
            await until(store, SessionState.EXPIRED)
        assert watch.is_set()
        assert not lock.held
        for call in calls(store):
            with pytest.raises(SessionExpiredError):
                await call()  # type: ignore[misc]
        await DistributedLock(other, "/lock", "other").acquire(0)
        with trio.fail_after(60):
            await store._stopped.wait()
        begun = [message for message in caplog.messages if "connection established" in message]
        assert len(begun) == 2, "one connection for each store"
        assert store.state is SessionState.EXPIRED


async def test_calls_without_a_reply_fail_when_the_connection_is_lost(tmp_path: Path) -> None:
    async with (
        open_zookeeper_process(tmp_path) as server,
        proxy_to(server.port) as proxy,
        open_zookeeper_store(proxy.hosts, session_timeout_ms=SESSION_TIMEOUT_MS) as store,
    ):
        await store.create("/a")
        outcomes: list[type[BaseException]] = []

        async def call(function: Callable[[], object]) -> None:
            try:
                await function()  # type: ignore[misc]
            except Exception as exc:
                outcomes.append(type(exc))

        proxy.silence()
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for function in calls(store):
                    nursery.start_soon(call, function)
        assert outcomes == [ConnectionLostError] * len(calls(store))


async def test_a_call_over_a_connection_known_to_be_lost_fails_at_once(tmp_path: Path) -> None:
    async with (
        open_zookeeper_process(tmp_path) as server,
        proxy_to(server.port) as proxy,
        open_zookeeper_store(proxy.hosts) as store,
    ):
        proxy.silence()
        async with trio.open_nursery() as nursery:

            async def get() -> None:
                with pytest.raises(ConnectionLostError):
                    await store.get("/")

            nursery.start_soon(get)
            await wait_all_tasks_blocked()
            with trio.fail_after(4):  # less than kazoo takes to notice the silence
                # As if the request entered kazoo's queue just after kazoo lost the connection.
                store._enter("SUSPENDED")
                while nursery.child_tasks:
                    await trio.lowlevel.checkpoint()
        store._enter("CONNECTED")
        proxy.heal()


async def test_many_calls_on_a_full_connection_do_not_block_the_loop(tmp_path: Path) -> None:
    async with (
        open_zookeeper_process(tmp_path) as server,
        proxy_to(server.port) as proxy,
        open_zookeeper_store(proxy.hosts) as store,
    ):
        await store.create("/large")
        proxy.silence()
        async with trio.open_nursery() as nursery:
            for _ in range(10):  # more than the sockets' buffers hold
                nursery.start_soon(store.put, "/large", bytes(900_000))
            await wait_all_tasks_blocked(0.1)
            for _ in range(1000):
                nursery.start_soon(store.exists, "/small")
            for _ in range(100):
                await trio.lowlevel.checkpoint()
            proxy.heal()
        assert (await store.get("/large")).stat.version == 10


@pytest.mark.slow
async def test_a_server_that_accepts_and_does_not_reply_yet_is_tried_again_soon(tmp_path: Path) -> None:
    """As a server that boots. kazoo alone waits for the whole session timeout at the first connection."""
    async with open_zookeeper_process(tmp_path) as server, trio.open_nursery() as nursery:
        proxy, connections = SilenceableProxy(server.port), 0

        async def serve(client: trio.SocketStream) -> None:
            nonlocal connections
            connections += 1
            if connections == 1:
                await trio.sleep_forever()
            await proxy.serve(client)

        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        hosts = f"127.0.0.1:{listener.socket.getsockname()[1]}"
        async with open_zookeeper_store(hosts, session_timeout_ms=40_000, connect_timeout_s=30) as store:
            assert await store.exists("/") is not None
        assert connections == 2
        nursery.cancel_scope.cancel()


async def test_closing_beside_a_silent_server_ends_soon(tmp_path: Path) -> None:
    async with open_zookeeper_process(tmp_path) as server, proxy_to(server.port) as proxy:
        with trio.fail_after(60):
            async with open_zookeeper_store(proxy.hosts, session_timeout_ms=SESSION_TIMEOUT_MS) as store:
                proxy.silence()
        assert store.state is SessionState.CLOSED


@pytest.mark.parametrize(
    ("results", "error", "path"),
    [
        ([kazoo_errors.RolledBackError(), kazoo_errors.BadVersionError()], BadVersionError, "/b"),
        ([kazoo_errors.NoNodeError(), kazoo_errors.RuntimeInconsistency()], NoNodeError, "/a"),
        # No server sends this. But nothing was done, so it must not count as success.
        ([kazoo_errors.RolledBackError(), kazoo_errors.RolledBackError()], StoreError, "/a"),
        ([kazoo_errors.RuntimeInconsistency(), "/b"], StoreError, "/a"),
    ],
)
async def test_a_transaction_with_any_failed_operation_raises(
    results: list[object], error: type[StoreError], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ZookeeperStore("127.0.0.1:1", SESSION_TIMEOUT_MS, ZooKeeperSecurity())  # never connected

    async def call(path: str, request: Callable[[], object]) -> list[object]:
        return results

    monkeypatch.setattr(store, "_call", call)
    with pytest.raises(error) as caught:
        await store.commit([Create("/a"), Create("/b")])
    assert caught.value.path == path
