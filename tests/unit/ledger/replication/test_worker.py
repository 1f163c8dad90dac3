"""The worker: what becomes of a mark and of its lock after each outcome."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from ledger.errors import LedgerFencedError
from ledger.metadata import LedgerState
from ledger.replication.config import ReplicationConfig
from ledger.replication.worker import LIST_PAUSE_S, POLL_S
from tests.fakes.replication_world import PAYLOADS, ReplicationWorld, open_world, until

CONFIG = ReplicationConfig(open_ledger_grace_s=30, failed_ledger_pause_s=320)


class CountedCalls:
    """Counts the calls of a session."""

    def __init__(self, session: Any) -> None:
        self.counts = Counter[str]()
        self.lists = 0  # of the marks, which begin with the locks
        for name in ("get", "children", "exists", "create", "delete", "put", "sync"):
            setattr(session, name, self._counted(name, getattr(session, name)))

    def _counted(self, name: str, call: Any) -> Any:
        async def counted(*args: Any, **options: Any) -> Any:
            self.counts[name] += 1
            self.lists += name == "children" and args[0].endswith("/locks")
            return await call(*args, **options)

        return counted


async def is_unmarked(world: ReplicationWorld) -> bool:
    return not await world.marks.marked()


async def locks(world: ReplicationWorld) -> tuple[str, ...]:
    return (await world.session.children("/ledgers/underreplication/locks")).names


async def test_marked_ledgers_are_restored_and_their_marks_removed(autojump_clock: MockClock) -> None:
    async with open_world(5) as world, trio.open_nursery() as nursery:
        ledgers = [await world.closed_ledger() for _ in range(6)]
        short = [ledger_id for ledger_id in ledgers if "b1:1" in (await world.members(ledger_id))[0]]
        await world.lose("b1:1")
        nursery.start_soon(world.worker.run)
        for ledger_id in ledgers:
            await world.marks.mark(ledger_id, ["b1:1"])
        await until(lambda: is_unmarked(world))
        for ledger_id in ledgers:
            assert "b1:1" not in (await world.members(ledger_id))[0]
            world.check_replicas(ledger_id, await world.client.metadata(ledger_id), len(PAYLOADS) - 1)
        stats = world.worker.stats
        assert (stats.ledgers_copied, stats.ledgers_restored) == (len(short), len(ledgers))
        await trio.testing.wait_all_tasks_blocked()
        assert await locks(world) == ()
        nursery.cancel_scope.cancel()


async def test_a_deleted_ledger_loses_its_mark(autojump_clock: MockClock) -> None:
    async with open_world() as world, trio.open_nursery() as nursery:
        await world.marks.mark(77, ["b1:1"])
        nursery.start_soon(world.worker.run)
        await until(lambda: is_unmarked(world))
        nursery.cancel_scope.cancel()


async def test_nothing_is_taken_while_the_switch_is_off(autojump_clock: MockClock) -> None:
    async with open_world() as world, trio.open_nursery() as nursery:
        await world.marks.switch(on=False)
        await world.marks.mark(77, ["b1:1"])
        nursery.start_soon(world.worker.run)
        await trio.sleep(2 * POLL_S)
        assert not await is_unmarked(world)
        await world.marks.switch(on=True)
        await until(lambda: is_unmarked(world))
        nursery.cancel_scope.cancel()


def deny_entry(world: ReplicationWorld, ledger_id: int, entry_id: int) -> None:
    """No bookie has this entry."""
    for bookie in world.cluster.bookies.values():
        if ledger_id in bookie.ledgers:
            bookie.ledgers[ledger_id].entries.pop(entry_id)


async def test_a_ledger_that_cannot_be_restored_keeps_its_mark_and_for_a_pause_its_lock(
    autojump_clock: MockClock,
) -> None:
    async with open_world(4, CONFIG) as world, trio.open_nursery() as nursery:
        ledger_id = await world.closed_ledger()
        (before,) = await world.members(ledger_id)
        deny_entry(world, ledger_id, 5)
        await world.lose(before[0])
        await world.marks.mark(ledger_id, [before[0]])
        nursery.start_soon(world.worker.run)
        await trio.sleep(9)
        assert await locks(world) != ()
        assert world.worker.stats.attempts_failed == 1
        await trio.sleep(20)
        assert world.worker.stats.attempts_failed == 2
        assert not await is_unmarked(world)
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_ledgers_wait_for_a_bookie_and_not_for_a_timer(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_world(3, CONFIG) as world, trio.open_nursery() as nursery:
        ledgers = [await world.closed_ledger() for _ in range(20)]
        writer = await world.client.create()
        await writer.append_many(PAYLOADS)
        await world.lose("b1:1")
        for ledger_id in [*ledgers, writer.ledger_id]:
            await world.marks.mark(ledger_id, ["b1:1"])
        nursery.start_soon(world.worker.run)
        await trio.sleep(10)
        reads = len(world.cluster.bookies["b2:1"].requests)
        await trio.sleep(599)
        assert len(world.cluster.bookies["b2:1"].requests) == reads
        assert await locks(world) == ()
        assert world.worker.stats.attempts == 0
        said = [record for record in caplog.records if "wait for a bookie" in record.message]
        assert 9 <= len(said) <= 12  # one line a minute
        assert "21 ledgers" in said[-1].message
        await writer.append(b"its writer goes on")
        began = trio.current_time()
        await world.cluster.start("b4:1")
        await until(lambda: is_unmarked_but(world, writer.ledger_id))
        assert trio.current_time() - began < LIST_PAUSE_S + 1  # at once
        await until(
            lambda: is_unmarked(world)
        )  # after the grace the open one is closed: it has a replacement
        nursery.cancel_scope.cancel()


async def is_unmarked_but(world: ReplicationWorld, ledger_id: int) -> bool:
    return [one.ledger_id for one in await world.marks.marked()] in ([], [ledger_id])


@pytest.mark.slow
async def test_a_new_mark_does_not_wait_for_the_looks_at_those_that_wait(
    autojump_clock: MockClock,
) -> None:
    async with open_world(3, CONFIG) as world, trio.open_nursery() as nursery:
        whole = await world.closed_ledger()
        await world.lose("b1:1")
        metadata = await world.client.metadata(whole)
        catalog = world.client.context.catalog
        ledgers = [(await catalog.create(metadata, None)).ledger_id for _ in range(500)]
        for ledger_id in ledgers:
            await world.marks.mark(ledger_id, ["b1:1"])

        async def slowly(kind: str, path: str) -> None:
            if kind == "get":
                await trio.sleep(0.01)

        world.session.before = slowly
        nursery.start_soon(world.worker.run)
        await trio.sleep(20)
        assert len(world.worker._waiting) < 250
        del world.cluster.bookies["b2:1"].ledgers[whole].entries[5]
        await world.marks.mark(whole, ["b2:1"])
        await trio.sleep(10)
        assert 5 in world.cluster.bookies["b2:1"].ledgers[whole].entries  # the hole is filled
        assert len(world.worker._waiting) < 400
        nursery.cancel_scope.cancel()


async def test_a_look_that_is_older_than_a_change_of_the_bookies_is_repeated() -> None:
    async with open_world(3, CONFIG) as world:
        changed = trio.Event()
        changed.set()
        world.worker._wait_for_bookies(7, changed)
        assert not world.worker._waiting
        world.worker._wait_for_bookies(7, trio.Event())
        assert world.worker._waiting == {7}


@pytest.mark.slow
async def test_looks_at_ledgers_that_wait_cost_two_reads_each_and_are_made_once(
    autojump_clock: MockClock,
) -> None:
    async with open_world(3, CONFIG) as world, trio.open_nursery() as nursery:
        first = await world.closed_ledger()
        metadata = await world.client.metadata(first)
        await world.lose("b1:1")
        catalog = world.client.context.catalog
        ledgers = [first] + [(await catalog.create(metadata, None)).ledger_id for _ in range(199)]
        for ledger_id in ledgers:
            await world.marks.mark(ledger_id, ["b1:1"])
        calls = CountedCalls(world.session)
        nursery.start_soon(world.worker.run)
        await trio.sleep(300)
        assert calls.counts["get"] == 2 * len(ledgers)
        assert calls.counts["create"] == calls.counts["delete"] == 0  # no lock is taken
        calls.counts.clear()
        calls.lists = 0
        await trio.sleep(600)
        assert calls.counts["get"] == 0
        assert calls.lists <= 11  # once a minute
        nursery.cancel_scope.cancel()


async def test_an_open_ledger_is_closed_only_after_the_grace_and_then_restored(
    autojump_clock: MockClock,
) -> None:
    async with open_world(4, CONFIG) as world, trio.open_nursery() as nursery:
        writer = await world.client.create()
        await writer.append_many(PAYLOADS)
        (before,) = await world.members(writer.ledger_id)
        await world.lose(before[0])
        await world.marks.mark(writer.ledger_id, [before[0]])
        nursery.start_soon(world.worker.run)
        await trio.sleep(CONFIG.open_ledger_grace_s - 1)
        assert (await world.client.metadata(writer.ledger_id)).state is LedgerState.OPEN
        bookies = world.cluster.bookies.values()
        assert not any(ledger.fenced for bookie in bookies for ledger in bookie.ledgers.values())
        await until(lambda: is_unmarked(world))
        metadata = await world.client.metadata(writer.ledger_id)
        assert metadata.state is LedgerState.CLOSED
        world.check_replicas(writer.ledger_id, metadata, metadata.last_entry_id)
        assert await world.payloads(writer.ledger_id) == PAYLOADS
        try:
            await writer.append(b"too late")
        except LedgerFencedError:
            pass
        else:
            raise AssertionError("a writer of a closed ledger was acknowledged")
        nursery.cancel_scope.cancel()


async def test_a_ledger_whose_writer_goes_on_is_restored_without_closing_it(
    autojump_clock: MockClock,
) -> None:
    async with open_world(5, CONFIG) as world, trio.open_nursery() as nursery:
        writer = await world.client.create()
        await writer.append_many(PAYLOADS)
        (before,) = await world.members(writer.ledger_id)
        await world.lose(before[0])
        await world.marks.mark(writer.ledger_id, [before[0]])
        nursery.start_soon(world.worker.run)
        await trio.sleep(5)
        await writer.append_many(PAYLOADS)
        await until(lambda: is_unmarked(world))
        assert (await world.client.metadata(writer.ledger_id)).state is LedgerState.OPEN
        assert all(before[0] not in bookies for bookies in await world.members(writer.ledger_id))
        await writer.append_many(PAYLOADS)
        await writer.close()
        assert await world.payloads(writer.ledger_id) == PAYLOADS * 3
        nursery.cancel_scope.cancel()


async def test_a_cancelled_worker_releases_its_locks_and_leaves_the_marks(autojump_clock: MockClock) -> None:
    async with open_world(4, CONFIG) as world:
        ledger_id = await world.closed_ledger()
        (before,) = await world.members(ledger_id)
        deny_entry(world, ledger_id, 5)
        await world.lose(before[0])
        await world.marks.mark(ledger_id, [before[0]])
        with trio.move_on_after(5):
            await world.worker.run()
        assert await locks(world) == ()
        assert not await is_unmarked(world)
