"""A store whose sessions are replaced when they expire."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ledger.metadata_store.errors import ConnectionLostError, SessionExpiredError, StoreReplacedError
from ledger.metadata_store.lock import DistributedLock
from ledger.metadata_store.memory import MemoryTree, open_memory_store
from ledger.metadata_store.read_only import ReadOnlyStore
from ledger.metadata_store.sessions.renewing_store import RenewingStore
from ledger.metadata_store.store import Create, MetadataStore, SessionState
from tests.fakes.sessions_by_hand import NotedSession, Sessions


def calls(store: MetadataStore) -> list[Callable[[], Awaitable[object]]]:
    return [
        lambda: store.get("/a"),
        lambda: store.exists("/a"),
        lambda: store.children("/"),
        lambda: store.create("/b"),
        lambda: store.put("/a", b"x"),
        lambda: store.delete("/a"),
        lambda: store.commit([Create("/b")]),
        lambda: store.sync("/"),
    ]


async def test_an_expired_session_is_replaced_and_calls_go_on() -> None:
    sessions = Sessions()
    async with sessions.open_store() as store:
        await store.create("/a", b"1")
        before = store.session_id
        sessions.opened[0].expire()
        await wait_all_tasks_blocked()
        assert store.state is SessionState.CONNECTED
        assert store.session_id != before
        assert (await store.get("/a")).value == b"1"


async def test_without_a_session_the_store_is_suspended_and_refuses_each_call(
    autojump_clock: MockClock,
) -> None:
    sessions = Sessions()
    async with sessions.open_store() as store:
        await store.create("/a")
        sessions.failures = 3
        sessions.opened[0].expire()
        await trio.lowlevel.checkpoint()
        assert store.state is SessionState.SUSPENDED
        for call in calls(store):
            with pytest.raises(ConnectionLostError, match="the session expired and no other is open yet"):
                await call()
        with pytest.raises(ConnectionLostError):
            store.current_session()
        with trio.fail_after(60):
            assert await store.wait_state_change(SessionState.SUSPENDED) is SessionState.CONNECTED
        assert sessions.failures == 0
        assert await store.exists("/b") is None, "a refused call changed nothing"


async def test_a_session_that_expires_during_a_call_is_a_lost_connection() -> None:
    class ExpiringStore(NotedSession):
        async def put(self, *_: object, **__: object) -> None:  # type: ignore[override]
            self.expire()
            raise SessionExpiredError("/a")

    sessions = Sessions()
    store = RenewingStore(ExpiringStore(sessions.tree), sessions.open_session)
    with pytest.raises(ConnectionLostError, match="a write may be applied"):
        await store.put("/a", b"")


async def test_the_next_session_is_synced_before_it_is_used() -> None:
    """Its server may lag behind: then a reader would see completed segments in progress again."""
    sessions = Sessions()
    async with sessions.open_store() as store:
        sessions.opened[0].expire()
        await store.wait_state_change(SessionState.SUSPENDED)
        assert sessions.opened[1].is_synced


async def test_a_watch_fires_when_its_session_expires() -> None:
    sessions = Sessions()
    async with sessions.open_store() as store:
        watch = trio.Event()
        await store.children("/", watch=watch)
        sessions.opened[0].expire()
        assert watch.is_set()


async def test_what_belongs_to_one_session_ends_with_it() -> None:
    sessions = Sessions()
    async with sessions.open_store() as store:
        await store.create("/lock")
        lock = DistributedLock(store, "/lock", "me")
        await lock.acquire(0)
        session = store.current_session()
        sessions.opened[0].expire()
        await wait_all_tasks_blocked()
        assert store.state is SessionState.CONNECTED
        assert not lock.held
        await lock.wait_lost()
        assert lock.session is session
        with pytest.raises(SessionExpiredError):
            await session.exists("/lock")
        again = DistributedLock(store, "/lock", "me")
        await again.acquire(0)
        assert again.held


async def test_a_read_only_store_has_sessions_that_refuse_changes() -> None:
    sessions = Sessions()
    async with sessions.open_store() as store:
        session = ReadOnlyStore(store).current_session()
        assert isinstance(session, ReadOnlyStore)
        assert session.session_id == store.session_id


async def test_sessions_are_replaced_as_often_as_they_expire_and_the_last_is_closed() -> None:
    sessions = Sessions()
    async with sessions.open_store() as store:
        for _ in range(3):
            sessions.opened[-1].expire()
            await wait_all_tasks_blocked()
        assert len(sessions.opened) == 4
        assert store.state is SessionState.CONNECTED
    assert sessions.opened[-1].state is SessionState.CLOSED


async def test_a_replaced_store_gets_no_other_session_and_says_why() -> None:
    sessions = Sessions()
    attempts = 0

    def open_session() -> AbstractAsyncContextManager[MetadataStore]:
        nonlocal attempts
        attempts += 1
        raise StoreReplacedError("another file replaced it")

    async with sessions.open_session() as first, trio.open_nursery() as nursery:
        store = RenewingStore(first, open_session)
        nursery.start_soon(store.keep)  # it ends by itself
        states: list[SessionState] = []

        async def wait() -> None:
            while not states or states[-1] is not SessionState.EXPIRED:
                states.append(await store.wait_state_change(states[-1] if states else SessionState.CONNECTED))

        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        sessions.opened[0].expire()
        await wait_all_tasks_blocked()
        assert states[-1] is store.state is SessionState.EXPIRED
        for call in calls(store):
            with pytest.raises(SessionExpiredError, match="another file replaced it"):
                await call()
        with pytest.raises(SessionExpiredError):
            store.current_session()
    assert attempts == 1


async def test_a_call_in_flight_when_the_store_was_replaced_says_why_there_is_no_session() -> None:
    class ReplacedStore(NotedSession):
        async def put(self, *_: object, **__: object) -> None:  # type: ignore[override]
            store.end(StoreReplacedError("another file replaced it"))
            raise SessionExpiredError("/a")

    sessions = Sessions()
    store = RenewingStore(ReplacedStore(sessions.tree), sessions.open_session)
    with pytest.raises(SessionExpiredError, match="another file replaced it"):
        await store.put("/a", b"")


async def test_a_closed_store_opens_no_session_and_says_that_it_is_closed() -> None:
    sessions = Sessions()
    async with sessions.open_store() as store:
        states: list[SessionState] = []

        async def wait() -> None:
            states.append(await store.wait_state_change(SessionState.CONNECTED))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            await store.aclose()
        assert states == [SessionState.CLOSED]
        for call in calls(store):
            with pytest.raises(SessionExpiredError):
                await call()
        assert len(sessions.opened) == 1


async def test_closing_wakes_those_that_wait_for_a_session() -> None:
    sessions = Sessions()
    async with sessions.open_session() as first:
        store = RenewingStore(first, sessions.open_session)  # nothing renews it
        sessions.opened[0].expire()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.wait_state_change, SessionState.SUSPENDED)
            await wait_all_tasks_blocked()
            await store.aclose()


async def test_the_memory_store_is_its_own_session() -> None:
    async with open_memory_store(MemoryTree()) as store:
        assert store.current_session() is store
