"""When the loop makes a call that blocks itself: a small one of SQLite on a fast disk, and no other."""

from __future__ import annotations

import math
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from ledger.metadata_store.errors import NodeExistsError
from ledger.metadata_store.sqlite_store.store import (
    LOOP_BYTES_MAX,
    LOOP_OPERATIONS_MAX,
    SqliteStore,
    open_sqlite_store,
)
from ledger.metadata_store.sqlite_store.tree import SqliteTree
from ledger.metadata_store.store import Create
from ledger.runtime.loop_calls import (
    AVERAGE_CALLS,
    CALLS_FIRST,
    CALLS_MAX,
    CALLS_PER_MS,
    FAST_S,
    STALL_S,
    LoopCalls,
)


def trusted() -> LoopCalls:
    """A rule that has seen enough fast calls."""
    rule = LoopCalls()
    for _ in range(CALLS_FIRST):
        rule.called(0.0)
    assert rule.may_call
    return rule


def fast_calls_until_trusted(rule: LoopCalls) -> int:
    count = 0
    while not rule.may_call:
        rule.called(0.0)
        count += 1
    return count


def test_a_disk_is_known_before_the_loop_waits_for_it() -> None:
    assert fast_calls_until_trusted(LoopCalls()) == CALLS_FIRST


def test_a_stall_holds_the_loop_once_and_the_longer_it_was_the_longer_the_loop_stays_away() -> None:
    for took_ms in (4, 10, 100):
        rule = trusted()
        rule.called(took_ms / 1000)
        assert fast_calls_until_trusted(rule) == CALLS_PER_MS * took_ms
    rule = trusted()
    rule.called(60.0)
    assert fast_calls_until_trusted(rule) == CALLS_MAX


def test_one_call_that_took_a_little_longer_sends_the_next_one_to_no_thread() -> None:
    rule = trusted()
    for _ in range(100):
        rule.called(STALL_S)
        assert rule.may_call
        for _ in range(9):
            rule.called(FAST_S / 2)
            assert rule.may_call


@pytest.mark.parametrize("took_s", [1.3 * FAST_S, 2 * FAST_S, STALL_S])
def test_a_disk_that_is_slow_as_a_rule_is_left_to_the_thread(took_s: float) -> None:
    rule = trusted()
    made = 0
    while rule.may_call:
        rule.called(took_s)
        made += 1
    assert made <= 2 * AVERAGE_CALLS
    for _ in range(1000):
        rule.called(took_s)
        assert not rule.may_call
    assert 0 < fast_calls_until_trusted(rule) <= 2 * AVERAGE_CALLS


@given(st.lists(st.one_of(st.just(0.0002), st.floats(0, 0.2)), max_size=400))
def test_the_loop_makes_no_call_after_a_stall_and_none_while_calls_are_slow(times_s: list[float]) -> None:
    rule, owed, average_s = LoopCalls(), CALLS_FIRST, 0.0
    for took_s in times_s:
        if took_s > STALL_S:
            owed = max(owed, min(CALLS_MAX, CALLS_PER_MS * math.ceil(took_s * 1000)))
        else:
            owed = max(0, owed - 1)
        average_s = average_s * (1 - 1 / AVERAGE_CALLS) + min(took_s, STALL_S) / AVERAGE_CALLS
        rule.called(took_s)
        if abs(average_s - FAST_S) > 1e-9:
            assert rule.may_call is (owed == 0 and average_s <= FAST_S)


class Trusting(LoopCalls):
    """A rule for tests: every call is fast, whatever else the machine does."""

    def called(self, took_s: float) -> None:
        super().called(0.0)


@asynccontextmanager
async def open_trusting(database: Path) -> AsyncIterator[SqliteStore]:
    """A store whose calls have been fast so far."""
    async with open_sqlite_store(database) as store:
        store._reads, store._writes = Trusting(), Trusting()
        for rule in (store._reads, store._writes):
            fast_calls_until_trusted(rule)
        yield store


