"""Auto-recovery of several programs together, over the end of a session."""

from __future__ import annotations

import logging

import pytest
import trio
from trio.testing import MockClock

from ledger.metadata_store.memory import MemoryStore
from ledger.metadata_store.sessions.renewing_store import RenewingStore
from ledger.replication import AutoRecovery, ReplicationConfig, current_auditor
from tests.fakes.replication_world import PAYLOADS, ReplicationWorld, open_world, renewing, until

CONFIG = ReplicationConfig(retry_pause_s=1)


async def elected(program: AutoRecovery) -> None:
    while not program.is_auditor:  # noqa: ASYNC110
        await trio.sleep(0.1)


async def healed(world: ReplicationWorld, ledgers: list[int], lost: str) -> None:
    async def is_healed() -> bool:
        members = [(await world.members(one))[0] for one in ledgers]
        return not any(lost in one for one in members) and not await world.marks.marked()

    await until(is_healed)
    for ledger_id in ledgers:
        world.check_replicas(ledger_id, await world.client.metadata(ledger_id), len(PAYLOADS) - 1)


@pytest.mark.slow
async def test_two_programs_heal_a_lost_bookie_and_one_takes_over_from_the_other(
    autojump_clock: MockClock,
) -> None:
    async with open_world(6) as world:
        ledgers = [await world.closed_ledger() for _ in range(10)]
        async with (
            renewing(world.cluster.tree) as one,
            renewing(world.cluster.tree) as two,
            trio.open_nursery() as nursery,
        ):
            first = AutoRecovery(world.client.context, one, "first:1", CONFIG)
            second = AutoRecovery(world.client.context, two, "second:1", CONFIG)
            scope = trio.CancelScope()

            async def run_first(*, task_status: trio.TaskStatus[None]) -> None:
                with scope:
                    await first.run(task_status=task_status)

            await nursery.start(run_first)
            await elected(first)
            await nursery.start(second.run)
            assert not second.is_auditor
            await world.lose("b1:1")
            await healed(world, ledgers, "b1:1")
            scope.cancel()
            await elected(second)
            assert await current_auditor(world.session, "/ledgers") == "second:1"
            await world.lose("b2:1")
            await healed(world, ledgers, "b2:1")
            nursery.cancel_scope.cancel()


async def test_a_program_whose_session_expires_goes_on_in_the_next_one(autojump_clock: MockClock) -> None:
    async with open_world(5) as world:
        ledgers = [await world.closed_ledger() for _ in range(4)]
        async with renewing(world.cluster.tree) as store, trio.open_nursery() as nursery:
            program = AutoRecovery(world.client.context, store, "first:1", CONFIG)
            await nursery.start(program.run)
            await elected(program)
            session = store.current_session()
            assert isinstance(session, MemoryStore)
            session.expire()
            await world.lose("b1:1")
            await healed(world, ledgers, "b1:1")
            await elected(program)
            nursery.cancel_scope.cancel()


async def test_a_store_that_is_long_out_of_reach_is_said_once_by_each_part(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_world(4) as world:
        ledger_id = await world.closed_ledger()
        lost = (await world.members(ledger_id))[0][0]
        async with renewing(world.cluster.tree) as store, trio.open_nursery() as nursery:
            program = AutoRecovery(world.client.context, store, "first:1", CONFIG)
            nursery.start_soon(program.run)
            await elected(program)
            session = store.current_session()
            assert isinstance(session, MemoryStore)
            session.suspend()
            await trio.sleep(100)
            said = [record for record in caplog.records if "out of reach" in record.getMessage()]
            assert 1 <= len(said) <= 6
            session.resume()
            await world.lose(lost)
            await healed(world, [ledger_id], lost)
            nursery.cancel_scope.cancel()


@pytest.mark.slow
@pytest.mark.parametrize("are_marked_slowly", [False, True])
async def test_a_bookie_that_is_away_is_one_line_a_minute_whatever_the_number_of_ledgers(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, are_marked_slowly: bool
) -> None:
    caplog.set_level(logging.INFO)
    async with open_world(3) as world, trio.open_nursery() as nursery:
        for _ in range(500):
            await world.closed_ledger()

        async def slowly(kind: str, path: str) -> None:
            if kind == "create":
                await trio.sleep(1)

        if are_marked_slowly:
            world.session.before = slowly
        store = RenewingStore(world.session, pytest.fail)
        await nursery.start(AutoRecovery(world.client.context, store, "first:1", CONFIG).run)
        await trio.sleep(120)  # it is the auditor, and has looked at all
        await world.lose("b1:1")
        counts = []
        for _ in range(10):
            caplog.clear()
            await trio.sleep(60)
            counts.append([record.levelno for record in caplog.records])
        marked = await world.marks.marked()
        assert (len(marked) < 500) is are_marked_slowly, "the auditor has not come to the end"
        assert counts[0].count(logging.WARNING) <= 1
        assert len(counts[0]) <= 5, "what happened, whatever the number of ledgers"
        assert max(map(len, counts[1:])) <= 1
        nursery.cancel_scope.cancel()
