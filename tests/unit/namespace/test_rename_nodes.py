"""The transaction of a rename, on every metadata store: complete or not at all, and never over a change."""

# covers: namespace/origin.py

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import cast

import pytest
import trio

import dlog
from ledger.metadata_store.errors import ConnectionLostError
from ledger.metadata_store.lock import DistributedLock
from ledger.metadata_store.memory import MemoryTree, open_memory_store
from ledger.metadata_store.store import Create, MetadataStore, Operation
from namespace import logs
from namespace.log_nodes import LogNodes
from namespace.origin import read_origin
from namespace.properties import change_properties
from namespace.rename_nodes import Rename, rename_nodes
from namespace.segment_nodes import list_segments, set_truncation
from namespace.segments.segment import LogSegment, encode_segment
from tests.fakes.dict_namespace import WatchedStore
from tests.fakes.log_paths import paths_of

NS = "/ns"
ROOT = paths_of(NS, "old").root_path


def segment(number: int) -> LogSegment:
    return LogSegment(segment_seqno=number, ledger_id=100 + number, first_txid=number).completed(
        last_entry_id=3,
        last_slot_id=0,
        last_txid=number,
        record_count=4,
        completed_ms=1,
        start_sequence_id=4 * (number - 1),
    )


@asynccontextmanager
async def open_log(segments: int = 3) -> AsyncIterator[tuple[WatchedStore, MemoryTree]]:
    """The log ``old``, and a session that holds its lock."""
    tree = MemoryTree()
    store = WatchedStore(tree)
    await store.create(NS)
    await logs.create_log(LogNodes(store, NS, "old"))
    for number in range(1, segments + 1):
        each = segment(number)
        await store.create(paths_of(NS, "old").segment_path(each.name), encode_segment(each))
    await change_properties(LogNodes(store, NS, "old"), {"a": "1"}, None)
    lock = DistributedLock(store, paths_of(NS, "old").lock_path, "me")
    await lock.acquire(0)
    yield store, tree
    await store.aclose()


def rename(store: WatchedStore, new: str = "new", *, old: str = "old", token: bytes = b"t") -> Rename:
    return Rename(LogNodes(store, NS, old), LogNodes(store, NS, new), token)


async def tree_of(store: MetadataStore, path: str) -> dict[str, bytes]:
    """The nodes below a path, with their data; not the data of a lock."""
    found = await logs.descendants(store, path)
    return {
        each.removeprefix(path): b"" if each.endswith("/lock") else (await store.get(each)).value
        for each in found or ()
        if "/member_" not in each
    }


@pytest.mark.parametrize("new", ["new", "deep/er/new", "old/below", "older"])
async def test_all_nodes_move_with_their_data(new: str) -> None:
    async with open_log() as (store, _):
        await store.put(paths_of(NS, "old").log_path, b"of the application")
        before = await tree_of(store, ROOT)
        await rename_nodes(rename(store, new))
        after = await tree_of(store, paths_of(NS, new).root_path)
        assert after.pop("/dlog-origin") == b'{"version": 1, "origin": "old"}'
        assert after == before
        assert await logs.list_logs(store, NS) == [new]
        assert (await store.get(paths_of(NS, new).log_path)).value == b"of the application"
        left = await store.exists(paths_of(NS, "old").log_path)
        assert (left is not None) == new.startswith("old/")


async def test_a_log_may_move_to_the_name_above_it() -> None:
    async with open_log() as (store, _):
        await rename_nodes(rename(store, "old/below"))
        await DistributedLock(store, paths_of(NS, "old/below").lock_path, "me").acquire(0)
        await rename_nodes(rename(store, "old", old="old/below", token=b"u"))
        assert await logs.list_logs(store, NS) == ["old"]
        assert await store.exists(paths_of(NS, "old/below").log_path) is None


async def test_logs_below_the_old_name_stay() -> None:
    async with open_log() as (store, _):
        await logs.create_log(LogNodes(store, NS, "old/other"))
        await rename_nodes(rename(store))
        assert await logs.list_logs(store, NS) == ["new", "old/other"]


async def change_data(store: MetadataStore) -> None:
    path = paths_of(NS, "old").max_txid_path
    await store.put(path, b"7")


async def add_node(store: MetadataStore) -> None:
    await store.create(paths_of(NS, "old").retention_path, b"{}")


async def add_cursor(store: MetadataStore) -> None:
    await store.create(paths_of(NS, "old").subscriber_path("mine"), b"x", parents=True)


