"""Creating logs in a federated namespace: the choice of a sub-namespace, races, crashes, deletion."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import trio

import dlog
from ledger.metadata_store.errors import BadVersionError, ConnectionLostError
from ledger.metadata_store.memory import MemoryStore, MemoryTree, open_memory_store
from ledger.metadata_store.store import Create, Operation, Put
from ledger.metadata_store.zookeeper import open_zookeeper_store
from ledger.metadata_store.zookeeper_security import NO_SECURITY
from namespace import logs
from namespace.federated_store import FederatedStore
from namespace.log_nodes import LogNodes
from tests.fakes.dict_bookies import open_cluster
from tests.fakes.dict_namespace import WatchedStore, open_on, read_all, write_segments
from tests.fakes.zookeeper_server import open_zookeeper_process

LIST = "/ns/.subnamespaces"
SUBS = [f"{LIST}/NS_000000000{number}" for number in range(9)]
STEPS_MAX = 200


def new_tree(*logs_there: str, subs: int = 0) -> MemoryTree:
    """A federated namespace; the logs are given by their paths below it."""
    tree = MemoryTree()
    trio.run(fill, tree, logs_there, subs)
    return tree


async def fill(tree: MemoryTree, logs_there: Sequence[str], subs: int) -> None:
    async with open_memory_store(tree) as store:
        await store.create(LIST, parents=True)
        for number in range(subs):
            await store.create(SUBS[number])
        for log in logs_there:
            await store.create(f"/ns/{log}/<default>/ledgers", b"0", parents=True)


def places_of(tree: MemoryTree, log: str) -> list[str]:
    """The sub-namespaces that have a node with the name of the log."""
    return [path.removesuffix(f"/{log}") for path in tree._nodes if path in holders(log)]


def holders(log: str) -> set[str]:
    return {f"{place}/{log}" for place in ("/ns", *SUBS)}


async def create(tree: MemoryTree, log: str, *, logs_max: int = 2, exist_ok: bool = False) -> str:
    """Create a log; return its sub-namespace."""
    async with open_memory_store(tree) as store:
        federated = FederatedStore(store, "/ns", logs_max=logs_max)
        await logs.create_log(LogNodes(federated, "/ns", log), exist_ok=exist_ok)
        assert await logs.log_exists(LogNodes(federated, "/ns", log))
        place = await federated.locate(log)
        assert place is not None
        return place


async def create_many(tree: MemoryTree, names: Sequence[str]) -> list[str]:
    return [await create(tree, name) for name in names]


def test_a_new_log_goes_to_the_newest_sub_namespace_with_room_or_to_a_new_one() -> None:
    tree = new_tree("zero", ".subnamespaces/NS_0000000000/one", subs=2)
    found = trio.run(create_many, tree, ["a", "b", "c", "d", "e", "f", "g"])
    assert found == [SUBS[1], SUBS[1], SUBS[0], "/ns", SUBS[2], SUBS[2], SUBS[3]]
    node = tree._nodes[LIST]
    assert (node.value, node.version) == (SUBS[3].encode(), 7), "each creation writes the last choice"


def test_the_first_log_is_in_the_namespace_itself() -> None:
    tree = new_tree()
    assert trio.run(create_many, tree, ["a", "b", "c"]) == ["/ns", "/ns", SUBS[0]]


def test_logs_with_the_same_first_part_are_in_one_sub_namespace_even_if_it_is_full() -> None:
    """Apache's programs take the first part for a log, and stop if two sub-namespaces have it."""
    tree = new_tree("zero", ".subnamespaces/NS_0000000000/shop/orders", subs=3)
    names = ["shop/a/b", "shop/c", "shop", "new/x", "new/y", "new"]
    assert trio.run(create_many, tree, names) == [SUBS[0]] * 3 + [SUBS[2]] * 3
    assert len(places_of(tree, "shop")) == len(places_of(tree, "new")) == 1


def test_a_first_part_in_two_sub_namespaces_is_an_error() -> None:
    tree = new_tree("shop/orders", ".subnamespaces/NS_0000000000/shop/sales", subs=1)
    with pytest.raises(dlog.LogMetadataError, match="in two sub-namespaces"):
        trio.run(create, tree, "shop/new")


def test_an_existing_log_is_found_wherever_it_is() -> None:
    tree = new_tree(subs=1)
    trio.run(create, tree, "one")
    trio.run(create_many, tree, ["two", "three"])
    assert places_of(tree, "three") != places_of(tree, "one")
    with pytest.raises(dlog.LogExistsError):
        trio.run(create, tree, "one")
    assert places_of(tree, "one") == [SUBS[0]]


