"""Writes of several tasks at once: one transaction, with the outcomes that they have one after another."""

# covers: ledger/metadata_store/sqlite_store/waiting_writes.py

from __future__ import annotations

import errno
import random
import shutil
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from ledger.metadata_store.errors import (
    ConnectionLostError,
    MetadataError,
    NodeExistsError,
    NoNodeError,
    SessionExpiredError,
    StoreDiskError,
    StoreFullError,
)
from ledger.metadata_store.memory import MemoryTree, open_memory_store
from ledger.metadata_store.sqlite_store.copy_format import read_changes
from ledger.metadata_store.sqlite_store.store import SqliteStore, open_sqlite_store
from ledger.metadata_store.sqlite_store.tree import SqliteTree
from ledger.metadata_store.sqlite_store.waiting_writes import TOGETHER_BYTES_MAX, TOGETHER_MAX
from ledger.metadata_store.store import Check, Create, Delete, MetadataStore, Put
from tests.effort import examples

NAME = "metadata.sqlite"
Call = Callable[[], Awaitable[object]]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    async with open_sqlite_store(tmp_path / NAME) as opened:
        yield opened


def changes(store: SqliteStore) -> int:
    """The number of the last change; each transaction is one."""
    (number,) = store._tree._db.execute("SELECT number FROM change").fetchone()
    return int(number)


async def outcome_of(call: Call) -> object:
    try:
        return await call()
    except MetadataError as exc:
        return exc