async def mark(store: MetadataStore) -> None:
    metadata = await logs.open_log(LogNodes(store, NS, "old"))
    first = (await list_segments(LogNodes(store, NS, "old"))).segments[0]
    await set_truncation(metadata, [first.truncated()])


async def purge(store: MetadataStore) -> None:
    await store.delete(paths_of(NS, "old").segment_path(segment(1).name))


async def create_parent(store: MetadataStore) -> None:
    await store.create(f"{NS}/deep")


async def put_application_data(store: MetadataStore) -> None:
    await store.put(paths_of(NS, "old").log_path, b"changed")


CHANGES = [change_data, add_node, add_cursor, mark, purge, create_parent, put_application_data]


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_between_the_reads_and_the_transaction_moves_along(
    change: Callable[[MetadataStore], Awaitable[None]],
) -> None:
    async with open_log() as (store, tree), open_memory_store(tree) as other:
        await store.put(paths_of(NS, "old").log_path, b"of the application")
        wanted: list[dict[str, bytes]] = []

        async def disturb(kind: str, _path: str) -> None:
            if kind == "commit" and not wanted:
                await change(other)
                found = await tree_of(other, paths_of(NS, "old").log_path)
                wanted.append(found)

        store.before = disturb
        await rename_nodes(rename(store, "deep/new"))
        found = await tree_of(store, paths_of(NS, "deep/new").log_path)
        assert found.pop("/<default>/dlog-origin")
        assert [found] == wanted


async def test_a_log_of_the_new_name_is_never_written_over() -> None:
    async with open_log() as (store, tree), open_memory_store(tree) as other:
        before = await tree_of(store, ROOT)

        async def create(kind: str, _path: str) -> None:
            if kind == "commit" and not await logs.log_exists(LogNodes(other, NS, "new")):
                await logs.create_log(LogNodes(other, NS, "new"))

        store.before = create
        for _ in range(2):
            with pytest.raises(dlog.LogExistsError, match="choose another new name"):
                await rename_nodes(rename(store))
        assert await tree_of(store, ROOT) == before


async def test_the_transaction_fails_if_the_lock_is_lost() -> None:
    async with open_log() as (store, tree), open_memory_store(tree) as other:
        lock = paths_of(NS, "old").lock_path

        async def lose(kind: str, _path: str) -> None:
            if kind == "commit":
                for name in (await other.children(lock)).names:
                    await other.delete(f"{lock}/{name}")

        store.before = lose
        with pytest.raises(dlog.LogRenameError, match="its lock was lost"):
            await rename_nodes(rename(store))
        await DistributedLock(other, lock, "another").acquire(0)
        with pytest.raises(dlog.LogRenameError, match="its lock was lost"):
            await rename_nodes(rename(store))
        assert await logs.list_logs(store, NS) == ["old"]


@pytest.mark.parametrize(
    ("path", "match"),
    [
        ("lock/member_x_s0000000001_0000000009", "waits for its lock"),
        ("readLock/member", "reads it under a lock"),
        ("subscribers/mine/readLock/member", "reads it under a lock"),
        ("dlog-promoted-from", "was moved"),
        ("dlog-promoted-to", "was moved"),
        ("dlog-promotion-lock", "was moved"),
        ("of-a-later-release", "does not know the node"),
        ("ledgers/strange", "does not know the node"),
        ("readLock/persistent", "does not know the node"),
        ("ledgers/inprogress_000000000000000009", "in progress again"),
    ],
)
async def test_a_node_that_must_not_move_stops_the_rename(path: str, match: str) -> None:
    async with open_log() as (store, _):
        value = encode_segment(LogSegment(segment_seqno=9, ledger_id=9, first_txid=9))
        path = f"{ROOT}/{path}"
        is_member = path.rpartition("/")[2].startswith("member")
        await store.create(path.rpartition("/")[0], parents=True) if "/mine/" in path else None
        await store.create(path, value, ephemeral=is_member)
        before = await tree_of(store, ROOT)
        with pytest.raises(dlog.LogRenameError, match=match):
            await rename_nodes(rename(store))
        assert await tree_of(store, ROOT) == before
        assert await logs.list_logs(store, NS) == ["old"]


async def test_data_of_an_application_at_the_new_name_are_not_lost() -> None:
    async with open_log() as (store, _):
        new = paths_of(NS, "new").log_path
        await store.create(new, b"theirs")
        await store.put(paths_of(NS, "old").log_path, b"ours")
        with pytest.raises(dlog.LogRenameError, match="data of an application"):
            await rename_nodes(rename(store))
        await store.put(paths_of(NS, "old").log_path, b"")
        await rename_nodes(rename(store))
        assert (await store.get(new)).value == b"theirs"