@pytest.fixture
def callers(monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """By the name of each call: whether the last one was made in the loop, which is this thread."""
    made: dict[str, bool] = {}
    loop = threading.get_ident()

    def noted(name: str) -> Callable[..., object]:
        call = getattr(SqliteTree, name)

        def made_by(*args: object, **kwargs: object) -> object:
            made[name] = threading.get_ident() == loop
            return call(*args, **kwargs)

        return made_by

    for name in ("get", "exists", "create", "put", "commit", "checkpoint"):
        monkeypatch.setattr(SqliteTree, name, noted(name))
    return made


async def test_the_first_calls_of_a_store_are_made_by_its_thread(
    tmp_path: Path, callers: dict[str, bool]
) -> None:
    async with open_sqlite_store(tmp_path / "metadata.db") as store:
        await store.exists("/")
        await store.create("/a")
        assert callers == {"exists": False, "create": False}


async def test_small_calls_of_a_fast_database_are_made_in_the_loop(
    tmp_path: Path, callers: dict[str, bool]
) -> None:
    async with open_trusting(tmp_path / "metadata.db") as store:
        await store.create("/a", bytes(LOOP_BYTES_MAX))
        await store.get("/a")
        await store.commit([Create(f"/a/{number}") for number in range(LOOP_OPERATIONS_MAX)])
        assert callers == {"create": True, "get": True, "commit": True}


async def test_large_writes_are_made_by_the_thread(tmp_path: Path, callers: dict[str, bool]) -> None:
    async with open_trusting(tmp_path / "metadata.db") as store:
        await store.create("/a", bytes(LOOP_BYTES_MAX + 1))
        await store.put("/a", bytes(LOOP_BYTES_MAX + 1))
        await store.commit([Create(f"/a/{number}") for number in range(LOOP_OPERATIONS_MAX + 1)])
        assert callers == {"create": False, "put": False, "commit": False}
        await store.commit([Create("/b", bytes(LOOP_BYTES_MAX))])
        assert not callers["commit"], "its size counts the path, too"


async def test_writes_that_come_together_are_made_by_the_thread_but_for_the_last(
    tmp_path: Path, callers: dict[str, bool]
) -> None:
    async with open_trusting(tmp_path / "metadata.db") as store:
        seen = []

        async def create(number: int) -> None:
            await store.create(f"/{number}")
            seen.append(callers["create"])

        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(create, number)
        assert len(seen) == 4
        assert not all(seen)


async def test_reads_that_come_together_are_made_in_the_loop(
    tmp_path: Path, callers: dict[str, bool]
) -> None:
    async with open_trusting(tmp_path / "metadata.db") as store:
        seen = []

        async def read() -> None:
            await store.get("/")
            seen.append(callers["get"])

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(read)
        assert seen == [True] * 4


async def test_the_loop_does_not_wait_for_another_process_that_writes(
    tmp_path: Path, callers: dict[str, bool]
) -> None:
    async with open_trusting(tmp_path / "metadata.db") as store:
        assert store._tree._pragma("busy_timeout") == 0
        await store.create("/a")
        blocker = sqlite3.connect(tmp_path / "metadata.db", isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(store.put, "/a", b"x")
                while callers.get("put") is not False:  # the loop goes on, until the thread has tried it
                    await trio.lowlevel.checkpoint()
                blocker.execute("ROLLBACK")
        blocker.close()
        assert (await store.get("/a")).value == b"x"


class HeldGuard:
    """A guard that another thread seems to hold, until the store's thread takes it."""

    def acquire(self, blocking: bool = True) -> bool:
        assert not blocking, "the loop would wait for another thread"
        return False

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


async def test_the_loop_does_not_wait_for_a_thread_that_uses_the_database(
    tmp_path: Path, callers: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_trusting(tmp_path / "metadata.db") as store:
        await store.create("/a", b"v")
        with monkeypatch.context() as patched:
            patched.setattr(store, "_tree_guard", HeldGuard())
            assert (await store.get("/a")).value == b"v"
        assert not callers["get"]


async def test_a_call_of_the_loop_that_fails_leaves_the_store_usable(tmp_path: Path) -> None:
    async with open_trusting(tmp_path / "metadata.db") as store:
        await store.create("/a")
        with pytest.raises(NodeExistsError):
            await store.create("/a")
        await store.create("/b")
        assert (await store.children("/")).names == ("a", "b")


@pytest.mark.slow
async def test_the_wal_is_copied_into_the_database_by_the_thread_as_often_as_sqlite_would_do_it(
    tmp_path: Path, callers: dict[str, bool]
) -> None:
    database = tmp_path / "metadata.db"
    async with open_trusting(database) as store:
        assert store._tree._pragma("wal_autocheckpoint") == 0
        await store.create("/a")
        for _ in range(600):
            await store.put("/a", bytes(LOOP_BYTES_MAX))
        assert callers["checkpoint"] is False
        assert (tmp_path / "metadata.db-wal").stat().st_size < 3000 * 4096, "600 writes are more"


async def test_a_wal_that_an_earlier_process_left_is_copied_soon(
    tmp_path: Path, callers: dict[str, bool]
) -> None:
    database = tmp_path / "metadata.db"
    async with open_sqlite_store(database) as first:
        await first.create("/a", bytes(900_000))
        for _ in range(5):
            await first.put("/a", bytes(900_000))
        callers.clear()
        async with open_sqlite_store(database) as second:
            await second.create("/b")
            assert "checkpoint" in callers