async def together(store: SqliteStore, *calls: Call) -> list[Any]:
    """Let all calls wait for the same turn, in this order; return the result of each, or its error."""
    made: list[Any] = [None] * len(calls)

    async def call(number: int, *, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        made[number] = await outcome_of(calls[number])

    await store._turn.acquire()
    async with trio.open_nursery() as nursery:
        for number in range(len(calls)):
            await nursery.start(call, number)
        store._turn.release()
    return made


async def test_writes_that_wait_for_the_same_turn_are_one_transaction(store: SqliteStore) -> None:
    before, gone = changes(store), trio.Event()
    await store.children("/", watch=gone)
    paths = [f"/n{number}" for number in range(TOGETHER_MAX)]
    assert await together(store, *(partial(store.create, path) for path in paths)) == paths
    assert changes(store) == before + 1
    assert sorted((await store.children("/")).names) == sorted(path[1:] for path in paths)
    assert gone.is_set()


@pytest.mark.parametrize(("count", "size_bytes"), [(TOGETHER_MAX + 1, 1), (3, TOGETHER_BYTES_MAX // 2)])
async def test_a_transaction_has_a_limit_of_writes_and_one_of_bytes(
    store: SqliteStore, count: int, size_bytes: int
) -> None:
    before, value = changes(store), bytes(size_bytes)
    paths = [f"/n{number}" for number in range(count)]
    assert await together(store, *(partial(store.create, path, value) for path in paths)) == paths
    assert changes(store) == before + 2


async def test_a_write_that_fails_undoes_itself_and_no_other(store: SqliteStore) -> None:
    await store.create("/kept", b"1")
    before = changes(store)
    made = await together(
        store,
        partial(store.create, "/a"),
        partial(store.commit, [Create("/b", b""), Put("/kept", b"2", 0), Delete("/missing", -1)]),
        partial(store.create, "/a"),
        partial(store.put, "/kept", b"3", expected=0),
    )
    assert [type(each) for each in made[1:3]] == [NoNodeError, NodeExistsError]
    assert made[3].version == 1
    assert await store.exists("/b") is None
    assert (await store.get("/kept")).value == b"3"
    assert changes(store) == before + 1


async def test_writes_that_all_fail_are_no_change(store: SqliteStore) -> None:
    before = changes(store)
    made = await together(store, partial(store.delete, "/a"), partial(store.put, "/b", b""))
    assert [type(each) for each in made] == [NoNodeError, NoNodeError]
    assert changes(store) == before


def drawn(rng: random.Random) -> Callable[[MetadataStore], Awaitable[object]]:
    path = rng.choice(["/a", "/b", "/a/c", "/a/d", "/a/d/e"])
    expected = rng.choice([-1, -1, 0, 1])
    value = rng.randbytes(3)
    kinds: list[Callable[[MetadataStore], Awaitable[object]]] = [
        lambda store: store.create(path, value, ephemeral=expected == 1),
        lambda store: store.create(path, value, sequential=True, parents=expected == 0),
        lambda store: store.put(path, value, expected=expected),
        lambda store: store.delete(path, expected=expected),
        lambda store: store.draw_sequential(path),
        lambda store: store.commit(
            [Create("/a/c", value), Put("/a", value, expected)]
            if expected
            else [Check("/a", 0), Delete(path)]
        ),
    ]
    return rng.choice(kinds)


def shown(outcome: object) -> object:
    return type(outcome) if isinstance(outcome, MetadataError) else getattr(outcome, "version", outcome)


async def test_writes_together_have_the_outcomes_of_writes_one_after_another(store: SqliteStore) -> None:
    rng = random.Random(5)
    async with open_memory_store(MemoryTree()) as twin:
        for _ in range(examples(200)):
            calls = [drawn(rng) for _ in range(rng.randint(2, 12))]
            ours = await together(store, *(partial(call, store) for call in calls))
            theirs = [await outcome_of(partial(call, twin)) for call in calls]
            assert [shown(each) for each in ours] == [shown(each) for each in theirs]
            assert await nodes(store) == await nodes(twin)


async def nodes(store: MetadataStore) -> dict[str, tuple[bytes, int, int]]:
    found = await store.read_tree("/")
    assert found is not None
    return {path: (each.value, each.stat.version, each.stat.child_version) for path, each in found.items()}


async def test_a_write_that_is_cancelled_before_its_turn_is_not_begun(store: SqliteStore) -> None:
    scope = trio.CancelScope()

    async def cancelled() -> object:
        with scope:
            return await store.create("/never")
        return "cancelled"

    async def cancel() -> object:
        scope.cancel()
        return await store.create("/other")

    assert await together(store, cancelled, cancel) == ["cancelled", "/other"]
    assert (await store.children("/")).names == ("other",)


async def test_a_write_that_is_cancelled_when_it_has_begun_returns_its_result(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    scopes = [trio.CancelScope(), trio.CancelScope()]
    make = store._waiting._make

    async def cancelling(writes: Any) -> None:
        for scope in scopes:
            scope.cancel()
        await make(writes)

    async def create(number: int) -> object:
        with scopes[number]:
            return await store.create(f"/n{number}")
        return "cancelled"

    monkeypatch.setattr(store._waiting, "_make", cancelling)
    assert await together(store, partial(create, 0), partial(create, 1)) == ["/n0", "/n1"]
    assert (await store.children("/")).names == ("n0", "n1")


async def test_writes_that_an_error_of_the_task_interrupts_may_be_applied(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(_writes: object) -> None:
        raise KeyboardInterrupt

    async def interrupted() -> object:
        with pytest.raises(KeyboardInterrupt):
            await store.create("/a")
        return "interrupted"

    monkeypatch.setattr(store._waiting, "_make", broken)
    made = await together(store, interrupted, partial(store.create, "/b"))
    assert made[0] == "interrupted"
    assert isinstance(made[1], ConnectionLostError)
    assert "may be applied" in str(made[1])


def failing(error: Exception) -> Callable[..., object]:
    def together(*_arguments: object) -> object:
        raise error

    return together


def of_sqlite(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("from SQLite")
    error.sqlite_errorcode = code
    return error


async def test_an_error_of_the_disk_fails_each_write_under_its_own_name(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store._tree, "together", failing(of_sqlite(sqlite3.SQLITE_IOERR)))
    made = await together(store, partial(store.create, "/a"), partial(store.create, "/b"))
    assert [type(each) for each in made] == [StoreDiskError, StoreDiskError]
    assert [each.path for each in made] == ["/a", "/b"]
    assert (await store.children("/")).names == ()


async def test_an_error_for_which_sqlite_undoes_everything_is_told_as_it_is(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = SqliteTree._create

    def undone(tree: SqliteTree, path: str, *arguments: Any) -> None:
        create(tree, path, *arguments)
        if path == "/b":
            tree._db.execute("ROLLBACK")
            raise of_sqlite(sqlite3.SQLITE_IOERR)

    monkeypatch.setattr(SqliteTree, "_create", undone)
    made = await together(store, partial(store.create, "/a"), partial(store.create, "/b"))
    assert [type(each) for each in made] == [StoreDiskError, StoreDiskError]
    assert "from SQLite" in str(made[0])
    assert (await store.children("/")).names == ()


async def test_a_write_that_needs_no_space_is_made_beside_others_that_do(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.create("/kept")
    create = SqliteTree._create

    def full(tree: SqliteTree, path: str, *arguments: Any) -> None:
        create(tree, path, *arguments)
        if path == "/large":
            raise of_sqlite(sqlite3.SQLITE_FULL)

    monkeypatch.setattr(SqliteTree, "_create", full)
    made = await together(store, partial(store.create, "/large"), partial(store.delete, "/kept"))
    assert isinstance(made[0], StoreFullError)
    assert made[1] is None
    assert (await store.children("/")).names == ()


async def test_a_reserve_that_is_kept_for_deletions_refuses_one_write_and_no_other(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.create("/kept")
    monkeypatch.setattr(store._tree, "_check_space", failing(OSError(errno.ENOSPC, "full")))
    made = await together(store, partial(store.create, "/a"), partial(store.delete, "/kept"))
    assert isinstance(made[0], StoreFullError)
    assert made[1] is None
    assert (await store.children("/")).names == ()


async def test_a_session_that_is_over_changes_nothing_of_what_waits(
    store: SqliteStore, tmp_path: Path
) -> None:
    (tmp_path / NAME).rename(tmp_path / "moved")
    made = await together(store, partial(store.create, "/a"), partial(store.create, "/b"))
    assert [type(each) for each in made] == [SessionExpiredError, SessionExpiredError]
    assert store.replaced is not None


def test_a_power_cut_before_the_commit_leaves_all_of_them_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second copy has them as one change, which is taken whole."""
    here, cut = tmp_path / "here", tmp_path / "cut"
    here.mkdir()
    tree = SqliteTree(here / NAME)
    tree.put("/", b"before", -1)

    def cut_power() -> None:
        shutil.rmtree(cut, ignore_errors=True)
        # The last call is right before the commit.
        shutil.copytree(here, cut, ignore=shutil.ignore_patterns("*-sessions"))

    monkeypatch.setattr(tree, "_check_place", cut_power)
    created = partial(tree.create, ephemeral=False, sequential=False, parents=False)
    works: list[Callable[[], object]] = [
        partial(created, "/a", b"1"),
        partial(tree.delete, "/missing", -1),
        partial(created, "/b", b"2"),
    ]
    tree.together(works)
    last = read_changes((cut / "metadata.copy").read_bytes())[-1]
    assert {"/a", "/b"} <= last.rows.keys()
    for _ in range(2):
        again = SqliteTree(cut / NAME)
        assert again.get("/a")[0].value == b"1"
        assert again.get("/b")[0].value == b"2"
        again.close()
    monkeypatch.undo()
    tree.close()