async def test_a_repeated_call_recognises_its_own_rename() -> None:
    async with open_log() as (store, _):
        lost: list[str] = []

        async def lose(self: MetadataStore, operations: list[Operation]) -> None:
            await commit(operations)
            lost.append("reply")
            raise ConnectionLostError("/", "the reply is lost")

        commit = store.commit
        store.commit = lose.__get__(store)  # type: ignore[method-assign]
        with pytest.raises(ConnectionLostError):
            await rename_nodes(rename(store))
        store.commit = commit  # type: ignore[method-assign]
        await rename_nodes(rename(store))
        with pytest.raises(dlog.LogExistsError):
            await rename_nodes(rename(store, token=b"another"))
        assert await logs.list_logs(store, NS) == ["new"]


@pytest.mark.slow
async def test_a_log_that_the_store_cannot_move_at_once_is_refused() -> None:
    async with open_log(0) as (store, _):
        for start in range(1, 5_000, 1_000):
            await store.commit(
                [
                    Create(paths_of(NS, "old").segment_path(each.name), encode_segment(each))
                    for each in map(segment, range(start, start + 1_000))
                ]
            )
        with pytest.raises(dlog.LogRenameError, match="Truncate and purge the log"):
            await rename_nodes(rename(store))
        assert await logs.list_logs(store, NS) == ["old"]


async def test_an_origin_is_kept_for_good_and_never_given_twice() -> None:
    async with open_log() as (store, _):

        async def move(old: str, new: str) -> None:
            lock = DistributedLock(store, paths_of(NS, old).lock_path, "me")
            if old != "old" or (await store.children(paths_of(NS, "old").lock_path)).names == ():
                await lock.acquire(0)
            await rename_nodes(rename(store, new, old=old, token=old.encode() + new.encode()))

        async def origins() -> dict[str, str]:
            return {
                log: await read_origin(LogNodes(store, NS, log)) for log in await logs.list_logs(store, NS)
            }

        await move("old", "first")
        await logs.create_log(LogNodes(store, NS, "old"))
        assert await origins() == {"first": "old", "old": "old<1>"}
        await move("old", "second")
        await logs.create_log(LogNodes(store, NS, "old"))
        await move("first", "third")
        await logs.create_log(LogNodes(store, NS, "first"))
        assert await origins() == {"third": "old", "second": "old<1>", "old": "old<2>", "first": "first<1>"}
        await move("old", "fourth")
        await move("third", "old")
        assert await origins() == {"old": "old", "second": "old<1>", "fourth": "old<2>", "first": "first<1>"}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"version": 2, "origin": "x"}',
        b'{"version": 1}',
        b'{"version": 1, "origin": ""}',
        b"\xff",
    ],
)
async def test_an_origin_that_does_not_parse_is_an_error(data: bytes) -> None:
    async with open_log() as (store, _):
        await store.create(paths_of(NS, "old").origin_path, data)
        with pytest.raises(dlog.LogMetadataError, match="dlog-origin"):
            await read_origin(LogNodes(store, NS, "old"))
        with pytest.raises(dlog.LogMetadataError, match="dlog-origin"):
            await rename_nodes(rename(store))


@pytest.mark.parametrize("data", [b"", b'{"version": 1, "times": 0, "to": "x"}', b'{"times": 1}'])
async def test_the_node_of_a_name_that_does_not_parse_is_an_error(data: bytes) -> None:
    async with open_log() as (store, _):
        await store.create(paths_of(NS, "old").renamed_path, data, parents=True)
        for call in (
            lambda: read_origin(LogNodes(store, NS, "old")),
            lambda: rename_nodes(rename(store)),
        ):
            with pytest.raises(dlog.LogMetadataError, match="dlog-renamed"):
                await cast("Callable[[], Awaitable[object]]", call)()


async def test_a_cancelled_rename_leaves_one_of_the_two_names() -> None:
    for step in range(40):
        async with open_log() as (store, _):
            with trio.CancelScope() as scope:
                steps = 0

                async def cancel(_kind: str, _path: str, step: int = step) -> None:
                    nonlocal steps
                    steps += 1
                    if steps == step:
                        scope.cancel()
                    await trio.lowlevel.checkpoint()

                store.before = store.after = cancel
                await rename_nodes(rename(store))
            store.before = store.after = WatchedStore.before
            assert len(await logs.list_logs(store, NS)) == 1
            if not scope.cancelled_caught:
                return
    raise AssertionError("the rename has more steps than that")
