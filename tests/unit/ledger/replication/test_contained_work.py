"""One ledger or one node of a kind that nobody foresaw ends neither auto-recovery nor the work on others."""

# covers: ledger/catalog/under_replicated.py
# covers: ledger/replication/failure_backoff.py

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from ledger.catalog.catalog import LedgerCatalog, Versioned
from ledger.catalog.paths import (
    AUDITOR_ELECTION,
    CHECK_ALL_LEDGERS_CTIME,
    LOST_BOOKIE_RECOVERY_DELAY,
    PLACEMENT_POLICY_CHECK_CTIME,
    underreplicated_path,
)
from ledger.decommission.evacuation import evacuate_bookies
from ledger.errors import LedgerWriteError
from ledger.fragments.registered import RegisteredBookies
from ledger.replication import AutoRecovery, ReplicationConfig
from ledger.replication.auditor import Auditor
from ledger.replication.election import AuditorElection
from ledger.replication.ledger_restorer import LedgerRestorer
from ledger.replication.marks import UnderReplicatedLedgers
from ledger.runtime.tasks.failure_domain import contained_failures
from ledger.write.handle import WriteHandle
from tests.fakes.replication_world import ReplicationWorld, open_world, renewing, until
from tests.unit.ledger.replication.test_autorecovery import elected, healed

CONFIG = ReplicationConfig(retry_pause_s=1, failed_ledger_pause_s=1)


class UnforeseenError(Exception):
    """As a library may raise it."""


def failing_for(ledger_id: int, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def faulty(one: object, subject: object, *args: object, **more: object) -> Any:
        found = subject.ledger_id if isinstance(subject, Versioned) else subject
        if found == ledger_id:
            raise UnforeseenError("at this ledger")
        return await call(one, subject, *args, **more)

    return faulty


async def recovering(world: ReplicationWorld, nursery: trio.Nursery, store: Any) -> AutoRecovery:
    program = AutoRecovery(world.client.context, store, "first:1", CONFIG)
    await nursery.start(program.run)
    return program


@pytest.mark.slow
async def test_a_ledger_whose_work_fails_is_left_and_the_others_are_restored(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_world(6) as world:
        ledgers = [await world.closed_ledger() for _ in range(6)]
        bad, before = ledgers[2], contained_failures["restoring a ledger"]
        monkeypatch.setattr(LedgerRestorer, "restore", failing_for(bad, LedgerRestorer.restore))
        async with renewing(world.cluster.tree) as store, trio.open_nursery() as nursery:
            program = await recovering(world, nursery, store)
            await elected(program)
            for lost in ("b1:1", "b2:1"):
                await world.lose(lost)
            others = [one for one in ledgers if one != bad]

            async def are_restored() -> bool:
                members = [(await world.members(one))[0] for one in others]
                return not any({"b1:1", "b2:1"} & set(one) for one in members)

            await until(are_restored)
            if {"b1:1", "b2:1"} & set((await world.members(bad))[0]):
                await trio.sleep(20)
                failures = contained_failures["restoring a ledger"] - before
                assert 2 <= failures <= 200  # again and again, with pauses
                monkeypatch.undo()
                await healed(world, ledgers, "b1:1")
            nursery.cancel_scope.cancel()


async def test_a_ledger_whose_audit_fails_is_left_and_the_others_are_marked(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_world(4) as world:
        ledgers = [await world.closed_ledger(ensemble_size=3) for _ in range(4)]
        before = contained_failures["audit of a ledger"]
        visited: list[int] = []

        async def visit(current: Versioned, _: RegisteredBookies) -> None:
            if current.ledger_id == ledgers[1]:
                raise UnforeseenError("at this ledger")
            visited.append(current.ledger_id)

        await world.auditor._visits.check_each(visit)
        assert sorted(visited) == [one for one in ledgers if one != ledgers[1]]
        assert contained_failures["audit of a ledger"] == before + 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "method", "operation"),
    [
        (Auditor, "audit", "audit"),
        (Auditor, "check_ledgers", "check of all ledgers (reads)"),
        (AuditorElection, "wait_elected", "auditor"),
        (LedgerRestorer, "close_if_stuck", "closing a ledger"),
        (UnderReplicatedLedgers, "complete", "re-replication"),
    ],
)
async def test_an_error_in_one_round_ends_the_round_and_a_later_one_heals(
    owner: type, method: str, operation: str, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_world(5) as world:
        ledgers = [await world.closed_ledger() for _ in range(3)]
        failures_left, call = 2, getattr(owner, method)

        async def faulty(*args: object, **more: object) -> object:
            nonlocal failures_left
            if failures_left:
                failures_left -= 1
                raise UnforeseenError("this time")
            return await call(*args, **more)

        monkeypatch.setattr(owner, method, faulty)
        before = contained_failures[operation]
        if method == "close_if_stuck":
            writer = await world.client.create(ensemble_size=3)
            await writer.append(b"open")
            writer.abandon()
        async with renewing(world.cluster.tree) as store, trio.open_nursery() as nursery:
            program = await recovering(world, nursery, store)
            await elected(program)
            if method == "close_if_stuck":
                await world.lose(writer.metadata.last_ensemble.bookies[0])

                async def is_closed() -> bool:
                    return (await world.client.metadata(writer.ledger_id)).is_closed

                await until(is_closed)
            else:
                lost = (await world.members(ledgers[0]))[0][0]
                await world.lose(lost)
                await healed(world, ledgers, lost)

            async def is_contained_twice() -> bool:
                return contained_failures[operation] >= before + 2

            await until(is_contained_twice)
            nursery.cancel_scope.cancel()
        assert contained_failures[operation] == before + 2


@pytest.mark.slow
@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"-1", b"9" * 30, b"{}", bytes(100_000)])
@pytest.mark.parametrize(
    "node",
    [LOST_BOOKIE_RECOVERY_DELAY, CHECK_ALL_LEDGERS_CTIME, PLACEMENT_POLICY_CHECK_CTIME, "mark", "vote"],
)
@pytest.mark.parametrize("is_live", [True, False])
async def test_a_node_that_does_not_parse_ends_no_program_and_ledgers_are_healed(
    node: str, data: bytes, is_live: bool, autojump_clock: MockClock
) -> None:
    async with open_world(5) as world:
        ledgers = [await world.closed_ledger() for _ in range(3)]

        async def spoil() -> None:
            path = f"/ledgers/{node}"
            if node == "vote":
                path = f"/ledgers/{AUDITOR_ELECTION}"
            if node == "mark":
                path = underreplicated_path("/ledgers", ledgers[0])
            if await world.session.exists(path) is None:
                await world.session.create(path, data, parents=True)
            else:
                await world.session.put(path, data)

        before = contained_failures.total()
        if not is_live:
            await spoil()
        async with renewing(world.cluster.tree) as store, trio.open_nursery() as nursery:
            program = await recovering(world, nursery, store)
            await elected(program)
            if is_live:
                await spoil()
            await world.lose("b1:1")
            await healed(world, ledgers, "b1:1")
            nursery.cancel_scope.cancel()
        assert contained_failures.total() == before  # each value has its own answer


