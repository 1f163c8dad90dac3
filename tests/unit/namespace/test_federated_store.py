"""A federated namespace: its logs are listed, located, read and written, wherever they are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

import dlog
import dlog.connect
from ledger.metadata_store.errors import NoNodeError
from ledger.metadata_store.memory import MemoryStore, MemoryTree, open_memory_store
from ledger.metadata_store.store import MetadataStore
from namespace.binding import new_binding
from namespace.bindings import bind
from namespace.federated_store import FederatedStore
from namespace.policy import Policy, Right, Rule
from tests.fakes.dict_bookies import DictCluster, open_cluster
from tests.fakes.dict_namespace import Opened, open_on, read_all, write_segments

SUBS = ["/ns/.subnamespaces/NS_0000000000", "/ns/.subnamespaces/NS_0000000001"]


@pytest.fixture
async def cluster() -> AsyncIterator[DictCluster]:
    async with open_cluster() as opened:
        yield opened


async def federate(cluster: DictCluster) -> None:
    """A federated namespace with a log in itself and in each of its sub-namespaces, as Java lays them out."""
    async with open_memory_store(cluster.tree) as store:
        binding = attrs.evolve(new_binding("zk:2181", "/ledgers"), federated=True)
        await bind(store, "/ns", binding)
        for path in SUBS:
            await store.create(path)
    for path, log in [("/ns", "zero"), (SUBS[0], "one"), (SUBS[1], "shop/two")]:
        async with open_on(cluster, path) as opened:
            await write_segments(opened.namespace, log, 2)


@asynccontextmanager
async def opened_federated(cluster: DictCluster) -> AsyncIterator[Opened]:
    await federate(cluster)
    async with open_on(cluster, federated=True) as opened:
        yield opened


async def test_logs_of_all_sub_namespaces_are_listed_and_located(cluster: DictCluster) -> None:
    async with opened_federated(cluster) as opened:
        namespace = opened.namespace
        assert await namespace.list_logs() == ["one", "shop/two", "zero"]
        assert await namespace.list_logs("shop") == ["shop/two"]
        assert await namespace.log_location("zero") == "/ns"
        assert await namespace.log_location("one") == SUBS[0]
        assert await namespace.log_location("shop/two") == SUBS[1]
        with pytest.raises(dlog.LogNotFoundError):
            await namespace.log_location("nothing")
        assert [await namespace.log_exists(log) for log in ("one", "nothing", "shop")] == [True, False, False]


async def test_logs_are_read_written_truncated_and_deleted_where_they_are(cluster: DictCluster) -> None:
    async with opened_federated(cluster) as opened:
        namespace = opened.namespace
        for log in ("zero", "one", "shop/two"):
            assert await read_all(namespace, log) == [b"0", b"1"]
            await write_segments(namespace, log, 1, first=2)
            assert await namespace.truncate_log(log, dlog.DLSN(3, 0, 0)) == dlog.DLSN(3, 0, 0)
            assert len(await namespace.purge_log(log)) == 2
            await namespace.cursors(log).set("mine", dlog.DLSN(3, 0, 0))
            assert (await namespace.describe_log(log)).record_count == 1
            assert (await namespace.repair.check(log)).findings == ()
        async with open_on(cluster, SUBS[0]) as inside:
            assert await read_all(inside.namespace, "one") == [b"2"]
        await namespace.delete_log("one")
        assert await namespace.list_logs() == ["shop/two", "zero"]
        assert await opened.store.exists(f"{SUBS[0]}/one") is None


async def test_a_reader_follows_a_writer_in_a_sub_namespace(cluster: DictCluster) -> None:
    async with opened_federated(cluster) as opened, open_on(cluster, SUBS[0]) as inside:
        async with opened.namespace.open_reader("one", start=dlog.LATEST) as reader:
            await write_segments(inside.namespace, "one", 3, first=2)
            found = []
            async for record in reader:
                found.append(record.payload)
                if len(found) == 3:
                    break
        assert found == [b"2", b"3", b"4"]


async def test_writers_inside_and_above_a_sub_namespace_exclude_each_other(cluster: DictCluster) -> None:
    async with (
        opened_federated(cluster) as opened,
        open_on(cluster, SUBS[0]) as inside,
        opened.namespace.open_writer("one") as writer,
    ):
        await writer.append(b"2")
        assert (await inside.namespace.describe_log("one")).writer == "test"
        with pytest.raises(dlog.LogLockedError):
            async with inside.namespace.open_writer("one", lock_timeout_s=0):
                pass


async def test_a_log_that_apache_created_in_part_is_completed_in_its_place(cluster: DictCluster) -> None:
    async with opened_federated(cluster) as opened:
        await opened.store.create(f"{SUBS[1]}/half")
        await opened.namespace.create_log("half")
        assert await opened.namespace.log_location("half") == SUBS[1]
        await write_segments(opened.namespace, "half", 1)


async def test_a_log_in_two_sub_namespaces_is_an_error(cluster: DictCluster) -> None:
    async with opened_federated(cluster) as opened:
        async with open_on(cluster, SUBS[1]) as inside:
            await inside.namespace.create_log("one")
        with pytest.raises(dlog.LogMetadataError, match="in two sub-namespaces"):
            await read_all(opened.namespace, "one")
        assert await read_all(opened.namespace, "zero") == [b"0", b"1"]


async def test_a_log_that_was_created_again_elsewhere_is_found_there(cluster: DictCluster) -> None:
    async with opened_federated(cluster) as opened, open_on(cluster, SUBS[1]) as other:
        assert await read_all(opened.namespace, "one") == [b"0", b"1"]
        async with open_on(cluster, SUBS[0]) as inside:
            await inside.namespace.delete_log("one")
        await write_segments(other.namespace, "one", 1, first=7)
        assert await opened.namespace.log_exists("one")
        assert await read_all(opened.namespace, "one") == [b"7"]
        assert await opened.namespace.log_location("one") == SUBS[1]


async def test_a_change_is_not_made_in_another_place_than_that_of_the_reads(cluster: DictCluster) -> None:
    await federate(cluster)
    async with open_memory_store(cluster.tree) as inner:
        store = FederatedStore(inner, "/ns")
        await store.get("/ns/one/<default>/maxtxid")
        for path in [
            each for each in sorted(cluster.tree._nodes, reverse=True) if each.startswith(f"{SUBS[0]}/one")
        ]:
            await inner.delete(path)
        await inner.create(f"{SUBS[1]}/one/<default>/maxtxid", b"7", parents=True)
        with pytest.raises(NoNodeError):
            await store.put("/ns/one/<default>/maxtxid", b"8")
        assert (await store.get("/ns/one/<default>/maxtxid")).value == b"7"


async def test_the_nodes_of_the_namespace_itself_stay_where_they_are(cluster: DictCluster) -> None:
    async with opened_federated(cluster) as opened:
        await opened.store.create(f"{SUBS[0]}/.dlog-policy", b"of the sub-namespace")
        assert await opened.namespace.policy.get() is None
        await opened.namespace.policy.set(Policy((Rule("*", "*", frozenset({Right.ADMIN})),)))
        assert await opened.store.exists("/ns/.dlog-policy") is not None
        assert await opened.namespace.repair.find_orphans() == []


async def test_a_sub_namespace_that_is_opened_by_its_own_path_takes_no_new_log(cluster: DictCluster) -> None:
    await federate(cluster)
    async with open_on(cluster, SUBS[0], federated=True) as opened:
        assert await opened.namespace.list_logs() == ["one"]
        with pytest.raises(dlog.ConfigError):
            await opened.namespace.create_log("new")


@pytest.fixture
def tree_as_cluster(monkeypatch: pytest.MonkeyPatch) -> MemoryTree:
    tree = MemoryTree()

    @asynccontextmanager
    async def open_store(*_hosts: object, **_settings: object) -> AsyncIterator[MetadataStore]:
        async with open_memory_store(tree) as store:
            yield store

    monkeypatch.setattr("ledger.deploy.cluster_store.open_cluster_store", open_store)
    return tree


async def test_open_namespace_shows_a_federated_namespace(tree_as_cluster: MemoryTree) -> None:
    store = MemoryStore(tree_as_cluster)
    binding = attrs.evolve(new_binding("zk:2181", "/ledgers"), federated=True)
    await bind(store, "/ns", binding)
    for log in ("/ns/.subnamespaces/NS_0000000000/a", "/ns/b"):
        await store.create(f"{log}/<default>/ledgers", b"0", parents=True)
    with trio.fail_after(60):
        config = dlog.NamespaceConfig(sub_namespace_logs_max=1)
        async with dlog.open_namespace("distributedlog://zk:2181/ns", config=config) as namespace:
            assert await namespace.list_logs() == ["a", "b"]
            assert await namespace.log_location("a") == SUBS[0]
            await namespace.create_log("c")
            assert await namespace.log_location("c") == SUBS[1]
    await store.aclose()
