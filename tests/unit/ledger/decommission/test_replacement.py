"""A bookie with empty disks: are its entries elsewhere, and does it return them again?"""

from __future__ import annotations

import pytest
import trio
import trio.testing

from ledger.codes import Code
from ledger.decommission.replacement import NotReadBack, OtherCopies, Replacement
from ledger.wire.messages import ListEntriesRequest
from tests.fakes.replication_world import PAYLOADS, ReplicationWorld, open_world


async def lost_member(world: ReplicationWorld, ledger_id: int) -> tuple[str, list[str]]:
    """The first member of a ledger, which loses all it has and stops; and the others."""
    lost, *others = (await world.members(ledger_id))[0]
    world.cluster.bookies[lost].ledgers.clear()
    await world.lose(lost)
    return lost, others


def look_of(world: ReplicationWorld, bookie: str) -> Replacement:
    return Replacement(world.client.context, world.session, bookie)


async def test_entries_that_are_elsewhere_are_found_and_an_open_end_is_named() -> None:
    async with open_world(bookies=3) as world:
        closed = await world.closed_ledger()
        writer = await world.client.create()
        await writer.append_many(PAYLOADS)
        lost, _ = await lost_member(world, closed)
        seen = []
        found = await look_of(world, lost).copies_elsewhere(lambda done, total: seen.append((done, total)))
        assert found == [OtherCopies(closed, False), OtherCopies(writer.ledger_id, True)]
        assert seen[-1] == (2, 2)
        writer.abandon()


async def test_a_ledger_that_does_not_name_the_bookie_is_left_out() -> None:
    async with open_world(bookies=4) as world:
        ledger_id = await world.closed_ledger()
        other = next(iter(set(world.cluster.bookies) - set((await world.members(ledger_id))[0])))
        assert await look_of(world, other).copies_elsewhere() == []


async def test_an_entry_that_no_other_bookie_has_is_a_reason() -> None:
    async with open_world(bookies=3) as world:
        ledger_id = await world.closed_ledger()
        lost, (second, third) = await lost_member(world, ledger_id)
        for name in (second, third):
            del world.cluster.bookies[name].ledgers[ledger_id].entries[5]
        (found,) = await look_of(world, lost).copies_elsewhere()
        assert found.reason == f"no registered bookie has some of the entries that {lost} shall hold"


async def test_one_copy_is_enough_and_one_that_is_away_is_named() -> None:
    async with open_world(bookies=3) as world:
        ledger_id = await world.closed_ledger()
        lost, (second, third) = await lost_member(world, ledger_id)
        del world.cluster.bookies[second].ledgers[ledger_id].entries[5]
        assert await look_of(world, lost).copies_elsewhere() == [OtherCopies(ledger_id, False)]
        await world.lose(third)
        (found,) = await look_of(world, lost).copies_elsewhere()
        assert found.reason is not None
        assert found.reason.endswith(f"; not registered: {third}")


async def test_the_copies_of_striped_entries_are_looked_for_where_they_belong() -> None:
    async with open_world(bookies=3) as world:
        ledger_id = await world.closed_ledger(write_quorum=2)
        lost, (_, third) = await lost_member(world, ledger_id)
        assert await look_of(world, lost).copies_elsewhere() == [OtherCopies(ledger_id, False)]
        # Of each three entries, one is on the lost bookie and the third one alone.
        for entry_id in list(world.cluster.bookies[third].ledgers[ledger_id].entries):
            del world.cluster.bookies[third].ledgers[ledger_id].entries[entry_id]
        (found,) = await look_of(world, lost).copies_elsewhere()
        assert found.reason is not None


