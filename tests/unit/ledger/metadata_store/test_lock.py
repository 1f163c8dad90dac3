from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ledger.metadata_store.errors import (
    ConnectionLostError,
    LockError,
    LockLostError,
    LockTakenError,
    NoNodeError,
    SessionExpiredError,
)
from ledger.metadata_store.lock import (
    DistributedLock,
    encode_client_id,
    in_order,
    member_owner,
    member_prefix,
    member_sequence,
)
from ledger.metadata_store.memory import MemoryStore, MemoryTree, open_memory_store
from ledger.metadata_store.store import Children

PATH = "/lock"


@asynccontextmanager
async def sessions() -> AsyncIterator[tuple[MemoryStore, MemoryStore]]:
    tree = MemoryTree()
    async with open_memory_store(tree) as first, open_memory_store(tree) as second:
        await first.create(PATH)
        yield first, second


async def members(store: MemoryStore) -> list[str]:
    return in_order((await store.children(PATH)).names)


def test_client_ids_are_encoded_as_java_encodes_forms() -> None:
    assert encode_client_id("host-1/10.0.0.1") == "host-1%2F10.0.0.1"
    assert encode_client_id("a b~c*d_e.f") == "a+b%7Ec*d_e.f"
    assert encode_client_id("ü") == "%C3%BC"


def test_a_session_id_takes_at_least_ten_places() -> None:
    assert member_prefix("me", 72057594037927936) == "member_me_s72057594037927936_"
    assert member_prefix("me", 7) == "member_me_s         7_"
    assert member_prefix("me", -5) == "member_me_s        -5_"


def test_members_are_ordered_by_the_number_after_the_last_underscore() -> None:
    names = ["member_x_s1_0000000010", "member_0000000002", "odd", "member_z_s9_0000000003", "n_-1"]
    assert in_order(names) == [names[4], names[1], names[3], names[0], names[2]]
    assert member_sequence("odd") is None


def test_only_a_name_of_four_parts_gives_its_owner() -> None:
    assert member_owner("member_a+b%2F_s-12_0000000001") == ("a b/", -12)
    assert member_owner("member_my_client_s12_0000000001") is None
    assert member_owner("member_0000000001") is None
    assert member_owner("member_client_0000000001") is None
    assert member_owner("member_client_x12_0000000001") is None
    assert member_owner("member_client_sx_0000000001") is None


async def test_the_member_node_has_the_name_and_data_of_java() -> None:
    async with sessions() as (store, _):
        lock = DistributedLock(store, PATH, "host-1/10.0.0.1")
        held_before = lock.held
        await lock.acquire(0)
        assert (held_before, lock.held) == (False, True)
        (name,) = await members(store)
        assert name == f"member_host-1%2F10.0.0.1_s{store.session_id:10d}_0000000000"
        node = await store.get(f"{PATH}/{name}")
        assert (node.value, node.stat.ephemeral_owner) == (b"host-1/10.0.0.1", store.session_id)
        await lock.release()
        assert not lock.held
        assert await members(store) == []
        await lock.release()


async def test_a_try_without_waiting_fails_with_the_owner_and_leaves_no_node() -> None:
    async with sessions() as (first, second):
        holder = DistributedLock(first, PATH, "client_with_underscores")
        await holder.acquire(0)
        contender = DistributedLock(second, PATH, "two")
        with pytest.raises(LockTakenError, match="current owner is client_with_underscores") as caught:
            await contender.acquire(0)
        assert caught.value.owner == "client_with_underscores"
        assert len(await members(first)) == 1
        assert (await first.children(PATH)).child_version == 1


async def test_two_locks_of_one_process_exclude_each_other() -> None:
    async with sessions() as (store, _):
        await DistributedLock(store, PATH, "same").acquire(0)
        with pytest.raises(LockTakenError):
            await DistributedLock(store, PATH, "same").acquire(0)


