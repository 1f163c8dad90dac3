"""The metadata of a file, read without a session: what is seen, what is refused, what is left alone."""

# covers: ledger/metadata_store/forwarding.py
# covers: ledger/metadata_store/read_only.py
# covers: ledger/metadata_store/sqlite_store/reader.py

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from ledger.metadata_store.errors import (
    NodeExistsError,
    NoNodeError,
    ReadOnlyStoreError,
    SessionExpiredError,
    StoreFormatError,
    StoreUnreachableError,
)
from ledger.metadata_store.memory import MemoryTree, open_memory_store
from ledger.metadata_store.read_only import ReadOnlyStore
from ledger.metadata_store.sqlite_store.reader import open_sqlite_reader
from ledger.metadata_store.sqlite_store.store import open_sqlite_store
from ledger.metadata_store.store import Create, MetadataStore

CHANGES: list[Callable[[MetadataStore], Awaitable[object]]] = [
    lambda store: store.create("/b", b""),
    lambda store: store.create("/b/c", b"", parents=True),
    lambda store: store.create("/b", ephemeral=True),
    lambda store: store.put("/a", b""),
    lambda store: store.delete("/a"),
    lambda store: store.commit([Create("/b")]),
    lambda store: store.commit([]),
]


def bytes_below(directory: Path) -> dict[Path, tuple[bytes, int]]:
    return {
        path: (path.read_bytes(), path.stat().st_mtime_ns) for path in directory.rglob("*") if path.is_file()
    }


async def test_it_shows_nodes_as_a_session_does_and_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    async with open_sqlite_store(path) as store:
        await store.create("/a/b", b"1", parents=True)
        await store.create("/a/c")
        await store.put("/a/b", b"2")
        await store.delete("/a/c")
        names = ("/", "/a", "/a/b")
        expected = [(await store.get(name), await store.children(name)) for name in names]
    before = bytes_below(tmp_path)
    async with open_sqlite_reader(path, is_fixed=True) as reader:
        assert [(await reader.get(name), await reader.children(name)) for name in names] == expected
        assert await reader.exists("/a/c") is None
        with pytest.raises(NoNodeError):
            await reader.get("/a/c")
        with pytest.raises(NoNodeError):
            await reader.children("/a/c")
    assert bytes_below(tmp_path) == before
    with pytest.raises(SessionExpiredError):
        await reader.get("/a")


async def test_a_fixed_reader_stays_as_it_was_and_shows_no_ephemeral_node(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    async with open_sqlite_store(path) as store:
        await store.create("/a", b"1")
        await store.create("/a/lock", ephemeral=True)
        async with open_sqlite_reader(path, is_fixed=True) as reader:
            await store.put("/a", b"2")
            await reader.sync("/a")
            assert (await reader.get("/a")).value == b"1"
            assert (await reader.children("/a")).names == ()
            assert await reader.exists("/a/lock") is None


async def test_a_reader_sees_each_write_that_was_done_before_its_call(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    async with open_sqlite_store(path) as store:
        await store.create("/a", b"")
        async with open_sqlite_reader(path, is_fixed=False) as reader:
            for number in range(30):
                await store.put("/a", b"%d" % number)
                assert (await reader.get("/a")).value == b"%d" % number
            await store.create("/a/lock", ephemeral=True)
            assert (await reader.children("/a")).names == ("lock",)


@pytest.mark.slow
async def test_a_watch_fires_when_another_session_writes(tmp_path: Path, nursery: trio.Nursery) -> None:
    path = tmp_path / "metadata.sqlite"
    async with open_sqlite_store(path) as store:
        await store.create("/a", b"")
        await store.create("/other", b"")
        async with open_sqlite_reader(path, is_fixed=False) as reader:
            nursery.start_soon(reader.keep_fresh)
            data, children, new, other = trio.Event(), trio.Event(), trio.Event(), trio.Event()
            await reader.get("/a", watch=data)
            await reader.children("/a", watch=children)
            await reader.exists("/a/new", watch=new)
            await reader.get("/other", watch=other)
            with trio.fail_after(60):
                await store.put("/a", b"1")
                await data.wait()
                assert not children.is_set()
                await store.create("/a/new")
                await children.wait()
                await new.wait()
            assert not other.is_set()
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("change", CHANGES)
async def test_every_change_is_refused(
    tmp_path: Path, change: Callable[[MetadataStore], Awaitable[object]]
) -> None:
    path = tmp_path / "metadata.sqlite"
    async with open_sqlite_store(path) as store:
        await store.create("/a", b"")
    async with open_sqlite_reader(path, is_fixed=True) as reader:
        with pytest.raises(ReadOnlyStoreError):
            await change(reader)
    async with open_memory_store(MemoryTree()) as memory:
        await memory.create("/a", b"")
        with pytest.raises(ReadOnlyStoreError):
            await change(ReadOnlyStore(memory))
        assert (await memory.children("/")).names == ("a",)
        assert (await memory.get("/a")).stat.version == 0


async def test_a_read_only_store_passes_reads_and_the_end_of_the_session_on() -> None:
    async with open_memory_store(MemoryTree()) as memory:
        await memory.create("/a", b"1")
        store, watch = ReadOnlyStore(memory), trio.Event()
        assert await store.get("/a", watch=watch) == await memory.get("/a")
        assert await store.exists("/a") == await memory.exists("/a")
        assert await store.children("/") == await memory.children("/")
        assert (store.session_id, store.state) == (memory.session_id, memory.state)
        await store.sync("/a")
        await memory.put("/a", b"2")
        assert watch.is_set()
        with pytest.raises(NodeExistsError):
            await memory.create("/a")
        state = store.state
        await store.aclose()
        assert await store.wait_state_change(state) is memory.state


async def test_a_file_that_is_no_metadata_store_is_refused(tmp_path: Path) -> None:
    async def open_at(path: Path) -> None:
        async with open_sqlite_reader(path, is_fixed=True):
            pass

    with pytest.raises(StoreUnreachableError, match="No such file"):
        await open_at(tmp_path / "missing")
    (tmp_path / "empty").touch()
    with pytest.raises(StoreUnreachableError, match="is empty"):
        await open_at(tmp_path / "empty")
    (tmp_path / "text").write_bytes(b"no database at all " * 300)
    with pytest.raises(StoreFormatError, match="not a metadata store"):
        await open_at(tmp_path / "text")
    sqlite3.connect(tmp_path / "foreign").execute("CREATE TABLE t (x)").connection.close()
    with pytest.raises(StoreFormatError, match="application id 0x0"):
        await open_at(tmp_path / "foreign")
