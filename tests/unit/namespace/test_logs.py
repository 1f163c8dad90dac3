# covers: namespace/log_nodes.py

from __future__ import annotations

from collections.abc import Sequence

import pytest
from trio.testing import MockClock

import dlog
from dlog.errors import (
    InvalidLogNameError,
    LogExistsError,
    LogInUseError,
    LogMetadataError,
    LogNotFoundError,
    NamespaceNotBoundError,
)
from ledger.metadata_store.lock import DistributedLock
from ledger.metadata_store.memory import MemoryStore, MemoryTree, open_memory_store
from ledger.metadata_store.store import Create, MetadataStore, Operation
from namespace.log_metadata import LogMetadata, closed_by_move
from namespace.log_nodes import LogNodes
from namespace.logs import create_log, delete_log_nodes, list_logs, log_exists, open_log
from namespace.segment_nodes import list_segments, start_segment
from namespace.segments.segment import LogSegment
from tests.fakes.log_paths import paths_of

NS = "/ns"


async def new_log(store: MetadataStore, name: str = "log") -> LogMetadata:
    if await store.exists(NS) is None:
        await store.create(NS)
    await create_log(LogNodes(store, NS, name))
    return await open_log(LogNodes(store, NS, name))


def segment(seqno: int, *, ledger_id: int = 0, first_txid: int = 0) -> LogSegment:
    return LogSegment(segment_seqno=seqno, ledger_id=ledger_id or 100 + seqno, first_txid=first_txid)


async def snapshot(store: MetadataStore, path: str = NS) -> dict[str, bytes]:
    nodes = {path: (await store.get(path)).value}
    for name in (await store.children(path)).names:
        nodes |= await snapshot(store, f"{path}/{name}")
    return nodes


async def test_a_new_log_opens_with_its_initial_values() -> None:
    async with open_memory_store(MemoryTree()) as store:
        metadata = await new_log(store)
        assert metadata == LogMetadata(
            log=LogNodes(store, NS, "log"),
            max_txid=0,
            max_txid_version=0,
            max_segment_seqno=0,
            max_segment_seqno_version=0,
            allocated_ledger_id=None,
            allocation_version=0,
            marks_version=0,
        )
        assert await open_log(LogNodes(store, NS, "log")) == metadata
        assert (await store.get(paths_of(NS, "log").version_path)).value == b"\xff\xff\xff\xff"


async def test_a_log_is_created_once() -> None:
    async with open_memory_store(MemoryTree()) as store:
        metadata = await new_log(store)
        before = await snapshot(store)
        with pytest.raises(LogExistsError, match="log 'log' exists already"):
            await create_log(LogNodes(store, NS, "log"))
        await create_log(LogNodes(store, NS, "log"), exist_ok=True)
        assert await open_log(LogNodes(store, NS, "log")) == metadata
        assert await snapshot(store) == before


async def test_a_name_of_several_parts_creates_its_ancestors() -> None:
    async with open_memory_store(MemoryTree()) as store:
        await new_log(store, "a/b/c")
        await new_log(store, "a")
        await new_log(store, "a/b/d")
        assert await list_logs(store, NS) == ["a", "a/b/c", "a/b/d"]
        assert await list_logs(store, NS, "a") == ["a/b/c", "a/b/d"]
        assert await list_logs(store, NS, "a/b/") == ["a/b/c", "a/b/d"]
        assert await list_logs(store, NS, "a/b/c") == []
        assert not await log_exists(LogNodes(store, NS, "a/b"))
        assert await log_exists(LogNodes(store, NS, "a/b/c"))


async def test_reserved_nodes_of_a_namespace_are_no_logs() -> None:
    async with open_memory_store(MemoryTree()) as store:
        await new_log(store)
        await store.create(f"{NS}/.allocation_pool/p/<default>", parents=True)
        await store.create(f"{NS}/directory/left-over", parents=True)
        assert await list_logs(store, NS) == ["log"]
        assert await list_logs(store, "/none") == []


