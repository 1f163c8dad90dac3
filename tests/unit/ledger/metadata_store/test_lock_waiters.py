"""Waiters of a lock that do not live any more: the waiters behind pass over them."""

from __future__ import annotations

import random
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ledger.metadata_store.errors import ConnectionLostError, LockTakenError
from ledger.metadata_store.lock import (
    CLAIM_S,
    WAITER_MARK,
    DistributedLock,
    claimed_member,
    in_order,
    member_prefix,
    with_claim,
)
from ledger.metadata_store.memory import MemoryStore, MemoryTree, open_memory_store
from ledger.metadata_store.store import MetadataStore, Operation
from ledger.metadata_store.zookeeper import open_zookeeper_store
from ledger.metadata_store.zookeeper_security import NO_SECURITY
from tests.fakes.zookeeper_server import open_zookeeper_process

PATH = "/lock"


@attrs.frozen
class Queue:
    """A lock with a holder, and other sessions."""

    tree: MemoryTree
    store: MemoryStore
    holder: DistributedLock

    async def add(self, store: MetadataStore, *, is_marked: bool) -> str:
        """Add a member that never acts, as that of a waiter that was killed; return its path."""
        return await store.create(
            f"{PATH}/{member_prefix('dead', store.session_id)}",
            b"dead" + (WAITER_MARK if is_marked else b""),
            ephemeral=True,
            sequential=True,
        )


@asynccontextmanager
async def queue() -> AsyncIterator[Queue]:
    tree = MemoryTree()
    with trio.fail_after(1000):
        async with open_memory_store(tree) as store:
            await store.create(PATH)
            holder = DistributedLock(store, PATH, "holder")
            await holder.acquire(0)
            yield Queue(tree, store, holder)


async def acquire(lock: DistributedLock, acquired: trio.Event) -> None:
    await lock.acquire(None)
    acquired.set()


def test_a_claim_keeps_the_first_line_of_the_lock() -> None:
    assert claimed_member(b"") is None
    assert claimed_member(b"token") is None
    assert with_claim(b"token", "m") == b"token\nm"
    assert with_claim(with_claim(b"token", "m"), "n") == b"token\nn"
    assert claimed_member(b"\nmember") == "member"


@pytest.mark.parametrize("dead", [1, 3])
async def test_killed_waiters_do_not_delay_the_hand_over(dead: int, autojump_clock: MockClock) -> None:
    async with queue() as lock, open_memory_store(lock.tree) as live, trio.open_nursery() as nursery:
        killed = [await lock.add(lock.store, is_marked=True) for _ in range(dead)]
        waiter = DistributedLock(live, PATH, "live")
        acquired = trio.Event()
        nursery.start_soon(acquire, waiter, acquired)
        await wait_all_tasks_blocked()
        began_s = trio.current_time()
        await lock.holder.release()
        await acquired.wait()
        assert trio.current_time() - began_s <= (dead + 1) * (CLAIM_S + 0.1)
        assert [await lock.store.exists(path) for path in killed] == [None] * dead


async def test_waiters_keep_their_order_when_a_killed_one_is_passed_over(autojump_clock: MockClock) -> None:
    async with queue() as lock:
        turns: list[int] = []

        async def contend(number: int) -> None:
            async with open_memory_store(lock.tree) as own:
                mine = DistributedLock(own, PATH, str(number))
                await mine.acquire(None)
                turns.append(number)
                await mine.release()

        async with trio.open_nursery() as nursery:
            for number in range(4):
                if number == 2:
                    await lock.add(lock.store, is_marked=True)
                nursery.start_soon(contend, number)
                await wait_all_tasks_blocked()
            await lock.holder.release()
        assert turns == [0, 1, 2, 3]


async def test_a_waiter_of_apaches_library_is_never_passed_over(autojump_clock: MockClock) -> None:
    async with queue() as lock, open_memory_store(lock.tree) as live:
        java = await lock.add(lock.store, is_marked=False)
        await lock.holder.release()
        with pytest.raises(LockTakenError):
            await DistributedLock(live, PATH, "live").acquire(60 * CLAIM_S)
        assert await lock.store.exists(java) is not None


async def test_a_holder_is_never_passed_over_whether_it_waited_or_not(autojump_clock: MockClock) -> None:
    async with queue() as lock, open_memory_store(lock.tree) as one, open_memory_store(lock.tree) as two:
        waited = DistributedLock(one, PATH, "one")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waited.acquire, None)
            await trio.sleep(10 * CLAIM_S)
            assert lock.holder.held, "it never waited, so it never claimed"
            await lock.holder.release()
        with pytest.raises(LockTakenError):
            await DistributedLock(two, PATH, "two").acquire(60 * CLAIM_S)
        assert waited.held


async def test_a_waiter_that_was_only_silent_takes_a_new_place(autojump_clock: MockClock) -> None:
    async with queue() as lock, open_memory_store(lock.tree) as one, open_memory_store(lock.tree) as two:
        silent, live = DistributedLock(one, PATH, "one"), DistributedLock(two, PATH, "two")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(silent.acquire, None)
            await wait_all_tasks_blocked()
            acquired = trio.Event()
            nursery.start_soon(acquire, live, acquired)
            await wait_all_tasks_blocked()
            one.suspend()
            await lock.holder.release()
            await acquired.wait()
            one.resume()
            await wait_all_tasks_blocked()
            assert not silent.held
            assert len((await two.children(PATH)).names) == 2
            await live.release()
        assert silent.held