async def test_a_wait_with_a_timeout_ends_with_the_owner(autojump_clock: MockClock) -> None:
    async with sessions() as (first, second):
        await DistributedLock(first, PATH, "one").acquire(None)
        started = trio.current_time()
        with pytest.raises(LockTakenError, match=r"after 30 s of waiting, the current owner is one"):
            await DistributedLock(second, PATH, "two").acquire(30)
        assert trio.current_time() - started == 30
        assert len(await members(first)) == 1


async def test_waiters_get_the_lock_in_order_of_arrival() -> None:
    tree = MemoryTree()
    async with open_memory_store(tree) as store:
        await store.create(PATH)
        turns: list[int] = []

        async def contend(number: int) -> None:
            async with open_memory_store(tree) as own:
                lock = DistributedLock(own, PATH, str(number))
                await lock.acquire(None)
                turns.append(number)
                await lock.release()

        holder = DistributedLock(store, PATH, "holder")
        await holder.acquire(0)
        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(contend, number)
                await wait_all_tasks_blocked()
            assert turns == []
            await holder.release()
        assert turns == [0, 1, 2, 3, 4]
        assert await members(store) == []


class Counting(MemoryStore):
    """Counts the listings of members."""

    listings = 0

    async def children(self, path: str, *, watch: trio.Event | None = None) -> Children:
        Counting.listings += 1
        return await super().children(path, watch=watch)


async def test_a_release_wakes_only_the_next_waiter() -> None:
    tree = MemoryTree()
    async with open_memory_store(tree) as store:
        await store.create(PATH)
        holder = DistributedLock(store, PATH, "holder")
        await holder.acquire(0)
        waiting = [Counting(tree) for _ in range(5)]
        async with trio.open_nursery() as nursery:
            for number, own in enumerate(waiting):
                nursery.start_soon(DistributedLock(own, PATH, str(number)).acquire, None)
                await wait_all_tasks_blocked()
            Counting.listings = 0
            await holder.release()
            await wait_all_tasks_blocked()
            assert Counting.listings == 1
            nursery.cancel_scope.cancel()
        for own in waiting:
            await own.aclose()


async def test_a_waiter_keeps_waiting_when_its_predecessor_is_cancelled() -> None:
    tree = MemoryTree()
    async with open_memory_store(tree) as a, open_memory_store(tree) as b, open_memory_store(tree) as c:
        await a.create(PATH)
        holder, last = DistributedLock(a, PATH, "a"), DistributedLock(c, PATH, "c")
        await holder.acquire(0)
        async with trio.open_nursery() as nursery:
            async with trio.open_nursery() as middle:
                middle.start_soon(DistributedLock(b, PATH, "b").acquire, None)
                await wait_all_tasks_blocked()
                nursery.start_soon(last.acquire, None)
                await wait_all_tasks_blocked()
                middle.cancel_scope.cancel()
            await wait_all_tasks_blocked()
            assert not last.held
            assert len(await members(a)) == 2
            await holder.release()
        assert last.held


async def test_a_waiter_takes_over_when_the_holders_session_expires() -> None:
    async with sessions() as (first, second):
        holder, waiter = DistributedLock(first, PATH, "one"), DistributedLock(second, PATH, "two")
        await holder.acquire(0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiter.acquire, None)
            nursery.start_soon(holder.wait_lost)
            await wait_all_tasks_blocked()
            first.expire()
        assert waiter.held
        assert not holder.held
        await holder.release()
        assert waiter.held


async def test_cancelling_a_waiter_removes_its_member() -> None:
    async with sessions() as (first, second):
        await DistributedLock(first, PATH, "one").acquire(0)
        with trio.move_on_after(0.01) as scope:
            await DistributedLock(second, PATH, "two").acquire(None)
        assert scope.cancelled_caught
        assert len(await members(first)) == 1


async def test_a_lock_is_acquired_at_most_once() -> None:
    async with sessions() as (store, _):
        lock = DistributedLock(store, PATH, "me")
        await lock.acquire(0)
        with pytest.raises(LockError, match="only once"):
            await lock.acquire(0)
        assert lock.held
        await lock.release()
        with pytest.raises(LockError, match="released"):
            await lock.acquire(0)


