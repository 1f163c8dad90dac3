"""The contract of every metadata store; ``ledger.metadata_store.store`` summarises it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from ledger.metadata_store.errors import (
    BadVersionError,
    InvalidPathError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NodeTooLargeError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
    StoreError,
)
from ledger.metadata_store.store import (
    NODE_BYTES_MAX,
    Check,
    Create,
    Delete,
    MetadataStore,
    Operation,
    Put,
    SessionState,
)
from tests.contracts.conftest import Backend


@asynccontextmanager
async def opened(backend: Backend) -> AsyncIterator[tuple[MetadataStore, str]]:
    """A session, and a node for the test to write below."""
    async with backend.open() as store:
        await store.create(backend.root, parents=True)
        yield store, backend.root


async def fired(event: trio.Event) -> bool:
    """Wait for a watch; a store that never fires it fails the test."""
    with trio.fail_after(60):
        await event.wait()
    return True


async def test_a_new_node_has_version_zero_and_no_children(backend: Backend) -> None:
    async with opened(backend) as (store, root):
        path = await store.create(f"{root}/a", b"one")
        assert path == f"{root}/a"
        node = await store.get(path)
        assert node.value == b"one"
        assert (node.stat.version, node.stat.child_version, node.stat.children_count) == (0, 0, 0)
        assert node.stat.ephemeral_owner == 0
        assert abs(node.stat.created_ms - time.time() * 1000) < 3_600_000
        assert await store.exists(path) == node.stat


async def test_several_nodes_are_read_by_one_call_and_a_missing_one_is_none(backend: Backend) -> None:
    async with opened(backend) as (store, root):
        await store.create(f"{root}/a", b"one")
        await store.put(f"{root}/a", b"two")
        found = await store.get_many([f"{root}/a", f"{root}/none", root])
        assert found == {
            f"{root}/a": await store.get(f"{root}/a"),
            f"{root}/none": None,
            root: await store.get(root),
        }
        assert await store.get_many([]) == {}
        with pytest.raises(InvalidPathError):
            await store.get_many([root, "bad"])


async def test_a_tree_is_read_with_all_nodes_below_it_and_no_others_or_not_at_all(backend: Backend) -> None:
    async with opened(backend) as (store, root):
        for name in ("a", "a/b", "a/b/c", "ab"):
            await store.create(f"{root}/{name}", name.encode())
        found = await store.read_tree(f"{root}/a")
        if found is None:
            return  # ZooKeeper reads one node at a time
        assert found == {
            path: await store.get(path) for path in (f"{root}/a", f"{root}/a/b", f"{root}/a/b/c")
        }
        assert await store.read_tree(f"{root}/none") == {}


async def test_each_put_adds_one_to_the_version(backend: Backend) -> None:
    async with opened(backend) as (store, root):
        await store.create(f"{root}/a")
        assert (await store.put(f"{root}/a", b"x")).version == 1
        assert (await store.put(f"{root}/a", b"x", expected=1)).version == 2
        assert (await store.get(f"{root}/a")).stat.version == 2


async def test_a_write_with_a_stale_version_fails(backend: Backend) -> None:
    async with opened(backend) as (store, root):
        await store.create(f"{root}/a", b"1")
        await store.put(f"{root}/a", b"2", expected=0)
        with pytest.raises(BadVersionError):
            await store.put(f"{root}/a", b"3", expected=0)
        with pytest.raises(BadVersionError):
            await store.delete(f"{root}/a", expected=0)
        assert (await store.get(f"{root}/a")).value == b"2"


async def test_a_call_on_a_missing_node_raises(backend: Backend) -> None:
    async with opened(backend) as (store, root):
        path = f"{root}/none"
        assert await store.exists(path) is None
        for call in (store.get(path), store.children(path), store.put(path, b""), store.delete(path)):
            with pytest.raises(NoNodeError) as caught:
                await call
            assert caught.value.path == path


async def test_a_node_is_created_once_and_only_below_a_parent(backend: Backend) -> None:
    async with opened(backend) as (store, root):
        await store.create(f"{root}/a", b"first")
        with pytest.raises(NodeExistsError):
            await store.create(f"{root}/a", b"second")
        with pytest.raises(NodeExistsError):
            await store.create(f"{root}/a", b"second", parents=True)
        with pytest.raises(NoNodeError):
            await store.create(f"{root}/b/c")
        assert await store.exists(f"{root}/b") is None
        assert (await store.get(f"{root}/a")).value == b"first"


async def test_missing_ancestors_are_created_on_request_persistent_and_empty(backend: Backend) -> None:
    async with opened(backend) as (store, root):
        await store.create(f"{root}/b/c/d", b"leaf", parents=True, ephemeral=True)
        for ancestor in (f"{root}/b", f"{root}/b/c"):
            node = await store.get(ancestor)
            assert (node.value, node.stat.ephemeral_owner) == (b"", 0)
        assert (await store.get(f"{root}/b/c/d")).stat.ephemeral_owner == store.session_id


async def test_a_node_with_children_is_not_deleted(backend: Backend) -> None:
    async with opened(backend) as (store, root):
        await store.create(f"{root}/a/b", parents=True)
        with pytest.raises(NotEmptyError):
            await store.delete(f"{root}/a")
        await store.delete(f"{root}/a/b")
        await store.delete(f"{root}/a", expected=0)
        assert await store.exists(f"{root}/a") is None


async def test_children_are_sorted_and_their_version_counts_creations_and_deletions(backend: Backend) -> None:
    async with opened(backend) as (store, root):
        for name in ("b", "a", "c"):
            await store.create(f"{root}/{name}")
        await store.create(f"{root}/a/deeper")
        await store.put(f"{root}/a", b"data of a child")
        children = await store.children(root)
        assert (children.names, children.child_version) == (("a", "b", "c"), 3)
        await store.delete(f"{root}/b")
        children = await store.children(root)
        assert (children.names, children.child_version) == (("a", "c"), 4)
        stat = await store.exists(root)
        assert stat is not None
        assert (stat.children_count, stat.child_version, stat.version) == (2, 4, 0)


async def test_a_node_created_again_starts_at_version_zero(backend: Backend) -> None:
    async with opened(backend) as (store, root):
        await store.create(f"{root}/a")
        await store.put(f"{root}/a", b"x")
        await store.delete(f"{root}/a")
        await store.create(f"{root}/a")
        assert (await store.get(f"{root}/a")).stat.version == 0


async def test_sequence_numbers_count_the_creations_below_the_parent_and_never_go_back(
    backend: Backend,
) -> None:
    async with opened(backend) as (store, root):
        assert await store.create(f"{root}/n-", sequential=True) == f"{root}/n-0000000000"
        assert await store.create(f"{root}/n-", sequential=True) == f"{root}/n-0000000001"
        await store.create(f"{root}/other")
        await store.delete(f"{root}/n-0000000001")
        assert await store.create(f"{root}/n-", sequential=True) == f"{root}/n-0000000003"
        await store.delete(f"{root}/n-0000000003")
        assert await store.create(f"{root}/m-", b"v", sequential=True) == f"{root}/m-0000000004"
        assert (await store.get(f"{root}/m-0000000004")).value == b"v"


async def test_a_drawn_path_is_that_of_a_sequential_node_which_is_gone(backend: Backend) -> None:
    async with opened(backend) as (store, root):
        assert await store.draw_sequential(f"{root}/ids/n-") == f"{root}/ids/n-0000000000"
        before = (await store.children(f"{root}/ids")).child_version
        watch = trio.Event()
        await store.children(f"{root}/ids", watch=watch)
        assert await store.draw_sequential(f"{root}/ids/n-") == f"{root}/ids/n-0000000001"
        assert await fired(watch)
        assert await store.create(f"{root}/ids/n-", sequential=True) == f"{root}/ids/n-0000000002"
        children = await store.children(f"{root}/ids")
        assert (children.names, children.child_version - before) == (("n-0000000002",), 3)
        assert await store.draw_sequential(f"{root}/ids/n-") == f"{root}/ids/n-0000000003"
        await store.create(f"{root}/e", ephemeral=True)
        with pytest.raises(NoChildrenForEphemeralsError):
            await store.draw_sequential(f"{root}/e/n-")


async def test_concurrent_draws_get_different_paths(backend: Backend) -> None:
    async with opened(backend) as (store, root), backend.open() as other:
        paths: list[str] = []

        async def draw(store: MetadataStore) -> None:
            paths.append(await store.draw_sequential(f"{root}/s/n"))

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(draw, store)
                nursery.start_soon(draw, other)
        assert sorted(paths) == [f"{root}/s/n{number:010d}" for number in range(20)]
        assert (await store.children(f"{root}/s")).names == ()


async def test_concurrent_creations_get_different_sequence_numbers(backend: Backend) -> None:
    async with opened(backend) as (store, root), backend.open() as other:
        paths: list[str] = []

        async def create(store: MetadataStore) -> None:
            paths.append(await store.create(f"{root}/s", sequential=True))

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(create, store)
                nursery.start_soon(create, other)
        assert sorted(paths) == [f"{root}/s{number:010d}" for number in range(40)]


async def test_data_and_names_are_stored_unchanged(backend: Backend) -> None:
    async with opened(backend) as (store, root):
        data = bytes(range(256)) * 4
        for name in ("<default>", "member_a+b%2F_s         7_", "ümlaut-日本", "with space", ".acls", "ff:1"):
            await store.create(f"{root}/{name}", data)
            assert (await store.get(f"{root}/{name}")).value == data
            assert name in (await store.children(root)).names


async def test_the_largest_node_fits_and_one_more_byte_is_refused(backend: Backend) -> None:
    async with opened(backend) as (store, root):
        await store.create(f"{root}/a", bytes(NODE_BYTES_MAX))
        assert len((await store.get(f"{root}/a")).value) == NODE_BYTES_MAX
        with pytest.raises(NodeTooLargeError):
            await store.create(f"{root}/b", bytes(NODE_BYTES_MAX + 1))
        with pytest.raises(NodeTooLargeError):
            await store.put(f"{root}/a", bytes(NODE_BYTES_MAX + 1))
        with pytest.raises(NodeTooLargeError):
            await store.commit([Create(f"{root}/c{n}", bytes(NODE_BYTES_MAX // 2)) for n in range(2)])
        assert (await store.children(root)).names == ("a",)
        stat = await store.exists(f"{root}/a")
        assert stat is not None
        assert stat.version == 0


@pytest.mark.parametrize(
    "path",
    ["", "a", "/a/", "//", "/a//b", "/a/./b", "/..", "/a\0", "/a\n", "/\x7f", "/\ud800", "/\U0001f600"],
)
async def test_an_invalid_path_is_refused(backend: Backend, path: str) -> None:
    async with backend.open() as store:
        for call in (
            store.get(path),
            store.exists(path),
            store.children(path),
            store.create(path),
            store.put(path, b""),
            store.delete(path),
            store.sync(path),
            store.commit([Check(path, 0)]),
        ):
            with pytest.raises(InvalidPathError):
                await call


async def test_the_root_can_be_listed_but_neither_created_nor_deleted(backend: Backend) -> None:
    async with opened(backend) as (store, root):
        assert root.split("/")[1] in (await store.children("/")).names
        with pytest.raises(InvalidPathError):
            await store.create("/")
        with pytest.raises(InvalidPathError):
            await store.delete("/")
        with pytest.raises(InvalidPathError):
            await store.commit([Delete("/")])


async def test_a_transaction_does_all_of_its_operations_in_order(backend: Backend) -> None:
    async with opened(backend) as (store, root):
        await store.create(f"{root}/counter", b"1")
        await store.create(f"{root}/old", b"o")
        await store.put(f"{root}/old", b"older")
        await store.commit(
            [
                Check(f"{root}/counter", 0),
                Create(f"{root}/a", b"a"),
                Create(f"{root}/a/b", b"b"),
                Delete(f"{root}/old", 1),
                Create(f"{root}/old", b"new"),
                Put(f"{root}/counter", b"2", 0),
                Put(f"{root}/counter", b"3", 1),
            ]
        )
        assert (await store.get(f"{root}/a/b")).value == b"b"
        renewed = await store.get(f"{root}/old")
        assert (renewed.value, renewed.stat.version) == (b"new", 0)
        counter = await store.get(f"{root}/counter")
        assert (counter.value, counter.stat.version) == (b"3", 2)
        await store.commit([])


@pytest.mark.parametrize("failing", range(6))
async def test_a_failed_transaction_changes_nothing_and_names_the_path(
    backend: Backend, failing: int
) -> None:
    async with opened(backend) as (store, root):
        await store.create(f"{root}/a", b"1")
        await store.create(f"{root}/full/child", parents=True)
        before = await store.get(f"{root}/a"), await store.children(root)
        operations: list[tuple[Operation, type[StoreError]]] = [
            (Check(f"{root}/a", 7), BadVersionError),
            (Put(f"{root}/a", b"", 0), BadVersionError),  # the put before it made the version 1
            (Delete(f"{root}/none"), NoNodeError),
            (Create(f"{root}/full"), NodeExistsError),
            (Create(f"{root}/none/child"), NoNodeError),
            (Delete(f"{root}/full"), NotEmptyError),
        ]
        operation, error = operations[failing]
        with pytest.raises(error) as caught:
            await store.commit(
                [Put(f"{root}/a", b"2", 0), Create(f"{root}/b"), operation, Delete(f"{root}/b")]
            )
        assert caught.value.path == operation.path
        assert (await store.get(f"{root}/a"), await store.children(root)) == before


async def test_sessions_see_each_others_writes(backend: Backend) -> None:
    async with opened(backend) as (store, root), backend.open() as other:
        await store.create(f"{root}/a", b"mine")
        await other.sync(root)
        assert (await other.get(f"{root}/a")).value == b"mine"
        await other.put(f"{root}/a", b"yours", expected=0)
        await store.sync(f"{root}/a")
        assert (await store.get(f"{root}/a")).value == b"yours"
        await store.sync(f"{root}/none")


async def test_session_ids_are_not_zero_and_differ(backend: Backend) -> None:
    async with backend.open() as store, backend.open() as other:
        assert 0 not in (store.session_id, other.session_id)
        assert store.session_id != other.session_id
        assert -(2**63) <= store.session_id < 2**63
        assert store.state is SessionState.CONNECTED


async def test_ephemeral_nodes_end_with_their_session(backend: Backend) -> None:
    async with opened(backend) as (store, root):
        await store.create(f"{root}/mine", ephemeral=True)
        async with backend.open() as other:
            await other.create(f"{root}/theirs", b"e", ephemeral=True)
            await other.create(f"{root}/kept")
            await store.sync(root)
            stat = await store.exists(f"{root}/theirs")
            assert stat is not None
            assert stat.ephemeral_owner == other.session_id
        await store.sync(root)
        children = await store.children(root)
        assert (children.names, children.child_version) == (("kept", "mine"), 4)


async def test_an_ephemeral_node_has_no_children(backend: Backend) -> None:
    async with opened(backend) as (store, root):
        await store.create(f"{root}/e", ephemeral=True)
        with pytest.raises(NoChildrenForEphemeralsError):
            await store.create(f"{root}/e/child")
        with pytest.raises(NoChildrenForEphemeralsError):
            await store.commit([Create(f"{root}/e/child")])


async def test_a_data_watch_fires_on_a_write_and_on_deletion(backend: Backend) -> None:
    async with opened(backend) as (store, root):
        await store.create(f"{root}/a")
        for change in (lambda: store.put(f"{root}/a", b"x"), lambda: store.delete(f"{root}/a")):
            by_get, by_exists = trio.Event(), trio.Event()
            await store.get(f"{root}/a", watch=by_get)
            await store.exists(f"{root}/a", watch=by_exists)
            assert not by_get.is_set()
            await change()
            assert await fired(by_get)
            assert await fired(by_exists)


async def test_an_existence_watch_fires_on_creation(backend: Backend) -> None:
    async with opened(backend) as (store, root):
        by_call, by_transaction = trio.Event(), trio.Event()
        assert await store.exists(f"{root}/a", watch=by_call) is None
        await store.create(f"{root}/a")
        assert await fired(by_call)
        assert await store.exists(f"{root}/b", watch=by_transaction) is None
        await store.commit([Create(f"{root}/b")])
        assert await fired(by_transaction)


async def test_a_children_watch_fires_on_a_child_or_on_deletion(backend: Backend) -> None:
    async with opened(backend) as (store, root):
        await store.create(f"{root}/a")
        for change in (
            lambda: store.create(f"{root}/a/b"),
            lambda: store.delete(f"{root}/a/b"),
            lambda: store.commit([Create(f"{root}/a/c"), Delete(f"{root}/a/c")]),
            lambda: store.delete(f"{root}/a"),
        ):
            watch = trio.Event()
            await store.children(f"{root}/a", watch=watch)
            await change()
            assert await fired(watch)


async def test_a_watch_does_not_fire_for_other_changes(backend: Backend) -> None:
    async with opened(backend) as (store, root):
        await store.create(f"{root}/a/b", parents=True)
        data, children, last = trio.Event(), trio.Event(), trio.Event()
        await store.get(f"{root}/a", watch=data)
        await store.children(f"{root}/a", watch=children)
        await store.get(f"{root}/a/b", watch=last)
        await store.create(f"{root}/beside")
        await store.put(f"{root}/a/b", b"a grandchild's data")
        assert await fired(last)
        assert not data.is_set()
        assert not children.is_set()


async def test_a_failed_transaction_fires_no_watch(backend: Backend) -> None:
    async with opened(backend) as (store, root):
        await store.create(f"{root}/a")
        quiet, loud = trio.Event(), trio.Event()
        await store.get(f"{root}/a", watch=quiet)
        await store.get(root, watch=loud)
        with pytest.raises(NoNodeError):
            await store.commit([Put(f"{root}/a", b"x"), Delete(f"{root}/none")])
        await store.put(root, b"x")
        assert await fired(loud)
        assert not quiet.is_set()


async def test_reading_a_missing_node_adds_no_watch(backend: Backend) -> None:
    async with opened(backend) as (store, root):
        never, later = trio.Event(), trio.Event()
        with pytest.raises(NoNodeError):
            await store.get(f"{root}/a", watch=never)
        with pytest.raises(NoNodeError):
            await store.children(f"{root}/a", watch=never)
        await store.create(f"{root}/a")
        await store.get(f"{root}/a", watch=later)
        await store.create(f"{root}/a/b")
        await store.put(f"{root}/a", b"x")
        assert await fired(later)
        assert not never.is_set()


async def test_a_watch_fires_on_a_write_and_on_the_end_of_another_session(backend: Backend) -> None:
    async with opened(backend) as (store, root):
        written, gone = trio.Event(), trio.Event()
        async with backend.open() as other:
            await other.create(f"{root}/theirs", ephemeral=True)
            await store.sync(root)
            await store.get(f"{root}/theirs", watch=written)
            await other.put(f"{root}/theirs", b"x")
            assert await fired(written)
            await store.children(root, watch=gone)
            assert not gone.is_set()
        assert await fired(gone)
        assert (await store.children(root)).names == ()


async def test_one_event_may_watch_several_nodes(backend: Backend) -> None:
    async with opened(backend) as (store, root):
        either = trio.Event()
        await store.exists(f"{root}/a", watch=either)
        await store.exists(f"{root}/b", watch=either)
        await store.create(f"{root}/b")
        assert await fired(either)
        await store.create(f"{root}/a")


async def test_a_closed_session_refuses_calls(backend: Backend) -> None:
    watch = trio.Event()
    states: list[SessionState] = []
    async with trio.open_nursery() as nursery:
        async with opened(backend) as (store, root):
            await store.exists(f"{root}/a", watch=watch)

            async def follow() -> None:
                states.append(await store.wait_state_change(SessionState.CONNECTED))

            nursery.start_soon(follow)
        assert await fired(watch)
    assert states == [SessionState.CLOSED]
    assert store.state is SessionState.CLOSED
    for call in (store.get(root), store.put(root, b""), store.commit([Check(root, 0)]), store.sync(root)):
        with pytest.raises(SessionExpiredError):
            await call
    await store.aclose()
    async with backend.open() as other:
        assert (await other.get(root)).stat.version == 0


async def test_a_cancelled_wait_leaves_the_store_usable(backend: Backend) -> None:
    async with opened(backend) as (store, root):
        for _ in range(10):
            with trio.CancelScope() as scope:
                scope.cancel()
                await store.put(root, b"x")
            with trio.move_on_after(0):
                await store.get(root, watch=trio.Event())
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(store.put, root, b"y")
            await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        version = (await store.put(root, b"z")).version
        assert 1 <= version <= 21
        assert (await store.get(root)).value == b"z"
