"""A namespace beside a real ZooKeeper whose connection is silent until the session has expired."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import dlog
from dlog.cluster.zookeeper_process import start_zookeeper, stop_zookeeper
from dlog.context import NamespaceContext
from dlog.namespace_handle import Namespace
from ledger.client import open_ledger_client
from ledger.deploy.cluster_store import open_cluster_store
from ledger.metadata_store.memory import MemoryTree
from ledger.metadata_store.store import MetadataStore, SessionState
from ledger.metadata_store.zookeeper import open_zookeeper_store
from ledger.metadata_store.zookeeper_security import NO_SECURITY
from tests.fakes.dict_bookies import DictCluster
from tests.fakes.silenceable_proxy import proxy_to
from tests.fakes.zookeeper_server import open_zookeeper_process

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]

CONFIG = dlog.NamespaceConfig().for_scheme("distributedlog")
SESSION_TIMEOUT_MS = 1000


async def expired(store: MetadataStore, owner: int, observer: MetadataStore, lock: str) -> None:
    """Return when the server has ended the session of the lock's owner."""
    while True:
        changed = trio.Event()
        names = (await observer.children(lock, watch=changed)).names
        owners = [await observer.exists(f"{lock}/{name}") for name in names]
        if owner not in [each.ephemeral_owner for each in owners if each is not None]:
            return
        await changed.wait()


async def test_readers_cursors_and_writers_go_on_after_their_session_expired(tmp_path: Path) -> None:
    with trio.fail_after(120):
        async with (
            open_zookeeper_process(tmp_path) as server,
            proxy_to(server.port) as proxy,
            open_zookeeper_store(server.hosts, security=NO_SECURITY) as observer,
            trio.open_nursery() as nursery,
        ):
            bookies = DictCluster(MemoryTree(), observer, nursery)
            for number in range(1, 4):
                await bookies.start(f"b{number}:1")
            await observer.create("/ns")
            async with (
                open_cluster_store(
                    proxy.hosts,
                    session_timeout_ms=SESSION_TIMEOUT_MS,
                    connect_timeout_s=20,
                    security=NO_SECURITY,
                ) as store,
                open_ledger_client(store, bookies.dial) as client,
                open_ledger_client(observer, bookies.dial) as other_client,
            ):
                namespace = Namespace(NamespaceContext("zk", store, client, "/ns", CONFIG, client_id="one"))
                other = Namespace(
                    NamespaceContext("zk", observer, other_client, "/ns", CONFIG, client_id="two")
                )
                await namespace.create_log("log")
                seen: list[bytes] = []
                send, receive = trio.open_memory_channel[bytes](100)

                async def follow() -> None:
                    async with namespace.open_reader("log", cursor="c") as reader:
                        async for record in reader:
                            send.send_nowait(record.payload)
                            await reader.commit()

                nursery.start_soon(follow)
                async with namespace.open_writer("log") as writer:
                    await writer.append(b"0")
                    seen.append(await receive.receive())
                    lost = store.session_id
                    proxy.silence()
                    await expired(store, lost, observer, "/ns/log/<default>/lock")
                    async with other.open_writer("log") as successor:
                        await successor.append(b"1")
                    proxy.heal()
                    while store.state is not SessionState.CONNECTED or store.session_id == lost:
                        await store.wait_state_change(store.state)
                    with pytest.raises(dlog.LogFencedError):  # the expiry and the fence are both true
                        await writer.append(b"refused")
                    await writer.reopen()
                    await writer.append(b"2")
                    seen += [await receive.receive(), await receive.receive()]
                assert seen == [b"0", b"1", b"2"]
                async with namespace.open_reader("log", follow=False) as reader:
                    assert [record.payload async for record in reader] == seen
                cursor = await namespace.cursors("log").get("c")
                while cursor is None or cursor.version < 2:  # the last commit is under way
                    await trio.lowlevel.checkpoint()
                    cursor = await namespace.cursors("log").get("c")
                nursery.cancel_scope.cancel()


async def test_a_namespace_outlives_a_zookeeper_that_is_killed_and_started_again(tmp_path: Path) -> None:
    server = await start_zookeeper(tmp_path)
    try:
        with trio.fail_after(120):
            async with (
                open_cluster_store(
                    server.hosts,
                    session_timeout_ms=SESSION_TIMEOUT_MS,
                    connect_timeout_s=30,
                    security=NO_SECURITY,
                ) as store,
                trio.open_nursery() as nursery,
            ):
                await store.create("/ns")
                async with open_ledger_client(
                    store, DictCluster(MemoryTree(), store, nursery).dial
                ) as client:
                    namespace = Namespace(
                        NamespaceContext("zk", store, client, "/ns", CONFIG, client_id="one")
                    )
                    os.kill(server.pid, signal.SIGKILL)
                    await stop_zookeeper(server.identity)
                    while store.state is SessionState.CONNECTED:
                        await store.wait_state_change(SessionState.CONNECTED)
                    created = trio.Event()

                    async def create() -> None:
                        await namespace.create_log("log")
                        created.set()

                    nursery.start_soon(create)
                    await wait_all_tasks_blocked(0.01)
                    assert not created.is_set()
                    server = await start_zookeeper(tmp_path, port=server.port)
                    await created.wait()
                    assert await namespace.log_exists("log")
                    nursery.cancel_scope.cancel()
    finally:
        await stop_zookeeper(server.identity)
