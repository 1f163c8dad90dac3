"""Ledgers opened with ``read_only=True``, in a directory and in a cluster: reads as ever, no change."""

# covers: ledger/deploy/cluster_store.py
# covers: ledger/deploy/read_only.py

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

import dlog
import ledger
import ledger.blocking
from ledger.errors import ReadOnlyError
from ledger.metadata_store.memory import MemoryStore, MemoryTree, open_memory_store
from ledger.metadata_store.store import MetadataStore
from namespace.binding import new_binding
from namespace.bindings import bind

CHANGES: list[Callable[[ledger.LedgerClient], Awaitable[object]]] = [
    lambda client: client.create(ensemble_size=1, write_quorum=1, ack_quorum=1),
    lambda client: client.create_adv(ensemble_size=1, write_quorum=1, ack_quorum=1),
    lambda client: client.open(0, password=None),
    lambda client: client.recover(0),
    lambda client: client.delete(0),
]


async def write_two_ledgers(uri: str) -> None:
    """Ledger 0 stays open; ledger 1 is closed."""
    async with ledger.open_client(uri) as client:
        for closes in (False, True):
            writer = await client.create(ensemble_size=1, write_quorum=1, ack_quorum=1, password=None)
            for number in range(5):
                await writer.append(b"%d" % number)
            if closes:
                await writer.close()


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_is_refused_and_the_ledger_stays_open(
    tmp_path: Path, change: Callable[[ledger.LedgerClient], Awaitable[object]]
) -> None:
    uri = f"file://{tmp_path}"
    await write_two_ledgers(uri)
    async with ledger.open_client(uri, read_only=True) as client:
        with pytest.raises(ReadOnlyError, match="read_only=True"):
            await change(client)
        assert await client.ledger_ids() == [0, 1]
        assert not (await client.metadata(0)).is_closed


@pytest.mark.slow
async def test_an_open_ledger_is_read_up_to_its_lac_and_a_closed_one_to_its_end(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}"
    await write_two_ledgers(uri)

    def read_all() -> list[list[bytes]]:
        with ledger.blocking.open_client(uri, read_only=True) as client:
            found = []
            for ledger_id, recover in ((0, False), (1, True)):
                with client.open(ledger_id, password=None, recover=recover) as reader:
                    found.append([entry.payload for entry in reader.read(0, reader.last_confirmed)])
            return found

    opened, closed = await trio.to_thread.run_sync(read_all)
    assert closed == [b"%d" % number for number in range(5)]
    assert opened == closed[: len(opened)]
    assert len(opened) >= 4


@pytest.fixture
async def cluster(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MemoryStore]:
    """The metadata of a cluster, in memory. Each session that is opened by address is another one."""
    tree = MemoryTree()

    @asynccontextmanager
    async def open_zookeeper_store(*_: object, **__: object) -> AsyncIterator[MetadataStore]:
        async with open_memory_store(tree) as store:
            yield store

    monkeypatch.setattr("ledger.deploy.cluster_store.open_zookeeper_store", open_zookeeper_store)
    async with open_memory_store(tree) as store:
        yield store


async def nodes_of(store: MetadataStore) -> dict[str, object]:
    found: dict[str, object] = {}
    pending = ["/"]
    while pending:
        path = pending.pop()
        found[path] = await store.get(path)
        for name in (await store.children(path)).names:
            pending.append(f"{path.rstrip('/')}/{name}")
    return found


async def test_a_read_only_client_of_a_cluster_creates_no_node(cluster: MemoryStore) -> None:
    await cluster.create("/ledgers/LAYOUT", ledger.Layout.HIERARCHICAL.text, parents=True)
    await cluster.create("/ledgers/available/readonly", parents=True)
    before = await nodes_of(cluster)
    async with ledger.open_client("zk+hierarchical://zk1/ledgers", read_only=True) as client:
        assert await client.ledger_ids() == []
        with pytest.raises(ReadOnlyError):
            await client.recover(0)
    assert await nodes_of(cluster) == before


async def test_a_read_only_namespace_of_a_cluster_creates_no_node(cluster: MemoryStore) -> None:
    uri, config = "distributedlog://zk1/logs", dlog.NamespaceConfig(create=True)
    with pytest.raises(dlog.ReadOnlyError, match="read_only=True"):
        async with dlog.open_namespace(uri, config=config, read_only=True):
            pass
    assert set(await nodes_of(cluster)) == {"/"}
    await bind(cluster, "/logs", new_binding("zk1", "/ledgers"))
    await cluster.create("/ledgers/LAYOUT", ledger.Layout.HIERARCHICAL.text, parents=True)
    async with dlog.open_namespace(uri) as namespace:
        await namespace.create_log("log")
    before = await nodes_of(cluster)
    async with dlog.open_namespace(uri, read_only=True) as namespace:
        assert (namespace.read_only, namespace.is_snapshot) == (True, False)
        assert await namespace.list_logs() == ["log"]
        assert (await namespace.describe_log("log")).record_count == 0
        with pytest.raises(dlog.ReadOnlyError):
            await namespace.create_log("new")
    assert await nodes_of(cluster) == before
