# covers: ledger/metadata_store/sessions/session.py

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ledger.metadata_store.errors import ConnectionLostError, SessionExpiredError
from ledger.metadata_store.memory import MemoryTree, open_memory_store
from ledger.metadata_store.store import Create, SessionState


async def test_an_expired_session_loses_its_ephemeral_nodes_and_fires_watches() -> None:
    tree = MemoryTree()
    async with open_memory_store(tree) as store, open_memory_store(tree) as other:
        await store.create("/e", ephemeral=True)
        mine, theirs = trio.Event(), trio.Event()
        await store.exists("/unrelated", watch=mine)
        await other.exists("/e", watch=theirs)
        store.expire()
        assert mine.is_set()
        assert theirs.is_set()
        assert await other.exists("/e") is None
        assert store.state is SessionState.EXPIRED
        with pytest.raises(SessionExpiredError):
            await store.get("/")
        store.resume()
        assert store.state is SessionState.EXPIRED


async def test_a_suspended_session_sends_nothing_and_keeps_its_nodes() -> None:
    tree = MemoryTree()
    async with open_memory_store(tree) as store, open_memory_store(tree) as other:
        await store.create("/e", ephemeral=True)
        store.suspend()
        for call in (
            store.get("/e"),
            store.put("/e", b""),
            store.create("/f"),
            store.delete("/e"),
            store.commit([Create("/g")]),
            store.children("/"),
            store.sync("/"),
        ):
            with pytest.raises(ConnectionLostError):
                await call
        assert (await other.children("/")).names == ("e",)
        store.resume()
        assert (await store.get("/e")).stat.version == 0


async def test_no_watch_fires_during_a_suspension_and_all_fire_after_it() -> None:
    tree = MemoryTree()
    async with open_memory_store(tree) as store, open_memory_store(tree) as other:
        changed, unchanged = trio.Event(), trio.Event()
        await store.exists("/a", watch=changed)
        await store.exists("/b", watch=unchanged)
        store.suspend()
        await other.create("/a")
        assert not changed.is_set()
        store.resume()
        assert changed.is_set()
        assert unchanged.is_set()


async def test_waiting_for_a_change_returns_at_once_if_the_state_differs() -> None:
    async with open_memory_store(MemoryTree()) as store:
        seen = []

        async def follow() -> None:
            state = SessionState.CONNECTED
            while state is not SessionState.EXPIRED:
                state = await store.wait_state_change(state)
                seen.append(state)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            await wait_all_tasks_blocked()
            store.suspend()
            await wait_all_tasks_blocked()
            store.resume()
            store.expire()
        assert seen == [SessionState.SUSPENDED, SessionState.EXPIRED]


async def test_a_cancelled_write_changes_nothing() -> None:
    async with open_memory_store(MemoryTree()) as store:
        with trio.CancelScope() as scope:
            scope.cancel()
            await store.create("/a")
        assert scope.cancelled_caught
        assert await store.exists("/a") is None


async def test_a_watch_without_a_waiter_is_dropped() -> None:
    async with open_memory_store(MemoryTree()) as store:
        for _ in range(100):
            await store.exists("/a", watch=trio.Event())
        assert store._session.watches.watched() == []


def test_creation_times_come_from_the_given_clock() -> None:
    async def main() -> int:
        async with open_memory_store(MemoryTree(wall_ms=lambda: 1234)) as store:
            await store.create("/a")
            return (await store.get("/a")).stat.created_ms

    assert trio.run(main, clock=MockClock()) == 1234
