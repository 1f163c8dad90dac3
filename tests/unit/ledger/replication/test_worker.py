"""The worker: what becomes of a mark and of its lock after each outcome."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from ledger.errors import LedgerFencedError
from ledger.metadata import LedgerState
from ledger.replication.config import ReplicationConfig
from ledger.replication.worker import POLL_S
from tests.fakes.replication_world import PAYLOADS, ReplicationWorld, open_world, until

CONFIG = ReplicationConfig(open_ledger_grace_s=30, failed_ledger_pause_s=320)


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


async def test_a_ledger_that_cannot_be_restored_keeps_its_mark_and_for_a_pause_its_lock(
    autojump_clock: MockClock,
) -> None:
    async with open_world(3, CONFIG) as world, trio.open_nursery() as nursery:
        ledger_id = await world.closed_ledger()
        await world.lose("b1:1")
        await world.marks.mark(ledger_id, ["b1:1"])
        nursery.start_soon(world.worker.run)
        await trio.sleep(9)
        assert await locks(world) != ()
        assert world.worker.stats.attempts_failed == 1
        await trio.sleep(20)
        assert world.worker.stats.attempts_failed == 2
        assert not await is_unmarked(world)
        await world.cluster.start("b4:1")
        await until(lambda: is_unmarked(world))
        assert "b4:1" in (await world.members(ledger_id))[0]
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
    async with open_world(3, CONFIG) as world:
        ledger_id = await world.closed_ledger()
        await world.lose("b1:1")
        await world.marks.mark(ledger_id, ["b1:1"])
        with trio.move_on_after(5):
            await world.worker.run()
        assert await locks(world) == ()
        assert not await is_unmarked(world)
