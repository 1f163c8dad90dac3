"""The looks at a repair: from when to when it counts, and the rate of the writer beside it."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from ledger.replication import Outcome
from tests.bench.operate.load import STILL_S, Load, open_load
from tests.bench.operate.watching import POLL_S, RepairLooks
from tests.bench.work.link import BenchError
from tests.fakes.replication_world import ReplicationWorld, open_world

DEATH_S = 1.0


async def test_a_repair_that_is_over_before_the_next_look_takes_one_look(
    autojump_clock: MockClock,
) -> None:
    async with open_world() as world:
        ledger_id = await world.closed_ledger()
        (lost, *_), *_ = await world.members(ledger_id)
        looks = _looks(world, lost, ledger_id)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_die_and_be_restored, world, lost, ledger_id)
            times = await looks.watch()
    assert times is not None
    assert times.noticed_s < DEATH_S < times.healed_s
    assert times.healed_s - times.noticed_s <= 2 * POLL_S
    assert times.load_per_s is None


@pytest.mark.slow
async def test_a_repair_is_not_over_while_a_ledger_names_the_lost_bookie(
    autojump_clock: MockClock,
) -> None:
    async with open_world() as world:
        ledger_id = await world.closed_ledger()
        (lost, *_), *_ = await world.members(ledger_id)
        looks = _looks(world, lost, ledger_id)
        await world.lose(lost)
        with trio.move_on_after(60) as limit:
            await looks.watch()
        assert limit.cancelled_caught
        assert looks.unrestored == 1


async def test_the_looks_end_with_the_process_that_restores() -> None:
    async with open_world() as world:
        looks = RepairLooks(world.session, world.client, "nobody:1", [], None, lambda: False)
        assert await looks.watch() is None


async def test_the_rate_of_a_short_interval_counts_to_the_next_acknowledgement(
    autojump_clock: MockClock,
) -> None:
    async with open_world() as world:
        load = await open_load(world.client, sorted(world.client.membership.writable)[:3])
        interval = load.begin()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_begin_late, load, nursery)
            assert 0 < await interval.per_s() <= load.acknowledged / DEATH_S
            nursery.cancel_scope.cancel()


async def test_a_writer_that_stands_still_fails_the_benchmark(
    autojump_clock: MockClock,
) -> None:
    async with open_world() as world:
        load = await open_load(world.client, sorted(world.client.membership.writable)[:3])
        before = trio.current_time()
        with pytest.raises(BenchError, match="no acknowledgement"):
            await load.begin().per_s()
        assert trio.current_time() - before == STILL_S


def _looks(world: ReplicationWorld, lost: str, ledger_id: int) -> RepairLooks:
    return RepairLooks(world.session, world.client, lost, [ledger_id], None, lambda: True)


async def _die_and_be_restored(world: ReplicationWorld, lost: str, ledger_id: int) -> None:
    await trio.sleep(DEATH_S)
    await world.lose(lost)
    taken = await world.locked(ledger_id)
    assert await world.restorer.restore(ledger_id) is Outcome.RESTORED
    await world.marks.complete(taken)


async def _begin_late(load: Load, nursery: trio.Nursery) -> None:
    await trio.sleep(DEATH_S)
    nursery.start_soon(load.run)