async def test_releasing_while_another_task_waits_ends_its_wait() -> None:
    async with sessions() as (first, second):
        await DistributedLock(first, PATH, "one").acquire(0)
        lock = DistributedLock(second, PATH, "two")

        async def wait() -> None:
            with pytest.raises(LockError, match="released while"):
                await lock.acquire(None)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            await lock.release()
        assert len(await members(first)) == 1


async def test_a_missing_lock_path_raises_and_leaves_the_store_usable() -> None:
    async with sessions() as (store, _):
        for timeout_s in (0, 5):
            with pytest.raises(NoNodeError):
                await DistributedLock(store, "/none", "me").acquire(timeout_s)
        await DistributedLock(store, PATH, "me").acquire(5)


async def test_a_suspended_holder_does_not_hold_until_it_resumes() -> None:
    async with sessions() as (store, _):
        lock = DistributedLock(store, PATH, "me")
        await lock.acquire(0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lock.wait_lost)
            await wait_all_tasks_blocked()
            store.suspend()
            held_while_suspended = lock.held
            await wait_all_tasks_blocked()
            store.resume()
            assert (held_while_suspended, lock.held) == (False, True)
            await wait_all_tasks_blocked()
            assert lock.held
            assert len(nursery.child_tasks) == 1, "a suspension that ends in time loses nothing"
            store.suspend()
            await wait_all_tasks_blocked()
            store.expire()
        assert not lock.held


async def test_a_holder_learns_that_its_member_was_deleted() -> None:
    async with sessions() as (store, other):
        lock = DistributedLock(store, PATH, "me")
        await lock.acquire(0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lock.wait_lost)
            await wait_all_tasks_blocked()
            await other.delete(f"{PATH}/{(await members(other))[0]}")
        assert not lock.held
        await lock.release()


async def test_a_release_is_no_loss() -> None:
    async with sessions() as (store, _):
        lock = DistributedLock(store, PATH, "me")
        await lock.acquire(0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lock.wait_lost)
            await wait_all_tasks_blocked()
            await lock.release()
            await wait_all_tasks_blocked()
            assert len(nursery.child_tasks) == 1
            nursery.cancel_scope.cancel()


async def test_a_waiter_whose_member_was_deleted_takes_a_new_place() -> None:
    async with sessions() as (first, second):
        holder, waiter = DistributedLock(first, PATH, "one"), DistributedLock(second, PATH, "two")
        await holder.acquire(0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiter.acquire, None)
            await wait_all_tasks_blocked()
            before = (await members(first))[1]
            await first.delete(f"{PATH}/{before}")
            await holder.release()
        assert waiter.held
        assert len(await members(first)) == 1
        assert before not in await members(first)


async def test_a_task_that_waits_for_the_loss_of_a_released_lock_waits_until_it_is_cancelled() -> None:
    async with open_memory_store(MemoryTree()) as store:
        await store.create("/lock")
        lock = DistributedLock(store, "/lock", "a")
        await lock.acquire(0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lock.wait_lost)  # begins after the release
            await lock.release()
            with trio.move_on_after(0):
                await lock.wait_lost()
                pytest.fail("it returned")
            nursery.cancel_scope.cancel()


async def test_a_member_deleted_during_a_try_without_waiting_is_a_lost_lock() -> None:
    class Deleting(MemoryStore):
        async def create(
            self,
            path: str,
            value: bytes = b"",
            *,
            ephemeral: bool = False,
            sequential: bool = False,
            parents: bool = False,
        ) -> str:
            created = await super().create(path, value, ephemeral=ephemeral, sequential=sequential)
            await super().delete(created)
            return created

    store = Deleting(MemoryTree())
    await MemoryStore.create(store, PATH)
    with pytest.raises(LockLostError, match="was deleted from outside"):
        await DistributedLock(store, PATH, "one").acquire(0)
    await store.aclose()