@pytest.mark.slow
async def test_an_attempt_that_fails_is_followed_by_another_once_the_program_has_started(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_world(5) as world:
        ledgers = [await world.closed_ledger() for _ in range(3)]
        before = contained_failures["auto-recovery"]
        async with renewing(world.cluster.tree) as store, trio.open_nursery() as nursery:
            wait_expired = AutoRecovery._wait_expired
            failures_left = 2

            async def faulty(program: AutoRecovery, session: Any) -> None:
                nonlocal failures_left
                if failures_left:
                    failures_left -= 1
                    raise UnforeseenError("this time")
                await wait_expired(program, session)

            monkeypatch.setattr(AutoRecovery, "_wait_expired", faulty)
            program = await recovering(world, nursery, store)
            await elected(program)
            await world.lose("b1:1")
            await healed(world, ledgers, "b1:1")
            nursery.cancel_scope.cancel()
        assert contained_failures["auto-recovery"] == before + 2


async def test_a_ledger_that_cannot_be_moved_is_reported_and_the_others_are_moved(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_world(5) as world:
        ledgers = [await world.closed_ledger(ensemble_size=3) for _ in range(4)]
        bad = ledgers[0]
        bookie = (await world.members(bad))[0][0]  # ensembles are chosen at random
        monkeypatch.setattr(LedgerRestorer, "evacuate", failing_for(bad, LedgerRestorer.evacuate))
        results = {
            one.ledger_id: one
            async for one in evacuate_bookies(
                world.client.context, world.marks, world.restorer, [bookie], close_open=True
            )
        }
        assert results.pop(bad).reason == "UnforeseenError: at this ledger"
        assert all(one.is_done for one in results.values())
        for ledger_id in results:
            assert bookie not in (await world.members(ledger_id))[0]


async def test_an_error_in_the_watch_of_a_ledger_ends_no_client(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_world(3) as world:
        writer = await world.client.create()
        await writer.append(b"one")
        get, failures_left = LedgerCatalog.get, 3

        async def faulty(*args: Any, **more: Any) -> Versioned:
            nonlocal failures_left
            if failures_left and more.get("watch") is not None:
                failures_left -= 1
                raise UnforeseenError("this time")
            return await get(*args, **more)

        reader = await world.client.open(writer.ledger_id, recover=False)
        monkeypatch.setattr(LedgerCatalog, "get", faulty)
        other = await world.client.open(writer.ledger_id, recover=False)
        await trio.sleep(1)
        await writer.close()
        await reader.wait_last_confirmed_beyond(0, timeout_s=600)

        async def is_known() -> bool:
            return other.is_closed

        await until(is_known)
        assert other.last_confirmed == 0
        assert failures_left == 0


async def append_until_it_fails(writer: WriteHandle) -> None:
    while True:
        await writer.append(b"more")
        await trio.sleep(1)


async def test_an_error_in_a_task_of_a_writer_ends_it_and_no_other(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_world(5) as world:
        other = await world.client.create()

        async def fail(*_args: object) -> None:
            raise UnforeseenError("in a step")

        writer = await world.client.create()
        await writer.append(b"one")
        monkeypatch.setattr("ledger.write.handle.take_step", fail)
        await world.lose(writer.metadata.last_ensemble.bookies[0])
        before = contained_failures["writer of a ledger"]
        with pytest.raises(LedgerWriteError, match="in a step"):
            await append_until_it_fails(writer)
        assert contained_failures["writer of a ledger"] > before
        monkeypatch.undo()
        assert await other.append(b"one") == 0
        await other.close()
