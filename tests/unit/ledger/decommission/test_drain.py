"""Draining a bookie: the wait ends when no writer has it in the ensemble it writes to, and not before."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ledger.catalog.paths import available_path, readonly_path
from ledger.client import LedgerClient
from ledger.codes import Code
from ledger.decommission.drain import OpenEnd, drain_bookie
from ledger.errors import BookieNotReadOnlyError
from ledger.wire.messages import AddRequest
from ledger.write.handle import WriteHandle
from tests.fakes.replication_world import ReplicationWorld, open_world

Seen = list[Sequence[OpenEnd]]


async def make_read_only(world: ReplicationWorld, bookie: str) -> None:
    """As a bookie does it: the second node exists before the first one goes.

    Adds under way reach the bookie before. It would refuse them, and their writers would replace it at once.
    """
    await wait_all_tasks_blocked()
    world.cluster.bookies[bookie].refuse = lambda request: (
        Code.READ_ONLY if isinstance(request, AddRequest) and not request.recovery else None
    )
    await world.session.create(readonly_path("/ledgers", bookie), ephemeral=True, parents=True)
    await world.session.delete(available_path("/ledgers", bookie))
    while bookie in world.client.membership.writable:
        await world.client.membership.wait_change()


async def first_member(client: LedgerClient, writer: WriteHandle) -> str:
    return (await client.metadata(writer.ledger_id)).last_ensemble.bookies[0]


async def drained(world: ReplicationWorld, bookie: str, seen: Seen) -> None:
    with trio.fail_after(60):
        await drain_bookie(world.client.context, world.session, bookie, poll_s=0.1, on_progress=seen.append)


async def test_it_ends_when_the_writer_has_replaced_the_bookie_and_no_append_fails(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_world() as world:
        await world.closed_ledger()
        writer = await world.client.create()
        await writer.append(b"before")
        bookie = await first_member(world.client, writer)
        await make_read_only(world, bookie)
        seen: Seen = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(drained, world, bookie, seen))
            await trio.sleep(1)
            assert {one.ledger_id for each in seen for one in each} == {writer.ledger_id}
            assert "other writable bookies: 1" in seen[-1][0].reason
            await writer.append(b"after")
        assert seen[-1] == []
        assert bookie not in (await world.client.metadata(writer.ledger_id)).last_ensemble.bookies
        await writer.close()
        async with await world.client.open(writer.ledger_id) as reader:
            assert [entry.payload for entry in await reader.read(0, 1)] == [b"before", b"after"]


async def test_a_ledger_that_appears_during_the_wait_is_waited_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_world(3) as world:
        first, second = await world.client.create(), await world.client.create()
        for writer in (first, second):
            await writer.append(b"x")
        bookie = await first_member(world.client, first)
        await make_read_only(world, bookie)
        path = world.client.context.catalog.path(second.ledger_id)
        hidden = await world.session.get(path)
        await world.session.delete(path)
        seen: Seen = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(drained, world, bookie, seen))
            await trio.sleep(1)
            assert [one.ledger_id for one in seen[-1]] == [first.ledger_id]
            assert "no other bookie is writable, and its ensemble has 3" in seen[-1][0].reason
            await world.session.create(path, hidden.value, parents=True)
            await first.close()
            await trio.sleep(1)
            assert [one.ledger_id for one in seen[-1]] == [second.ledger_id]
            nursery.cancel_scope.cancel()


async def test_a_ledger_whose_metadata_do_not_parse_is_waited_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_world() as world:
        await make_read_only(world, "b1:1")
        path = world.client.context.catalog.path(await world.closed_ledger())
        good = (await world.session.get(path)).value
        await world.session.put(path, b"nonsense")
        seen: Seen = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(drained, world, "b1:1", seen))
            await trio.sleep(1)
            assert len(seen[-1]) == 1
            await world.session.put(path, good)
        assert seen[-1] == []


async def test_a_bookie_that_is_writable_or_away_is_refused(autojump_clock: trio.testing.MockClock) -> None:
    async with open_world() as world:
        with pytest.raises(BookieNotReadOnlyError, match="registered as writable"):
            await drained(world, "b1:1", [])
        with pytest.raises(BookieNotReadOnlyError, match="not registered"):
            await drained(world, "b9:1", [])


async def test_a_bookie_that_becomes_writable_during_the_wait_ends_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_world() as world:
        writer = await world.client.create()
        await writer.append(b"x")
        bookie = await first_member(world.client, writer)
        await make_read_only(world, bookie)

        async def become_writable() -> None:
            await trio.sleep(1)
            await world.session.create(available_path("/ledgers", bookie), ephemeral=True)
            await world.session.delete(readonly_path("/ledgers", bookie))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(become_writable)
            with pytest.raises(BookieNotReadOnlyError, match="registered as writable"):
                await drained(world, bookie, [])