async def test_a_wait_continues_after_a_suspension() -> None:
    async with sessions() as (first, second):
        holder, waiter = DistributedLock(first, PATH, "one"), DistributedLock(second, PATH, "two")
        await holder.acquire(0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiter.acquire, None)
            await wait_all_tasks_blocked()
            second.suspend()
            await holder.release()
            await wait_all_tasks_blocked()
            assert not waiter.held
            second.resume()
        assert waiter.held


async def test_a_wait_ends_with_the_session() -> None:
    async with sessions() as (first, second):
        await DistributedLock(first, PATH, "one").acquire(0)

        async def wait() -> None:
            with pytest.raises(SessionExpiredError):
                await DistributedLock(second, PATH, "two").acquire(None)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            second.expire()


async def test_acquiring_while_suspended_fails_at_once() -> None:
    async with sessions() as (store, _):
        store.suspend()
        for timeout_s in (0, 5, None):
            with pytest.raises(ConnectionLostError):
                await DistributedLock(store, PATH, "me").acquire(timeout_s)


async def test_a_release_waits_for_the_store_and_does_not_raise(autojump_clock: MockClock) -> None:
    async with sessions() as (store, other):
        lock = DistributedLock(store, PATH, "me")
        await lock.acquire(0)
        store.suspend()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lock.release)
            await trio.sleep(5)
            store.resume()
        assert await members(other) == []


async def test_the_next_acquire_deletes_a_member_that_a_release_could_not_delete(
    autojump_clock: MockClock,
) -> None:
    async with sessions() as (store, other):
        lock = DistributedLock(store, PATH, "me")
        await lock.acquire(0)
        store.suspend()
        await lock.release()
        assert trio.current_time() >= 30
        assert len(await members(other)) == 1
        store.resume()
        successor = DistributedLock(store, PATH, "me")
        await successor.acquire(0)
        assert successor.held
        assert len(await members(other)) == 1


class LosesReply(MemoryStore):
    """Creates a node and loses the reply once, as a lost connection does."""

    lose = True

    async def create(self, path: str, value: bytes = b"", **options: bool) -> str:
        created = await super().create(path, value, **options)
        if self.lose:
            self.lose = False
            raise ConnectionLostError(path)
        return created


async def test_a_member_whose_creation_got_no_reply_blocks_no_client() -> None:
    tree = MemoryTree()
    async with open_memory_store(tree) as other:
        await other.create(PATH)
        store = LosesReply(tree)
        lock_of_other = DistributedLock(other, PATH, "other")
        with pytest.raises(ConnectionLostError):
            await DistributedLock(store, PATH, "me").acquire(5)
        assert await members(other) == []
        await lock_of_other.acquire(0)
        await store.aclose()


async def test_a_stray_is_deleted_and_a_held_lock_of_its_session_stays() -> None:
    tree = MemoryTree()
    async with open_memory_store(tree) as other:
        await other.create(PATH)
        store = LosesReply(tree)
        store.lose = False
        holder = DistributedLock(store, PATH, "me")
        await holder.acquire(0)
        store.lose = True
        with pytest.raises(ConnectionLostError):
            await DistributedLock(store, PATH, "me").acquire(5)
        assert len(await members(other)) == 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(holder.wait_lost)
            await wait_all_tasks_blocked()
            assert holder.held
            nursery.cancel_scope.cancel()
        await store.aclose()


class NeverReplies(MemoryStore):
    """Creates a node and never replies."""

    async def create(self, path: str, value: bytes = b"", **options: bool) -> str:
        await super().create(path, value, **options)
        await trio.sleep_forever()
        raise AssertionError


async def test_a_cancelled_creation_leaves_no_member(
    autojump_clock: MockClock,
) -> None:
    tree = MemoryTree()
    async with open_memory_store(tree) as other:
        await other.create(PATH)
        for store in (MemoryStore(tree), NeverReplies(tree)):
            for cancelled_after_s in (0, 1):
                with trio.move_on_after(cancelled_after_s) as scope:
                    await DistributedLock(store, PATH, "me").acquire(None)
                    await trio.sleep(2)
                assert scope.cancelled_caught
            await store.aclose()
        assert await members(other) == []