async def test_every_log_that_can_be_created_is_listed() -> None:
    """The first part of a name may not begin with a dot; other parts may."""
    names = ["a/.b", "a/.c/d", "a/.c/d/.e", "f"]
    async with open_memory_store(MemoryTree()) as store:
        for name in names:
            await new_log(store, name)
        assert await list_logs(store, NS) == names
        assert await list_logs(store, NS, "a") == names[:3]
        assert await list_logs(store, NS, "a/.c") == names[1:3]


async def test_bad_names_and_missing_namespaces_are_refused() -> None:
    async with open_memory_store(MemoryTree()) as store:
        with pytest.raises(NamespaceNotBoundError, match="/ns"):
            await create_log(LogNodes(store, NS, "log"))
        await store.create(NS)
        for call in (
            create_log(LogNodes(store, NS, "a b")),
            open_log(LogNodes(store, NS, "a b")),
            log_exists(LogNodes(store, NS, "a b")),
            delete_log_nodes(LogNodes(store, NS, "a b")),
        ):
            with pytest.raises(InvalidLogNameError):
                await call
        assert await snapshot(store) == {NS: b""}


@pytest.mark.parametrize(
    "missing", ["", "/lock", "/readLock", "/ledgers", "/maxtxid", "/version", "/allocation"]
)
async def test_a_log_without_one_of_its_nodes_is_not_found_and_create_completes_it(missing: str) -> None:
    async with open_memory_store(MemoryTree()) as store:
        await new_log(store)
        await store.put(f"{NS}/log", b"the application's")
        root = paths_of(NS, "log").root_path
        if missing:
            await store.delete(root + missing)
        else:
            for name in (await store.children(root)).names:
                await store.delete(f"{root}/{name}")
            await store.delete(root)
        with pytest.raises(LogNotFoundError, match="no node"):
            await open_log(LogNodes(store, NS, "log"))
        await create_log(LogNodes(store, NS, "log"))
        assert (await open_log(LogNodes(store, NS, "log"))).max_segment_seqno == 0
        assert (await store.get(f"{NS}/log")).value == b"the application's"


@pytest.mark.parametrize(
    ("node", "data", "reason"),
    [
        ("version", b"\0\0\0\1", "layout version 00000001"),
        ("version", b"", "layout version empty"),
        ("ledgers", b"", "greatest segment number b''"),
        ("ledgers", b"x", "greatest segment number b'x'"),
        ("allocation", b"x", "allocated ledger b'x'"),
    ],
)
async def test_a_damaged_log_is_refused_and_left_alone(node: str, data: bytes, reason: str) -> None:
    async with open_memory_store(MemoryTree()) as store:
        await new_log(store)
        await store.put(f"{paths_of(NS, 'log').root_path}/{node}", data)
        before = await snapshot(store)
        with pytest.raises(LogMetadataError, match=reason):
            await open_log(LogNodes(store, NS, "log"))
        with pytest.raises(LogMetadataError, match=reason):
            await create_log(LogNodes(store, NS, "log"), exist_ok=True)
        assert await snapshot(store) == before


async def test_a_greatest_txid_that_is_no_number_is_ignored_as_by_java() -> None:
    async with open_memory_store(MemoryTree()) as store:
        await new_log(store)
        await store.put(paths_of(NS, "log").max_txid_path, b"?")
        assert (await open_log(LogNodes(store, NS, "log"))).max_txid == -999


class Contended(MemoryStore):
    """Calls ``rival`` just before the first commit."""

    def __init__(self, tree: MemoryTree, rival: object) -> None:
        super().__init__(tree)
        self.rival = rival

    async def commit(self, operations: Sequence[Operation]) -> None:
        rival, self.rival = self.rival, None
        if rival is not None:
            await rival()  # type: ignore[operator]
        await super().commit(operations)


async def test_two_clients_that_create_the_same_log_end_with_one() -> None:
    tree = MemoryTree()
    async with open_memory_store(tree) as other:
        await other.create(NS)
        store = Contended(tree, lambda: create_log(LogNodes(other, NS, "a/log")))
        with pytest.raises(LogExistsError):
            await create_log(LogNodes(store, NS, "a/log"))
        store.rival = lambda: create_log(LogNodes(other, NS, "b/log"))
        await create_log(LogNodes(store, NS, "b/log"), exist_ok=True)
        assert (await open_log(LogNodes(store, NS, "b/log"))).log.name == "b/log"
        store.rival = lambda: create_log(LogNodes(other, NS, "c/neighbour"))
        await create_log(LogNodes(store, NS, "c/log"))
        assert await list_logs(store, NS) == ["a/log", "b/log", "c/log", "c/neighbour"]
        await store.aclose()


