"""The nodes of cursors: compare-and-set, lost replies, and the order with truncation."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from dlog.errors import (
    CursorConflictError,
    InvalidCursorNameError,
    LogInUseError,
    LogMetadataError,
    LogNotFoundError,
    LogTruncatedError,
)
from ledger.catalog import connection_retry
from ledger.metadata_store.errors import ConnectionLostError
from ledger.metadata_store.memory import MemoryStore, MemoryTree, open_memory_store
from ledger.metadata_store.store import Put
from namespace import logs
from namespace.cursor_nodes import (
    Cursor,
    advance_cursor,
    check_cursor_name,
    delete_cursor,
    list_cursors,
    place_cursor,
    read_cursor,
)
from namespace.dlsn import DLSN
from namespace.log_nodes import LogNodes
from tests.fakes.log_paths import paths_of

NS = "/shop"
NODE = f"{NS}/log/<default>/subscribers/billing"
A, B, C = DLSN(1, 5, 0), DLSN(1, 7, 2), DLSN(2, 0, 0)


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    async with open_memory_store(MemoryTree()) as opened:
        await opened.create(NS)
        await logs.create_log(LogNodes(opened, NS, "log"))
        yield opened


async def place(
    store: MemoryStore, position: DLSN, expected: Cursor | None = None, *, checks: bool = True
) -> Cursor:
    return await place_cursor(
        LogNodes(store, NS, "log"),
        "billing",
        position,
        expected=expected,
        retry_timeout_s=10,
        checks_truncation=checks,
    )


async def advance(store: MemoryStore, cursor: Cursor, position: DLSN) -> Cursor:
    return await advance_cursor(LogNodes(store, NS, cursor.log), cursor, position, retry_timeout_s=10)


async def read(store: MemoryStore) -> Cursor | None:
    return await read_cursor(LogNodes(store, NS, "log"), "billing")


async def test_a_cursor_is_stored_as_apaches_subscriber(store: MemoryStore) -> None:
    assert await list_cursors(LogNodes(store, NS, "log")) == []
    cursor = await place(store, A)
    assert cursor == Cursor("log", "billing", A, 0)
    assert (await store.get(NODE)).value == A.to_text().encode()
    moved = await advance(store, cursor, B)
    assert moved == Cursor("log", "billing", B, 1)
    assert (await store.get(NODE)).value == B.to_text().encode()
    assert await list_cursors(LogNodes(store, NS, "log")) == [moved]
    assert await read(store) == moved


async def test_a_cursor_moves_only_from_the_value_that_was_seen(store: MemoryStore) -> None:
    first = await place(store, A)
    await advance(store, first, B)
    with pytest.raises(CursorConflictError) as caught:
        await advance(store, first, C)
    assert (caught.value.expected, caught.value.actual) == (A, B)
    with pytest.raises(CursorConflictError):
        await place(store, C)
    with pytest.raises(CursorConflictError):
        await place(store, C, first)
    assert (await store.get(NODE)).value == B.to_text().encode()
    assert await delete_cursor(LogNodes(store, NS, "log"), "billing")
    assert not await delete_cursor(LogNodes(store, NS, "log"), "billing")
    with pytest.raises(CursorConflictError) as caught:
        await advance(store, Cursor("log", "billing", B, 1), C)
    assert caught.value.actual is None


@pytest.mark.parametrize("is_applied", [True, False])
async def test_a_move_whose_reply_is_lost_happens_once(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, is_applied: bool
) -> None:
    monkeypatch.setattr(connection_retry, "RETRY_PAUSE_S", 0)
    lost: list[str] = []

    def losing(name: str) -> Any:
        original = getattr(MemoryStore, name)

        async def call(self: MemoryStore, *arguments: Any, **more: Any) -> Any:
            is_first = name not in lost
            lost.append(name)
            if is_first and not is_applied:
                raise ConnectionLostError(NODE)
            result = await original(self, *arguments, **more)
            if is_first:
                raise ConnectionLostError(NODE)
            return result

        return call

    for name in ("put", "commit"):
        monkeypatch.setattr(MemoryStore, name, losing(name))
    cursor = await place(store, A)
    assert lost == (["commit"] if is_applied else ["commit", "commit"])
    assert await advance(store, cursor, B) == Cursor("log", "billing", B, 1)
    assert await read(store) == Cursor("log", "billing", B, 1)


async def test_a_cursor_is_not_placed_where_the_log_has_ended_to_be(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("namespace.cursor_nodes.first_left", lambda segments: B)
    with pytest.raises(LogTruncatedError):
        await place(store, A)
    assert await read(store) is None
    first = await place(store, B)
    with pytest.raises(LogTruncatedError):
        await place(store, A, first)
    # A reader commits behind what it has read, even if that was truncated meanwhile.
    assert await place(store, A, first, checks=False) == Cursor("log", "billing", A, 1)


async def test_a_cursor_that_is_created_during_a_truncation_sees_it(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = MemoryStore.commit
    attempts: list[int] = []

    async def truncated_before(self: MemoryStore, operations: Any) -> None:
        attempts.append(1)
        if len(attempts) == 1:
            # Each change of truncation marks writes this node.
            await commit(self, [Put(paths_of(NS, "log").version_path, b"\xff\xff\xff\xff")])
            monkeypatch.setattr("namespace.cursor_nodes.first_left", lambda segments: C)
        await commit(self, operations)

    monkeypatch.setattr(MemoryStore, "commit", truncated_before)
    with pytest.raises(LogTruncatedError):
        await place(store, A)
    assert await read(store) is None


async def test_a_node_without_a_position_is_named_and_can_be_deleted(store: MemoryStore) -> None:
    await place(store, A)
    await store.put(NODE, b"garbage")
    with pytest.raises(LogMetadataError, match="dlog cursor delete"):
        await read(store)
    with pytest.raises(LogMetadataError, match=NODE):
        await list_cursors(LogNodes(store, NS, "log"))
    assert await delete_cursor(LogNodes(store, NS, "log"), "billing")
    assert await read(store) is None


async def test_no_cursor_brings_nodes_of_a_deleted_log_back(store: MemoryStore) -> None:
    cursor = await place(store, A)
    await logs.delete_log_nodes(LogNodes(store, NS, "log"))
    with pytest.raises(LogNotFoundError):
        await place(store, A)
    with pytest.raises(CursorConflictError):
        await advance(store, cursor, B)
    with pytest.raises(LogNotFoundError):
        await list_cursors(LogNodes(store, NS, "log"))
    assert (await store.children(NS)).names == ()


async def test_the_lock_of_apaches_reader_protects_its_cursor(store: MemoryStore) -> None:
    await place(store, A)
    await store.create(f"{NODE}/readLock")
    await store.create(f"{NODE}/readLock/member")
    with pytest.raises(LogInUseError, match="readLock"):
        await delete_cursor(LogNodes(store, NS, "log"), "billing")
    assert await read(store) is not None
    await store.delete(f"{NODE}/readLock/member")
    assert await delete_cursor(LogNodes(store, NS, "log"), "billing")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\x00b", "x" * 256])
def test_a_name_that_no_node_can_have_is_refused(name: str) -> None:
    with pytest.raises(InvalidCursorNameError):
        check_cursor_name(name)


def test_other_names_are_taken() -> None:
    for name in ("billing", "a b", "x" * 255, "Prüfer"):
        assert check_cursor_name(name) == name