def test_without_the_list_of_sub_namespaces_nothing_is_created() -> None:
    tree = new_tree()
    del tree._nodes[LIST]
    before = set(tree._nodes)
    with pytest.raises(dlog.ConfigError, match="create the log in the namespace above it"):
        trio.run(create, tree, "new")
    assert set(tree._nodes) == before


class Rival:
    """Creates the same log in another sub-namespace, at one step of the creation."""

    def __init__(self, tree: MemoryTree, at: int, log: str) -> None:
        self.tree, self.at, self.log = tree, at, log
        self.steps = 0
        self.has_created = False

    async def before(self, kind: str, path: str) -> None:
        self.steps += 1
        if self.steps - 1 == self.at:
            # Its sub-namespaces are full at once, so it makes a new one.
            try:
                await create(self.tree, self.log, logs_max=1)
            except dlog.LogExistsError:
                pass
            else:
                self.has_created = True


async def race(log: str, at: int) -> tuple[MemoryTree, Rival, bool]:
    tree = MemoryTree()
    await fill(tree, ["zero", ".subnamespaces/NS_0000000000/one"], 1)
    rival = Rival(tree, at, log)
    store = WatchedStore(tree)
    store.before = rival.before
    try:
        await logs.create_log(LogNodes(FederatedStore(store, "/ns", logs_max=5), "/ns", log))
    except dlog.LogExistsError:
        return tree, rival, False
    finally:
        await store.aclose()
    return tree, rival, True


@pytest.mark.slow
@pytest.mark.parametrize("log", ["new", "shop/new"])
def test_of_two_creators_one_succeeds_at_each_step_of_the_other(log: str) -> None:
    for at in range(STEPS_MAX):
        tree, rival, has_created = trio.run(race, log, at)
        if rival.steps <= at:  # the creation was over before
            with pytest.raises(dlog.LogExistsError):
                trio.run(partial(create, tree, log, logs_max=1))
            assert has_created
            assert len(places_of(tree, log)) == 1
            break
        assert len(places_of(tree, log)) == 1
        assert len(places_of(tree, log.partition("/")[0])) == 1
        assert (has_created, rival.has_created) == (False, True), f"the rival is first at step {at}"
    else:
        raise AssertionError("the creation never ends")


async def other_race(at: int) -> tuple[MemoryTree, Rival]:
    """The rival creates another log below the same first part."""
    tree = MemoryTree()
    await fill(tree, ["zero", ".subnamespaces/NS_0000000000/one"], 1)
    rival = Rival(tree, at, "shop/other")
    async with open_memory_store(tree) as plain:
        store = WatchedStore(tree)
        store.before = rival.before
        await logs.create_log(LogNodes(FederatedStore(store, "/ns", logs_max=5), "/ns", "shop/new"))
        assert await logs.list_logs(FederatedStore(plain, "/ns"), "/ns", "shop") == ["shop/new", "shop/other"]
        await store.aclose()
    return tree, rival


@pytest.mark.slow
def test_two_new_logs_with_the_same_first_part_meet_in_one_sub_namespace() -> None:
    for at in range(8):
        tree, rival = trio.run(other_race, at)
        assert rival.has_created
        assert len(places_of(tree, "shop")) == 1


async def crash(after_writes: int) -> tuple[MemoryTree, bool]:
    tree = MemoryTree()
    await fill(tree, ["zero"], 0)
    store = WatchedStore(tree)
    store.writes_left = after_writes
    try:
        await logs.create_log(LogNodes(FederatedStore(store, "/ns", logs_max=1), "/ns", "shop/new"))
    except ConnectionLostError:
        pass
    is_whole = not store.is_cut
    store.writes_left, store.is_cut = None, False
    await store.aclose()
    return tree, is_whole


def test_a_creation_that_is_cut_after_any_write_left_nothing_or_all_and_is_repeated() -> None:
    for after_writes in range(STEPS_MAX):
        tree, is_whole = trio.run(crash, after_writes)
        assert len(places_of(tree, "shop/new")) == is_whole
        assert trio.run(partial(create, tree, "shop/new", logs_max=1, exist_ok=True)) == SUBS[0]
        assert places_of(tree, "shop/new") == [SUBS[0]]
        assert [path for path in SUBS if path in tree._nodes] == SUBS[:1], "an empty one is used"
        if is_whole:
            break
    assert after_writes >= 2, "the sub-namespace, then the log"


