"""The check of the placement: what it counts and marks, and which replicas move then."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import trio
from trio.testing import MockClock

from ledger.config import ClientConfig
from ledger.fragments.placement_check import Placing, ledger_placing
from ledger.ledger_spec import LedgerSpec
from ledger.metadata import Ensemble, LedgerMetadata
from ledger.placement.config import FixedLocations, PlacementConfig, PlacementPolicy
from ledger.placement.topology import Topology
from ledger.replication.config import ReplicationConfig
from ledger.replication.ledger_restorer import Outcome
from ledger.replication.marks import RegularCheck
from tests.fakes.replication_world import PAYLOADS, ReplicationWorld, open_world, until
from tests.unit.ledger.replication.test_auditor import audited, marked

RACKS = PlacementConfig(policy=PlacementPolicy.RACK_AWARE)
TOPOLOGY = Topology({"a1": "/a", "a2": "/a", "b1": "/b"})
ALL = {"a1", "a2", "b1", "x1"}
REPAIRING = ReplicationConfig(repairs_placement=True)


def closed(*ensembles: tuple[str, ...], last: int = 99) -> LedgerMetadata:
    return LedgerMetadata(
        ensemble_size=2,
        write_quorum=2,
        ack_quorum=2,
        ensembles=tuple(Ensemble(number * 10, bookies) for number, bookies in enumerate(ensembles)),
    ).closed(last, 1)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        (closed(("a1", "b1")), Placing.GOOD),
        (closed(("a1", "b1"), ("a1", "a2")), Placing.BAD),
        (closed(("a1", "b1"), ("a1", "a2"), last=9), Placing.GOOD),  # the last ensemble holds no entry
        (closed(("a1", "x1")), Placing.UNKNOWN),  # no location
        (closed(("a1", "x1"), ("a1", "a2")), Placing.BAD),
    ],
)
def test_a_ledger_is_judged_by_each_fragment_with_entries(
    metadata: LedgerMetadata, expected: Placing
) -> None:
    assert ledger_placing(metadata, RACKS, TOPOLOGY, ALL) is expected


def test_a_bookie_that_is_away_is_left_to_the_audit() -> None:
    assert ledger_placing(closed(("a1", "a2")), RACKS, TOPOLOGY, {"a1", "b1"}) is Placing.UNKNOWN


def test_without_racks_every_placement_is_good() -> None:
    assert ledger_placing(closed(("a1", "a2")), PlacementConfig(), TOPOLOGY, ALL) is Placing.GOOD


def in_racks(locations: Mapping[str, str]) -> ClientConfig:
    fixed = FixedLocations({f"{name}:1": rack for name, rack in locations.items()})
    return ClientConfig(placement=PlacementConfig(policy=PlacementPolicy.RACK_AWARE, locations=fixed))


ONE_RACK_AND_A_SPARE = in_racks({"b1": "/a", "b2": "/a", "b3": "/a", "b4": "/b"})


async def ledger_on(world: ReplicationWorld, *names: str, close: bool = True) -> int:
    bookies = [f"{name}:1" for name in names]
    spec = LedgerSpec(ensemble_size=len(names), write_quorum=2, bookies=bookies)
    writer = await world.client.create_from(spec)
    await writer.append_many(PAYLOADS)
    if close:
        await writer.close()
    else:
        await writer.append(b"confirms the others")
        writer.abandon()
    return writer.ledger_id


async def test_the_check_counts_closed_ledgers_and_marks_nothing_unless_replicas_may_move() -> None:
    async with open_world(4, client=ONE_RACK_AND_A_SPARE) as world:
        await ledger_on(world, "b1", "b2")
        await ledger_on(world, "b1", "b4")
        await ledger_on(world, "b1", "b3", close=False)
        found = await world.auditor.check_placement()
        assert (found.ledgers, found.bad, found.unknown, found.marked) == (2, 1, 0, 0)
        assert await marked(world) == {}
        assert await world.marks.checked_ms(RegularCheck.PLACEMENT) is not None
        assert world.auditor.stats.placement is found


async def test_a_badly_placed_ledger_is_marked_and_one_replica_moves() -> None:
    async with open_world(4, REPAIRING, client=ONE_RACK_AND_A_SPARE) as world:
        ledger_id = await ledger_on(world, "b1", "b2")
        good = await ledger_on(world, "b1", "b4")
        assert (await world.auditor.check_placement()).marked == 1
        assert await marked(world) == {ledger_id: ()}
        taken = await world.locked(ledger_id)
        assert await world.restorer.restore(ledger_id) is Outcome.RESTORED
        await world.marks.release(taken)
        (members,) = await world.members(ledger_id)
        assert members in (("b4:1", "b2:1"), ("b1:1", "b4:1"))
        assert await world.members(good) == [("b1:1", "b4:1")]
        assert await world.payloads(ledger_id) == PAYLOADS
        world.check_replicas(ledger_id, await world.client.metadata(ledger_id), len(PAYLOADS) - 1)
        assert (await world.auditor.check_placement()).bad == 0


async def test_a_ledger_stays_as_it_is_if_no_move_helps() -> None:
    async with open_world(3, REPAIRING, client=in_racks({"b1": "/a", "b2": "/a", "b3": "/a"})) as world:
        ledger_id = await ledger_on(world, "b1", "b2")
        await world.locked(ledger_id)
        assert await world.restorer.restore(ledger_id) is Outcome.RESTORED
        assert await world.members(ledger_id) == [("b1:1", "b2:1")]


async def test_the_open_end_of_a_ledger_does_not_move() -> None:
    async with open_world(4, REPAIRING, client=ONE_RACK_AND_A_SPARE) as world:
        ledger_id = await ledger_on(world, "b1", "b2", close=False)
        await world.locked(ledger_id)
        assert await world.restorer.restore(ledger_id) is Outcome.RESTORED
        assert await world.members(ledger_id) == [("b1:1", "b2:1")]
        assert world.restorer.stats.entries_copied == 0


async def test_workers_without_the_setting_move_nothing() -> None:
    async with open_world(4, client=ONE_RACK_AND_A_SPARE) as world:
        ledger_id = await ledger_on(world, "b1", "b2")
        await world.locked(ledger_id)
        assert await world.restorer.restore(ledger_id) is Outcome.RESTORED
        assert await world.members(ledger_id) == [("b1:1", "b2:1")]


async def test_marks_older_than_the_grace_are_counted() -> None:
    async with open_world(3, ReplicationConfig(marked_grace_s=60)) as world:
        ledger_id = await world.closed_ledger()
        world.marks._wall_ms = lambda: 1_700_000_000_000 - 61_000
        await world.marks.mark(ledger_id, ["b1:1"])
        world.marks._wall_ms = lambda: 1_700_000_000_000 - 59_000
        await world.marks.mark(ledger_id + 1, ["b1:1"])
        assert (await world.auditor.check_placement()).overdue == 1


async def test_the_checks_run_at_their_intervals(autojump_clock: MockClock) -> None:
    config = ReplicationConfig(placement_check_interval_s=100, replicas_check_interval_s=200)
    async with open_world(3, config) as world, audited(world):
        assert world.auditor.stats.placement is not None
        assert world.auditor.stats.replicas is not None
    off = ReplicationConfig(replicas_check_interval_s=0)
    async with open_world(3, off) as world, audited(world):
        assert world.auditor.stats.placement is None
        assert world.auditor.stats.replicas is None


async def test_what_is_marked_for_its_placement_is_restored_by_a_worker(autojump_clock: MockClock) -> None:
    config = ReplicationConfig(placement_check_interval_s=100, repairs_placement=True)
    async with open_world(4, config, client=ONE_RACK_AND_A_SPARE) as world:
        ledger_id = await ledger_on(world, "b1", "b2")
        async with audited(world):
            assert await marked(world) == {ledger_id: ()}

        async def is_done() -> bool:
            return not await marked(world)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.worker.run)
            await until(is_done)
            nursery.cancel_scope.cancel()
        assert "b4:1" in (await world.members(ledger_id))[0]
