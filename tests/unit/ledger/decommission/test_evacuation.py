"""Moving all entries off a bookie: which ledgers are changed, and which are left and reported."""

from __future__ import annotations

from ledger.decommission.evacuation import Evacuated, evacuate_bookies
from ledger.metadata_store.memory import open_memory_store
from ledger.replication.ledger_restorer import Outcome
from ledger.replication.marks import UnderReplicatedLedgers
from tests.fakes.replication_world import ReplicationWorld, open_world


async def evacuated(world: ReplicationWorld, bookie: str) -> list[Evacuated]:
    context = world.client.context
    return [
        one async for one in evacuate_bookies(context, world.marks, world.restorer, [bookie], close_open=True)
    ]


async def test_a_ledger_that_another_program_works_on_is_left_to_it() -> None:
    async with open_world() as world:
        free, taken = await world.closed_ledger(), await world.closed_ledger()
        (members,) = await world.members(taken)
        await world.lose(members[0])
        async with open_memory_store(world.cluster.tree) as other:
            assert await UnderReplicatedLedgers(other, "/ledgers").take_unmarked(taken) is not None
            found = {one.ledger_id: one for one in await evacuated(world, members[0])}
        assert not found.pop(taken).is_done
        assert await world.members(taken) == [members]
        assert all(one.is_done for one in found.values())
        assert set(found) <= {free}
        assert await evacuated(world, members[0]) == [Evacuated(taken, Outcome.RESTORED)]
        assert await evacuated(world, members[0]) == []
        assert (await world.session.children("/ledgers/underreplication/locks")).names == ()