async def test_a_claim_and_a_pass_over_exclude_each_other(autojump_clock: MockClock) -> None:
    async with queue() as lock, open_memory_store(lock.tree) as one, open_memory_store(lock.tree) as two:
        first, second = DistributedLock(one, PATH, "one"), DistributedLock(two, PATH, "two")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(first.acquire, None)
            await wait_all_tasks_blocked()
            member = in_order((await one.children(PATH)).names)[1]
            seen = (await two.get(PATH)).stat.version  # before the claim
            await lock.holder.release()
        assert first.held
        await second._pass_over(member, seen)
        assert await two.exists(f"{PATH}/{member}") is not None
        assert first.held
        # The other way round: a member that was passed over cannot claim.
        third = DistributedLock(two, PATH, "three")
        await third._create_member(is_marked=True)
        await one.delete(f"{PATH}/{third._member}")
        assert not await third._claim()
        await third.release()


async def test_a_claim_whose_reply_was_lost_holds(autojump_clock: MockClock) -> None:
    class Losing(MemoryStore):
        async def commit(self, operations: Sequence[Operation]) -> None:
            await super().commit(operations)
            raise ConnectionLostError(PATH)

    async with queue() as lock:
        store = Losing(lock.tree)
        waiter = DistributedLock(store, PATH, "one")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiter.acquire, None)
            await wait_all_tasks_blocked()
            await lock.holder.release()
        assert waiter.held
        await waiter.release()
        await store.aclose()


async def test_no_member_is_written_because_that_would_use_up_the_watch_of_a_java_waiter(
    autojump_clock: MockClock,
) -> None:
    async with queue() as lock, open_memory_store(lock.tree) as one:
        waiter = DistributedLock(one, PATH, "one")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiter.acquire, None)
            await wait_all_tasks_blocked()
            member = in_order((await one.children(PATH)).names)[1]
            changed = trio.Event()
            await one.exists(f"{PATH}/{member}", watch=changed)
            await lock.holder.release()
        assert waiter.held
        assert not changed.is_set()
        await waiter.release()
        assert changed.is_set()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
async def test_at_most_one_client_holds_the_lock_whatever_falls_silent(
    seed: int, autojump_clock: MockClock
) -> None:
    rng = random.Random(seed)
    tree, holders, turns = MemoryTree(), 0, 0

    async def contend(number: int) -> None:
        nonlocal holders, turns
        for _ in range(4):
            async with open_memory_store(tree) as own:
                lock = DistributedLock(own, PATH, f"client_{number}")
                await trio.sleep(rng.random())
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(disturb, own)
                    with trio.move_on_after(rng.choice([1, 5, 1000])):
                        await lock.acquire(None)
                        holders += 1
                        turns += 1
                        assert holders == 1, "two clients hold the lock"
                        await trio.sleep(rng.random() * 4 * CLAIM_S)
                        holders -= 1
                    if lock._phase.name == "HELD" and holders:
                        holders -= 1  # the time ended while it was held
                    await lock.release()
                    nursery.cancel_scope.cancel()

    async def disturb(store: MemoryStore) -> None:
        while True:
            await trio.sleep(rng.random() * 3)
            store.suspend()
            await trio.sleep(rng.random() * 3 * CLAIM_S)
            store.resume()

    async with open_memory_store(tree) as store:
        await store.create(PATH)
        with trio.fail_after(10_000):
            async with trio.open_nursery() as nursery:
                for number in range(5):
                    nursery.start_soon(contend, number)
        assert turns > 5
        assert (await store.children(PATH)).names == ()


WAIT_FOR_EVER = """
import sys, trio
from ledger.metadata_store.lock import DistributedLock
from ledger.metadata_store.zookeeper import open_zookeeper_store
from ledger.metadata_store.zookeeper_security import NO_SECURITY
async def main():
    async with open_zookeeper_store(sys.argv[1], session_timeout_ms=40_000, security=NO_SECURITY) as store:
        await DistributedLock(store, "/lock", "killed").acquire(None)
trio.run(main)
"""


@pytest.mark.zookeeper
@pytest.mark.slow
async def test_a_killed_process_that_waited_does_not_delay_the_hand_over(tmp_path: Path) -> None:
    """Its session lasts for 40 s. The test ends before that, or fails."""
    async with (
        open_zookeeper_process(tmp_path) as server,
        open_zookeeper_store(server.hosts, security=NO_SECURITY) as one,
        open_zookeeper_store(server.hosts, security=NO_SECURITY) as two,
    ):
        await one.create(PATH)
        holder, waiter = DistributedLock(one, PATH, "one"), DistributedLock(two, PATH, "two")
        await holder.acquire(0)
        async with trio.open_nursery() as nursery:
            process = await nursery.start(
                partial(trio.run_process, [sys.executable, "-c", WAIT_FOR_EVER, server.hosts], check=False)
            )
            with trio.fail_after(60):
                changed = trio.Event()
                while len((await one.children(PATH, watch=changed)).names) < 2:
                    await changed.wait()
                    changed = trio.Event()
            process.kill()
        async with trio.open_nursery() as nursery:
            acquired = trio.Event()
            nursery.start_soon(acquire, waiter, acquired)
            while len((await one.children(PATH)).names) < 3:  # noqa: ASYNC110
                await trio.sleep(0.01)
            names = in_order((await one.children(PATH)).names)
            dead = await one.exists(f"{PATH}/{names[1]}")
            await holder.release()
            with trio.fail_after(30):
                await acquired.wait()
        assert dead is not None, "the killed process waited in front"