async def test_deleting_a_log_removes_only_its_nodes() -> None:
    async with open_memory_store(MemoryTree()) as store:
        await new_log(store, "kept")
        await new_log(store, "dir/gone")
        await store.create(paths_of(NS, "dir/gone").subscriber_read_lock_path("s"), parents=True)
        await delete_log_nodes(LogNodes(store, NS, "dir/gone"))
        assert not await log_exists(LogNodes(store, NS, "dir/gone"))
        assert await list_logs(store, NS) == ["kept"]
        assert (await store.children(f"{NS}/dir")).names == ()
        with pytest.raises(LogNotFoundError):
            await delete_log_nodes(LogNodes(store, NS, "dir/gone"))


async def test_deleting_a_log_keeps_the_logs_below_it() -> None:
    async with open_memory_store(MemoryTree()) as store:
        await new_log(store, "a")
        await store.put(f"{NS}/a", b"the application's")
        metadata = await new_log(store, "a/b")
        await start_segment(metadata, segment(1))
        before = await snapshot(store, f"{NS}/a/b")
        await delete_log_nodes(LogNodes(store, NS, "a"))
        assert await list_logs(store, NS) == ["a/b"]
        assert await snapshot(store, f"{NS}/a/b") == before
        assert (await store.get(f"{NS}/a")).value == b""
        assert not await log_exists(LogNodes(store, NS, "a"))
        await create_log(LogNodes(store, NS, "a"))


async def test_a_log_with_segments_is_not_deleted() -> None:
    async with open_memory_store(MemoryTree()) as store:
        await start_segment(await new_log(store), segment(1))
        before = await snapshot(store)
        with pytest.raises(LogInUseError, match="1 segments are left"):
            await delete_log_nodes(LogNodes(store, NS, "log"))
        assert await snapshot(store) == before


async def test_only_the_lock_of_another_session_prevents_the_deletion_of_a_log(
    autojump_clock: MockClock,
) -> None:
    tree = MemoryTree()
    async with open_memory_store(tree) as store, open_memory_store(tree) as other:
        await new_log(store)
        theirs = DistributedLock(other, paths_of(NS, "log").lock_path, "writer")
        await theirs.acquire(0)
        with pytest.raises(LogInUseError, match="a writer holds its lock"):
            await delete_log_nodes(LogNodes(store, NS, "log"))
        await theirs.release()
        mine = DistributedLock(store, paths_of(NS, "log").lock_path, "deleter")
        await mine.acquire(0)
        await delete_log_nodes(LogNodes(store, NS, "log"))
        await mine.release()
        assert await list_logs(store, NS) == []


async def test_a_segment_started_during_the_deletion_prevents_it() -> None:
    tree = MemoryTree()
    async with open_memory_store(tree) as other:
        metadata = await new_log(other)
        store = Contended(tree, lambda: start_segment(metadata, segment(1)))
        with pytest.raises(LogInUseError, match="another client has just added"):
            await delete_log_nodes(LogNodes(store, NS, "log"))
        assert len((await list_segments(LogNodes(other, NS, "log"))).segments) == 1
        await other.commit([Create(f"{NS}/unrelated")])
        await store.aclose()


@pytest.mark.parametrize("kind", [b"\xff\xff\xff\xfe", b"\xff\xff\xff\xfd", b"\xff\xff\xff\xfc"])
@pytest.mark.parametrize("uri", [b"", b"=", b"\xff", b"http://x/y"])
def test_a_promotion_to_no_namespace_is_damage(kind: bytes, uri: bytes) -> None:
    error = closed_by_move("log", kind + uri)
    assert isinstance(error, dlog.LogMetadataError)
    assert "names no namespace" in str(error)
    assert not isinstance(closed_by_move("log", kind + b"file:///shop"), dlog.LogMetadataError)
