"""Removing a bookie from its cluster: it leaves only with nothing to lose, and only while it is stopped."""

from __future__ import annotations

import pytest
import trio

from ledger.catalog.paths import cookie_path, readonly_path
from ledger.decommission.removal import (
    RemovalProgress,
    Removed,
    decommission_bookie,
    holds_entries,
    remove_cookie,
)
from ledger.errors import BookieInUseError, NoAutoRecoveryError
from ledger.metadata_store.memory import open_memory_store
from ledger.metadata_store.store import Create, Delete
from ledger.replication.election import AuditorElection
from ledger.replication.marks import UnderReplicatedLedgers
from tests.fakes.replication_world import PAYLOADS, ReplicationWorld, open_world


async def with_cookie(world: ReplicationWorld, bookie: str) -> str:
    path = cookie_path("/ledgers", bookie)
    await world.session.create(path, parents=True)
    return path


async def test_workers_move_the_ledgers_and_the_cookie_goes_last(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_world() as world:
        ledgers = [await world.closed_ledger() for _ in range(3)]
        lost = (await world.members(ledgers[0]))[0][0]
        named = [one for one in ledgers if lost in (await world.members(one))[0]]
        cookie = await with_cookie(world, lost)
        await world.lose(lost)
        await AuditorElection(world.session, "/ledgers", "w1").wait_elected()
        seen: list[RemovalProgress] = []

        def note(progress: RemovalProgress) -> None:
            seen.append(progress)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.worker.run)
            with trio.fail_after(60):
                done = await decommission_bookie(
                    world.client.context, world.session, lost, poll_s=0.1, on_progress=note
                )
            nursery.cancel_scope.cancel()
        assert done == Removed(len(named), True)
        assert seen[0] == RemovalProgress(len(named), len(named))
        assert seen[-1] == RemovalProgress(len(named), 0)
        assert await world.session.exists(cookie) is None
        for ledger_id in ledgers:
            assert lost not in (await world.members(ledger_id))[0]
            assert await world.payloads(ledger_id) == PAYLOADS
        assert await world.marks.marked() == []


async def test_a_registered_bookie_is_refused_and_nothing_is_marked() -> None:
    async with open_world() as world:
        ledger_id = await world.closed_ledger()
        bookie = (await world.members(ledger_id))[0][0]
        cookie = await with_cookie(world, bookie)
        with pytest.raises(BookieInUseError, match="registered"):
            await decommission_bookie(world.client.context, world.session, bookie)
        with pytest.raises(BookieInUseError, match="registered"):
            await remove_cookie(world.client.context, world.session, bookie)
        async with open_memory_store(world.cluster.tree) as session:
            await world.lose(bookie)
            await session.create(readonly_path("/ledgers", bookie), ephemeral=True, parents=True)
            with pytest.raises(BookieInUseError, match="registered"):
                await remove_cookie(world.client.context, world.session, bookie)
        assert await world.session.exists(cookie) is not None
        assert await world.marks.marked() == []


async def test_a_cookie_stays_while_a_ledger_names_the_bookie() -> None:
    async with open_world() as world:
        ledger_id = await world.closed_ledger()
        bookie = (await world.members(ledger_id))[0][0]
        cookie = await with_cookie(world, bookie)
        await world.lose(bookie)
        with pytest.raises(BookieInUseError, match=f"1 ledgers name it: {ledger_id}"):
            await remove_cookie(world.client.context, world.session, bookie)
        assert await world.session.exists(cookie) is not None


async def test_a_bookie_that_registers_during_the_removal_keeps_its_cookie(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_world() as world:
        (bookie, *_) = world.cluster.bookies
        cookie = await with_cookie(world, bookie)
        await world.lose(bookie)
        commit = type(world.session).commit

        async def register_and_commit(session: object, changes: list[object]) -> None:
            assert Delete(cookie, 0) in changes
            assert any(isinstance(change, Create) for change in changes)
            monkeypatch.undo()
            await world.cluster.start(bookie)
            await commit(world.session, changes)  # type: ignore[arg-type]

        monkeypatch.setattr(type(world.session), "commit", register_and_commit)
        with pytest.raises(BookieInUseError, match="registered"):
            await remove_cookie(world.client.context, world.session, bookie)
        assert await world.session.exists(cookie) is not None


async def test_without_auto_recovery_the_command_says_what_to_start() -> None:
    async with open_world() as world:
        ledger_id = await world.closed_ledger()
        lost = (await world.members(ledger_id))[0][0]
        await world.lose(lost)
        with pytest.raises(NoAutoRecoveryError, match="start `dlog autorecovery`"):
            await decommission_bookie(world.client.context, world.session, lost)
        await UnderReplicatedLedgers(world.session, "/ledgers").switch(on=False)
        with pytest.raises(NoAutoRecoveryError, match="dlog autorecovery enable"):
            await decommission_bookie(world.client.context, world.session, lost)
        assert await world.marks.marked() == []


async def test_a_place_without_entries_needs_no_worker() -> None:
    async with open_world() as world:
        writer = await world.client.create(ensemble_size=3, write_quorum=1, ack_quorum=1)
        await writer.append(b"x")
        opened = await world.client.metadata(writer.ledger_id)
        await writer.close()
        closed = await world.client.metadata(writer.ledger_id)
        first, second, third = closed.last_ensemble.bookies
        assert [holds_entries(closed, bookie) for bookie in (first, second, third)] == [True, False, False]
        assert all(holds_entries(opened, bookie) for bookie in (first, second, third))
        cookie = await with_cookie(world, second)
        await world.lose(second)
        done = await decommission_bookie(world.client.context, world.session, second)
        assert done == Removed(1, True)
        assert second not in (await world.members(writer.ledger_id))[0]
        assert await world.session.exists(cookie) is None