async def test_a_bookie_that_gives_no_list_is_read_from() -> None:
    async with open_world(bookies=3) as world:
        ledger_id = await world.closed_ledger()
        lost, others = await lost_member(world, ledger_id)
        for name in others:
            world.cluster.bookies[name].refuse = lambda request: (
                Code.UNKNOWN_LEDGER_STATE if isinstance(request, ListEntriesRequest) else None
            )
        assert await look_of(world, lost).copies_elsewhere() == [OtherCopies(ledger_id, False)]
        for name in others:
            del world.cluster.bookies[name].ledgers[ledger_id].entries[7]
        (found,) = await look_of(world, lost).copies_elsewhere()
        assert found.reason is not None
        assert "7" in found.reason


async def test_a_ledger_that_no_recovery_could_close_is_a_reason() -> None:
    async with open_world(bookies=3) as world:
        writer = await world.client.create()
        await writer.append_many(PAYLOADS)
        lost, (second, _) = await lost_member(world, writer.ledger_id)
        await world.lose(second)
        (found,) = await look_of(world, lost).copies_elsewhere()
        assert found.is_open_end
        assert found.reason is not None
        writer.abandon()


async def test_metadata_that_do_not_parse_are_a_reason() -> None:
    async with open_world(bookies=3) as world:
        ledger_id = await world.closed_ledger()
        lost, _ = await lost_member(world, ledger_id)
        await world.session.put(world.client.context.catalog.path(ledger_id), b"nonsense")
        (found,) = await look_of(world, lost).copies_elsewhere()
        assert (found.ledger_id, found.reason is None) == (ledger_id, False)


async def copied_back(world: ReplicationWorld, ledger_id: int, lost: str, source: str) -> None:
    """Give a bookie the ledger of another one, and start it."""
    have = world.cluster.bookies[source].ledgers[ledger_id]
    back = world.cluster.bookies[lost].ledgers[ledger_id] = type(have)(have.key)
    back.entries = dict(have.entries)
    await world.start(lost)


async def test_the_wait_ends_when_the_bookie_gives_a_list_and_returns_all(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_world(bookies=3) as world:
        ledger_id = await world.closed_ledger()
        lost, (second, _) = await lost_member(world, ledger_id)
        await copied_back(world, ledger_id, lost, second)
        bookie = world.cluster.bookies[lost]
        bookie.refuse = lambda request: (  # as in limbo
            Code.UNKNOWN_LEDGER_STATE if isinstance(request, ListEntriesRequest) else None
        )
        seen = []

        def note(done: int, total: int) -> None:
            seen.append((done, total))
            if len(seen) == 3:
                bookie.refuse = lambda request: None

        with trio.fail_after(60):
            assert await look_of(world, lost).wait_read_back([ledger_id], on_progress=note) == []
        assert seen == [(0, 1), (0, 1), (0, 1), (1, 1)]


@pytest.mark.parametrize("harm", ["missing", "damaged"])
async def test_an_entry_that_is_not_returned_is_told(harm: str) -> None:
    async with open_world(bookies=3) as world:
        ledger_id = await world.closed_ledger()
        lost, (second, _) = await lost_member(world, ledger_id)
        await copied_back(world, ledger_id, lost, second)
        entries = world.cluster.bookies[lost].ledgers[ledger_id].entries
        if harm == "missing":
            del entries[6]
        else:
            entries[6] = entries[6][:-1] + b"?"
        with trio.fail_after(60):
            (found,) = await look_of(world, lost).wait_read_back([ledger_id])
        last = len(PAYLOADS) - 1
        assert found == NotReadBack(ledger_id, f"it does not return all entries from 0 to {last}")


async def test_only_the_replaced_bookie_is_read_back_and_deleted_ledgers_are_left_out() -> None:
    async with open_world(bookies=3) as world:
        ledger_id, gone = await world.closed_ledger(), await world.closed_ledger()
        lost, (second, third) = await lost_member(world, ledger_id)
        await copied_back(world, ledger_id, lost, second)
        await world.client.delete(gone)
        del world.cluster.bookies[third].ledgers[ledger_id].entries[3]
        with trio.fail_after(60):
            assert await look_of(world, lost).wait_read_back([ledger_id, gone]) == []