async def test_a_creation_whose_reply_was_lost_is_recognised_when_it_is_repeated() -> None:
    class LosesReplies(MemoryStore):
        losses = 1

        async def commit(self, operations: Sequence[Operation]) -> None:
            await super().commit(operations)
            if self.losses:
                self.losses -= 1
                raise ConnectionLostError(operations[0].path)

    tree = MemoryTree()
    await fill(tree, ["zero"], 0)
    store = FederatedStore(LosesReplies(tree), "/ns", logs_max=1)
    with pytest.raises(ConnectionLostError):
        await logs.create_log(LogNodes(store, "/ns", "new"), token=b"mine")
    await logs.create_log(LogNodes(store, "/ns", "new"), token=b"mine")
    with pytest.raises(dlog.LogExistsError):
        await logs.create_log(LogNodes(store, "/ns", "new"), token=b"other")
    assert places_of(tree, "new") == [SUBS[0]]
    await store.aclose()


async def test_a_creator_of_apache_that_decided_before_ours_has_a_stale_version() -> None:
    """Its transaction fails as ours does: both write the list of sub-namespaces at the version read."""
    tree = MemoryTree()
    await fill(tree, ["zero"], 1)
    async with open_memory_store(tree) as java:
        version = (await java.get(LIST)).stat.version
        assert await create(tree, "new") == SUBS[0]
        with pytest.raises(BadVersionError):
            await java.commit([Put(LIST, b"/ns", version), Create("/ns/new")])


async def test_nodes_of_a_missing_log_are_created_in_its_transaction_only() -> None:
    tree = MemoryTree()
    await fill(tree, [], 0)
    async with open_memory_store(tree) as inner:
        store = FederatedStore(inner, "/ns")
        for path in ("/ns/new", "/ns/new/<default>"):
            with pytest.raises(dlog.ConfigError, match="in one transaction"):
                await store.create(path)
        with pytest.raises(dlog.ConfigError, match="in one transaction"):
            await store.create("/ns/new/<default>/lock/member", parents=True)
        assert places_of(tree, "new") == []


async def test_a_namespace_creates_writes_and_deletes_logs_and_keeps_an_empty_sub_namespace() -> None:
    async with open_cluster() as cluster:
        await fill(cluster.tree, [], 0)
        async with open_on(cluster, federated=True, logs_max=1) as opened:
            namespace = opened.namespace
            for name in ("a", "b", "shop/c"):
                await write_segments(namespace, name, 2)
            assert [await namespace.log_location(name) for name in ("a", "b", "shop/c")] == ["/ns", *SUBS[:2]]
            await namespace.delete_log("b")
            assert await namespace.list_logs() == ["a", "shop/c"]
            assert SUBS[0] in cluster.tree._nodes
            with pytest.raises(dlog.LogNotFoundError):
                await namespace.delete_log("b")
            await namespace.create_log("again")
            assert await namespace.log_location("again") == SUBS[0], "the empty one takes the next log"
            with pytest.raises(dlog.LogExistsError):
                await namespace.create_log("again")
            await namespace.create_log("a", exist_ok=True)
            assert await read_all(namespace, "shop/c") == [b"0", b"1"]
            assert (await namespace.repair.check("again")).findings == ()


@pytest.mark.zookeeper
@pytest.mark.slow
async def test_many_clients_create_each_log_once_in_zookeeper(tmp_path: Path) -> None:
    names = [f"log-{number}" for number in range(12)] + [f"shop/{number}" for number in range(4)]
    created: list[str] = []

    async def client(hosts: str, number: int) -> None:
        async with open_zookeeper_store(hosts, security=NO_SECURITY) as store:
            # They disagree about what is full, so that they choose different sub-namespaces.
            federated = FederatedStore(store, "/ns", logs_max=2 + number)
            for name in sorted(names, key=lambda name: zlib.crc32(f"{name} {number}".encode())):
                try:
                    await logs.create_log(LogNodes(federated, "/ns", name), token=b"%d" % number)
                except dlog.LogExistsError:
                    continue
                created.append(name)

    with trio.fail_after(120):
        async with (
            open_zookeeper_process(tmp_path) as server,
            open_zookeeper_store(server.hosts, security=NO_SECURITY) as store,
        ):
            await store.create(LIST, parents=True)
            async with trio.open_nursery() as nursery:
                for number in range(4):
                    nursery.start_soon(client, server.hosts, number)
            await verify(FederatedStore(store, "/ns"), names)
            assert (await store.get(LIST)).stat.version == len(names)
    assert sorted(created) == sorted(names), "each was created by one client"


async def verify(store: FederatedStore, names: Sequence[str]) -> None:
    """Each log is in one sub-namespace, and complete."""
    assert await logs.list_logs(store, "/ns") == sorted(names)
    for name in names:
        assert await store.locate(name) is not None  # raises if two have it
        await logs.open_log(LogNodes(store, "/ns", name))
