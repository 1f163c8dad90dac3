"""Copying the entries of one fragment: how many at once, and when a copy counts as complete."""

from __future__ import annotations

import itertools

import pytest
import trio
import trio.testing

from ledger.fragments.fragments import fragments_of
from ledger.read.replica_reads import SINGLE_READS_MAX
from ledger.replication.config import ReplicationConfig
from ledger.replication.fragment_copy import CopyRate, FragmentCopy
from ledger.wire.messages import AddRequest
from tests.fakes.dict_bookies import DictBookie
from tests.fakes.replication_world import ReplicationWorld, open_world

STRIPED = pytest.mark.parametrize(("ensemble_size", "write_quorum"), [(3, 2), (4, 2)])


async def ledger_of(world: ReplicationWorld, entries: int, *, ensemble_size: int, write_quorum: int) -> int:
    writer = await world.client.create(ensemble_size=ensemble_size, write_quorum=write_quorum)
    await writer.append_many([b"x"] * entries)
    await writer.close()
    return writer.ledger_id


async def copy_first_place(
    world: ReplicationWorld, ledger_id: int, config: ReplicationConfig, *, needless_at: int = -1
) -> bool:
    """Copy what belongs on the first bookie to the spare one; the copy is needless when asked this often."""
    current = await world.client.context.catalog.get(ledger_id)
    (fragment,) = fragments_of(current.metadata, -1)
    calls = itertools.count()

    async def is_needless() -> bool:
        await trio.lowlevel.checkpoint()
        return next(calls) == needless_at

    copy = FragmentCopy(world.client.context, current, config, CopyRate(0))
    return await copy.copy(fragment, {0: spare_of(world, fragment.bookies).name}, is_needless)


def spare_of(world: ReplicationWorld, members: tuple[str, ...]) -> DictBookie:
    (spare,) = set(world.cluster.bookies) - set(members)
    return world.cluster.bookies[spare]


def is_add(request: object) -> bool:
    return isinstance(request, AddRequest)


async def test_small_entries_are_copied_many_at_once() -> None:
    batches = []
    for limit_bytes in (0, 64 << 10):
        async with open_world() as world:
            ledger_id = await ledger_of(world, 600, ensemble_size=3, write_quorum=3)
            kinds = list[bool]()
            for bookie in world.cluster.bookies.values():
                bookie.refuse = lambda request, kinds=kinds: kinds.append(is_add(request))  # type: ignore[misc]
            assert await copy_first_place(world, ledger_id, ReplicationConfig(batch_bytes_min=limit_bytes))
            assert kinds.count(True) == 600
            batches.append(sum(pair == (False, True) for pair in itertools.pairwise(kinds)))
    of_ten, of_many = batches
    assert of_ten == 60
    assert of_many < 10


@STRIPED
async def test_entries_that_are_not_neighbours_are_copied_at_once_but_not_too_many(
    ensemble_size: int, write_quorum: int
) -> None:
    config = ReplicationConfig()
    async with open_world(ensemble_size + 1) as world, trio.open_nursery() as nursery:
        ledger_id = await ledger_of(world, 600, ensemble_size=ensemble_size, write_quorum=write_quorum)
        (members,) = await world.members(ledger_id)
        spare = spare_of(world, members)
        answered, longest = 0, ensemble_size  # of a range
        enough = config.batch_entries + longest  # adds of the first group are among them, and of the second

        def stop_answering(request: object) -> None:
            nonlocal answered
            if is_add(request):
                answered += 1
                if answered == enough:
                    spare.unanswered = (AddRequest,)

        spare.refuse = stop_answering
        nursery.start_soon(copy_first_place, world, ledger_id, config)
        while answered < enough:
            await trio.testing.wait_all_tasks_blocked()
        await trio.testing.wait_all_tasks_blocked()
        in_flight = sum(map(is_add, spare.requests)) - answered
        nursery.cancel_scope.cancel()
    assert config.batch_entries < in_flight <= SINGLE_READS_MAX + longest


@STRIPED
@pytest.mark.parametrize("needless_at", [0, 1, 4, 9])
async def test_a_copy_of_which_any_part_was_ended_is_not_complete(
    ensemble_size: int, write_quorum: int, needless_at: int
) -> None:
    async with open_world(ensemble_size + 1) as world:
        ledger_id = await ledger_of(world, 60, ensemble_size=ensemble_size, write_quorum=write_quorum)
        config = ReplicationConfig()
        assert not await copy_first_place(world, ledger_id, config, needless_at=needless_at)
        assert await copy_first_place(world, ledger_id, config)
