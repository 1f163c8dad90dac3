"""Announcing a bookie: the nodes, their order, expired sessions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from bookie.cluster.registration import Registration
from bookie.errors import RegistrationError
from ledger.metadata_store.errors import StoreUnreachableError
from ledger.metadata_store.memory import MemoryStore, MemoryTree, open_memory_store

WRITABLE = "/ledgers/available/b:1"
READONLY = "/ledgers/available/readonly/b:1"


def registration(store: MemoryStore, **more: float) -> Registration:
    return Registration(store, "/ledgers", "b:1", b"info", **more)


@pytest.fixture
def tree() -> MemoryTree:
    return MemoryTree()


@pytest.fixture
async def store(tree: MemoryTree) -> AsyncIterator[MemoryStore]:
    async with open_memory_store(tree) as opened:
        yield opened


async def test_a_bookie_is_announced_by_an_ephemeral_node_with_its_info(
    tree: MemoryTree, store: MemoryStore
) -> None:
    await registration(store).announce(read_only=False)
    node = await store.get(WRITABLE)
    assert node.value == b"info"
    assert node.stat.ephemeral_owner == store.session_id
    assert await store.exists(READONLY) is None


async def test_the_node_of_an_earlier_session_is_waited_for(
    tree: MemoryTree, store: MemoryStore, autojump_clock: MockClock
) -> None:
    async with open_memory_store(tree) as earlier, trio.open_nursery() as nursery:
        await registration(earlier).announce(read_only=False)
        nursery.start_soon(lambda: registration(store).announce(read_only=False))
        await wait_all_tasks_blocked()
        assert (await store.get(WRITABLE)).stat.ephemeral_owner == earlier.session_id
        earlier.expire()
    assert (await store.get(WRITABLE)).stat.ephemeral_owner == store.session_id


async def test_a_node_that_does_not_vanish_is_an_error(
    tree: MemoryTree, store: MemoryStore, autojump_clock: MockClock
) -> None:
    async with open_memory_store(tree) as other:
        await registration(other).announce(read_only=False)
        with pytest.raises(RegistrationError, match="another bookie with this id is running"):
            await registration(store, wait_s=10).announce(read_only=False)


async def test_both_nodes_exist_for_a_moment_when_the_state_changes(
    tree: MemoryTree, store: MemoryStore
) -> None:
    seen: list[tuple[bool, bool]] = []

    class Watching(MemoryStore):
        async def delete(self, path: str, *, expected: int = -1) -> None:
            seen.append((await self.exists(WRITABLE) is not None, await self.exists(READONLY) is not None))
            await super().delete(path, expected=expected)

    watching = Watching(tree)
    announced = registration(watching)
    await announced.announce(read_only=False)
    await announced.become_read_only()
    assert await store.exists(WRITABLE) is None
    assert await store.exists(READONLY) is not None
    await announced.become_writable()
    assert await store.exists(WRITABLE) is not None
    assert await store.exists(READONLY) is None
    assert seen == [(True, True), (True, True)]
    await watching.aclose()


async def test_withdrawing_removes_only_the_bookies_own_node(tree: MemoryTree, store: MemoryStore) -> None:
    announced = registration(store)
    await announced.announce(read_only=True)
    await announced.withdraw()
    assert await store.exists(READONLY) is None
    async with open_memory_store(tree) as other:
        await registration(other).announce(read_only=False)
        await announced.withdraw()
        assert await store.exists(WRITABLE) is not None


async def test_an_expired_session_is_replaced_and_the_state_kept(
    tree: MemoryTree, store: MemoryStore, autojump_clock: MockClock
) -> None:
    async with open_memory_store(tree) as watcher, trio.open_nursery() as nursery:
        announced = registration(store)
        await announced.announce(read_only=True)
        nursery.start_soon(announced.keep, lambda: open_memory_store(tree))
        for _ in range(2):
            await wait_all_tasks_blocked()
            announced.store.expire()  # type: ignore[attr-defined]
            await wait_all_tasks_blocked()
            stat = await watcher.exists(READONLY)
            assert stat is not None
            assert stat.ephemeral_owner == announced.store.session_id
        assert await watcher.exists(WRITABLE) is None
        nursery.cancel_scope.cancel()


async def test_an_unreachable_store_is_tried_again_until_the_timeout(
    tree: MemoryTree, store: MemoryStore, autojump_clock: MockClock
) -> None:
    down_until = 20.0

    def open_store() -> AbstractAsyncContextManager[MemoryStore]:
        @asynccontextmanager
        async def opening() -> AsyncIterator[MemoryStore]:
            if trio.current_time() - started < down_until:
                raise StoreUnreachableError("unreachable")
            async with open_memory_store(tree) as opened:
                yield opened

        return opening()

    started = trio.current_time()
    announced = registration(store, reopen_s=60)
    await announced.announce(read_only=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(announced.keep, open_store)
        await wait_all_tasks_blocked()
        store.expire()
        await trio.sleep(30)
        async with open_memory_store(tree) as watcher:
            assert await watcher.exists(WRITABLE) is not None
        nursery.cancel_scope.cancel()
    down_until = 1e9
    async with open_memory_store(tree) as again:
        announced = registration(again, reopen_s=60)
        await announced.announce(read_only=False)
        again.expire()
        with pytest.raises(RegistrationError, match="could not be announced again"):
            await announced.keep(open_store)
