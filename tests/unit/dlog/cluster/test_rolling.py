"""Waiting for a restarted bookie: it ends when the bookie has every confirmed entry, and not before."""

from __future__ import annotations

import trio
import trio.testing

from dlog.cluster.rolling import wait_replicated
from tests.fakes.replication_world import PAYLOADS, open_world


async def test_the_wait_ends_when_the_last_missing_entry_is_there(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_world(bookies=3) as world:
        closed = await world.closed_ledger()
        writer = await world.client.create()
        await writer.append_many(PAYLOADS)
        await writer.write_explicit_lac()
        bookie, other, _ = (await world.members(closed))[0]
        held = world.cluster.bookies[bookie].ledgers
        missing = {(ledger_id, 4): held[ledger_id].entries.pop(4) for ledger_id in (closed, writer.ledger_id)}
        del world.cluster.bookies[other].ledgers[closed].entries[7]  # another bookie is another step's
        seen: list[int] = []

        def note(left: int) -> None:
            seen.append(left)
            if len(seen) % 3 == 0 and missing:
                (ledger_id, entry_id), body = missing.popitem()
                held[ledger_id].entries[entry_id] = body

        with trio.fail_after(60):
            await wait_replicated(world.client, bookie, on_progress=note)
        assert seen == [2, 2, 2, 1, 1, 1, 0]
        writer.abandon()


async def test_a_bookie_that_is_away_is_waited_for_and_a_deleted_ledger_is_not(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_world(bookies=3) as world:
        ledger_id, gone = await world.closed_ledger(), await world.closed_ledger()
        bookie = (await world.members(ledger_id))[0][0]
        await world.lose(bookie)
        with trio.move_on_after(30) as scope:
            await wait_replicated(world.client, bookie)
        assert scope.cancelled_caught
        await world.client.delete(gone)
        await world.start(bookie)
        with trio.fail_after(60):
            await wait_replicated(world.client, bookie)
