"""A balance in a cluster: replicas reach the emptier bookies, whatever happens on the way."""

# covers: ledger/balancing/balance.py
# covers: ledger/balancing/survey.py

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from ledger.balancing import Balanced, BalanceOptions, RunningBalance, balance_bookies, plan_balance
from ledger.balancing.run_node import running_balance
from ledger.balancing.survey import ENTRY_BYTES
from ledger.codes import Code
from ledger.config import ClientConfig
from ledger.errors import BalanceRunningError, ClusterNotWholeError
from ledger.metadata_store.memory import open_memory_store
from ledger.placement.config import FixedLocations, PlacementConfig, PlacementPolicy
from ledger.replication.config import ReplicationConfig
from ledger.wire.messages import AddRequest, BookieInfoRequest, ListEntriesRequest
from tests.fakes.replication_world import PAYLOADS, ReplicationWorld, open_world

LEDGERS = 20
LAST = len(PAYLOADS) - 1
REPLICA_BYTES = sum(map(len, PAYLOADS)) + ENTRY_BYTES * len(PAYLOADS)


@asynccontextmanager
async def grown_world(added: int = 2) -> AsyncIterator[tuple[ReplicationWorld, list[int]]]:
    """Three bookies with all replicas of ``LEDGERS`` ledgers, and empty ones that were added."""
    async with open_world(3) as world:
        ledgers = [await world.closed_ledger() for _ in range(LEDGERS)]
        for number in range(added):
            await world.start(f"b{4 + number}:1")
        for bookie in world.cluster.bookies.values():
            bookie.free_bytes = 1_000_000
        yield world, ledgers


async def balanced(world: ReplicationWorld, **options: object) -> Balanced:
    wanted = BalanceOptions(**({"wait_s": 0.0} | options))  # type: ignore[arg-type]
    return await balance_bookies(world.client, world.session, wanted)


async def replicas(world: ReplicationWorld, ledgers: list[int]) -> dict[str, int]:
    """The number of replicas that the metadata place on each bookie."""
    found = dict.fromkeys(world.cluster.bookies, 0)
    for ledger_id in ledgers:
        for bookie in {one for members in await world.members(ledger_id) for one in members}:
            found[bookie] += 1
    return found


async def collect_garbage(world: ReplicationWorld, ledgers: list[int]) -> None:
    """Delete what no metadata place on a bookie, as bookies do after a day."""
    for ledger_id in ledgers:
        named = {one for members in await world.members(ledger_id) for one in members}
        for bookie in world.cluster.bookies.values():
            if bookie.name not in named:
                bookie.ledgers.pop(ledger_id, None)


async def check(world: ReplicationWorld, ledgers: list[int]) -> None:
    """Check each entry on each of its bookies, and that no lock and no run is left."""
    for ledger_id in ledgers:
        world.check_replicas(ledger_id, await world.client.metadata(ledger_id), LAST)
    assert (await world.session.children("/ledgers/underreplication/locks")).names == ()
    assert await running_balance(world.session, "/ledgers") is None


def is_even(counts: dict[str, int]) -> bool:
    return max(counts.values()) - min(counts.values()) <= 0.1 * max(counts.values())


async def test_bookies_that_were_added_end_as_full_as_the_others_and_no_read_fails() -> None:
    async with grown_world() as (world, ledgers), trio.open_nursery() as nursery:
        reads = 0

        async def read_all_the_time() -> None:
            nonlocal reads
            handles = [await world.client.open(ledger_id, recover=False) for ledger_id in ledgers]
            while True:
                for handle in handles:  # opened before the moves
                    entries = await handle.read(0, handle.last_confirmed)
                    assert [entry.payload for entry in entries] == PAYLOADS
                    reads += 1
                    await trio.lowlevel.checkpoint()

        async def delete_at_once() -> None:
            while True:
                await collect_garbage(world, ledgers)
                await trio.lowlevel.checkpoint()

        nursery.start_soon(read_all_the_time)
        while not reads:
            await trio.lowlevel.checkpoint()
        nursery.start_soon(delete_at_once)
        result = await balanced(world)
        await collect_garbage(world, ledgers)
        read_before = reads
        while reads < read_before + LEDGERS:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
        counts = await replicas(world, ledgers)
        assert is_even(counts)
        assert result.left == []
        assert result.after == {name: count * REPLICA_BYTES for name, count in counts.items()}
        assert result.moves_done == len(result.plan.moves) == counts["b4:1"] + counts["b5:1"]
        assert result.entries_copied == result.moves_done * len(PAYLOADS)
        await check(world, ledgers)
        assert (await balanced(world)).plan.moves == ()


async def test_a_reader_that_knows_only_bookies_that_deleted_the_ledger_reads_on() -> None:
    async with open_world(3) as world:
        ledger_id = await world.closed_ledger()
        for number in (4, 5, 6):
            await world.start(f"b{number}:1")
        async with await world.client.open(ledger_id, recover=False) as handle:
            await world.locked(ledger_id)
            (before,) = await world.members(ledger_id)
            for number, bookie in enumerate(before, 4):
                await world.restorer.relocate(ledger_id, bookie, f"b{number}:1")
                await collect_garbage(world, [ledger_id])
            assert all(ledger_id not in world.cluster.bookies[one].ledgers for one in before)
            assert [entry.payload for entry in await handle.read(0, LAST)] == PAYLOADS


async def test_a_plan_alone_changes_nothing() -> None:
    async with grown_world() as (world, ledgers):
        before = await replicas(world, ledgers)
        result = await plan_balance(world.client, world.session)
        assert result.plan.moves
        assert result.moves_done == 0
        assert await replicas(world, ledgers) == before
        assert not world.cluster.bookies["b4:1"].ledgers


async def test_an_open_ledger_stays_where_it_is() -> None:
    async with open_world(3) as world, await world.client.create() as writer:
        for payload in PAYLOADS:
            await writer.append(payload)
        before = await world.members(writer.ledger_id)
        await world.start("b4:1")
        for bookie in world.cluster.bookies.values():
            bookie.free_bytes = 1_000_000
        result = await balanced(world)
        assert (result.plan.moves, result.open_ledgers) == ((), 1)
        # The last entry is not known to be confirmed.
        stored = sum(map(len, PAYLOADS[:-1])) + ENTRY_BYTES * LAST
        assert result.plan.before == {"b1:1": stored, "b2:1": stored, "b3:1": stored, "b4:1": 0}
        await world.locked(writer.ledger_id)
        outcome = await world.restorer.relocate(writer.ledger_id, before[0][0], "b4:1")
        assert outcome.value == "open"
        assert await world.members(writer.ledger_id) == before


async def test_the_metadata_stay_if_the_new_bookie_does_not_return_an_entry() -> None:
    async with grown_world(1) as (world, ledgers):
        new = world.cluster.bookies["b4:1"]
        add = new._add

        def lose_one(request: AddRequest) -> Code:
            code = add(request)
            new.ledgers[request.ledger_id].entries.pop(3, None)
            return code

        new._add = lose_one  # type: ignore[method-assign]
        before = await replicas(world, ledgers)
        result = await balanced(world)
        assert result.moves_done == 0
        assert len(result.left) == len(result.plan.moves)
        assert "did not return each entry" in result.left[0].reason
        assert await replicas(world, ledgers) == before
        await check(world, ledgers)


async def test_a_run_that_is_cancelled_anywhere_leaves_whole_ledgers_and_is_continued() -> None:
    async with grown_world() as (world, ledgers):
        counts = await replicas(world, ledgers)
        rounds = 0
        while not is_even(counts):
            rounds += 1
            with trio.CancelScope() as scope:
                adds = 0

                def count(
                    request: object, scope: trio.CancelScope = scope, adds_max: int = 48 + rounds
                ) -> None:
                    nonlocal adds
                    adds += isinstance(request, AddRequest)
                    if adds > adds_max:  # in the middle of a ledger
                        scope.cancel()

                for name in ("b4:1", "b5:1"):
                    world.cluster.bookies[name].refuse = count
                await balanced(world)
            await check(world, ledgers)
            await collect_garbage(world, ledgers)
            after = await replicas(world, ledgers)
            assert sum(after.values()) == 3 * LEDGERS
            assert after["b4:1"] + after["b5:1"] > counts["b4:1"] + counts["b5:1"]
            counts = after
        assert rounds > 2


@pytest.mark.parametrize("is_still_registered", [False, True])
async def test_a_lost_bookie_ends_the_run_and_it_goes_on_when_the_bookie_is_back(
    is_still_registered: bool,
) -> None:
    async with grown_world() as (world, ledgers):
        lost = "b4:1"
        held = trio.Event()

        def hold(request: object) -> None:
            if isinstance(request, AddRequest) and len(bookie.ledgers) > 3:
                held.set()

        bookie = world.cluster.bookies[lost]
        bookie.refuse = hold

        async with trio.open_nursery() as nursery:

            async def lose() -> None:
                await held.wait()
                await world.cluster.stop(lost, registered=is_still_registered)

            nursery.start_soon(lose)
            with pytest.raises(ClusterNotWholeError, match=f"{lost}.*run the command again"):
                await balanced(world)
        await check(world, ledgers)
        assert 0 < (await replicas(world, ledgers))[lost] < 10
        if is_still_registered:
            world.cluster.revive(lost)
        else:
            with pytest.raises(ClusterNotWholeError, match=f"{lost}, which ledger .* is away"):
                await balanced(world)
            await world.start(lost)
        bookie.refuse = lambda _: None
        await balanced(world)
        assert is_even(await replicas(world, ledgers))
        await check(world, ledgers)


async def test_a_bookie_that_is_lost_before_its_copy_is_read_back_ends_the_run() -> None:
    async with grown_world(1) as (world, ledgers), trio.open_nursery() as nursery:

        def lose(request: object) -> None:
            if isinstance(request, ListEntriesRequest):
                nursery.start_soon(lambda: world.cluster.stop("b4:1", registered=True))

        world.cluster.bookies["b4:1"].refuse = lose
        with pytest.raises(ClusterNotWholeError, match=r"after 0 of .* moves.*b4:1"):
            await balanced(world)
        assert (await replicas(world, ledgers))["b4:1"] == 0
        await check(world, ledgers)


async def test_a_bookie_that_gave_and_is_lost_ends_the_run_too() -> None:
    async with grown_world() as (world, ledgers):

        def lose(run: RunningBalance) -> None:
            if run.moves_done == 2:
                nursery.start_soon(world.cluster.stop, "b1:1")

        async with trio.open_nursery() as nursery:
            with pytest.raises(ClusterNotWholeError, match="b1:1"):
                await balance_bookies(world.client, world.session, on_progress=lose)
        await check(world, ledgers)


async def test_no_replica_moves_while_a_ledger_lacks_some() -> None:
    async with grown_world() as (world, ledgers):
        before = await replicas(world, ledgers)
        await world.marks.mark(ledgers[3], ["b1:1"])
        with pytest.raises(ClusterNotWholeError, match=f"ledger {ledgers[3]} lacks replicas"):
            await balanced(world)
        with pytest.raises(ClusterNotWholeError, match="lacks replicas"):
            await plan_balance(world.client, world.session)
        assert await replicas(world, ledgers) == before


async def test_a_ledger_that_is_marked_during_the_run_ends_it() -> None:
    async with grown_world() as (world, ledgers):

        def mark(run: RunningBalance) -> None:
            if run.moves_done == 2:
                nursery.start_soon(world.marks.mark, ledgers[0], ["b1:1"])

        async with trio.open_nursery() as nursery:
            with pytest.raises(ClusterNotWholeError, match="lacks replicas"):
                await balance_bookies(world.client, world.session, on_progress=mark)
        assert sum((await replicas(world, ledgers)).values()) == 3 * LEDGERS


async def test_a_second_run_is_refused_and_one_after_a_killed_run_waits_for_its_end(
    autojump_clock: MockClock,
) -> None:
    async with grown_world() as (world, ledgers):
        path = "/ledgers/underreplication/dlogbalance"
        async with open_memory_store(world.cluster.tree) as other:
            await other.create(path, b'{"version": 2}', ephemeral=True, parents=True)
            with pytest.raises(BalanceRunningError, match="another balance runs"):
                await balanced(world)
            assert world.cluster.bookies["b4:1"].ledgers == {}
        async with trio.open_nursery() as nursery, open_memory_store(world.cluster.tree) as other:
            await other.create(path, b"", ephemeral=True, parents=True)
            nursery.start_soon(lambda: balanced(world, wait_s=30.0))
            await trio.sleep(5)
            assert world.cluster.bookies["b4:1"].ledgers == {}
        assert is_even(await replicas(world, ledgers))


async def test_a_ledger_that_another_program_has_is_left_and_reported(autojump_clock: MockClock) -> None:
    async with grown_world() as (world, _):
        plan = (await plan_balance(world.client, world.session)).plan
        taken = plan.moves[0].ledger_id
        async with open_memory_store(world.cluster.tree) as other:
            await other.create(world.marks.lock_path(taken), ephemeral=True, parents=True)
            result = await balanced(world)
        assert {one.ledger_id for one in result.left} == {taken}
        assert "another program" in result.left[0].reason
        assert result.moves_done == len(result.plan.moves) - len(result.left)


async def test_a_ledger_that_another_program_has_for_a_moment_is_moved_last(
    autojump_clock: MockClock,
) -> None:
    async with grown_world() as (world, _), open_memory_store(world.cluster.tree) as other:
        plan = (await plan_balance(world.client, world.session)).plan
        taken = plan.moves[0].ledger_id
        lock, others = world.marks.lock_path(taken), sum(move.ledger_id != taken for move in plan.moves)
        await other.create(lock, ephemeral=True, parents=True)

        def release(run: RunningBalance) -> None:
            if run.moves_done == others:
                nursery.start_soon(other.delete, lock)

        async with trio.open_nursery() as nursery:
            result = await balance_bookies(world.client, world.session, on_progress=release)
        assert (result.left, result.moves_done) == ([], len(plan.moves))


async def test_a_bookie_that_becomes_read_only_or_refuses_gets_nothing_more() -> None:
    async with grown_world() as (world, ledgers):
        world.cluster.bookies["b4:1"].refuse = lambda request: (
            Code.READ_ONLY if isinstance(request, AddRequest) else None
        )
        result = await balanced(world)
        assert {one.target for one in result.left} == {"b4:1"}
        assert result.moves_done > 0
        counts = await replicas(world, ledgers)
        assert counts["b4:1"] == 0
        assert counts["b5:1"] > 0
        await check(world, ledgers)


async def test_each_ledger_keeps_a_replica_in_a_second_rack() -> None:
    racks = {"b1:1": "/a", "b2:1": "/a", "b3:1": "/b", "b4:1": "/a", "b5:1": "/b"}
    placement = PlacementConfig(policy=PlacementPolicy.RACK_AWARE, locations=FixedLocations(racks))
    async with open_world(3, client=ClientConfig(placement=placement)) as world:
        ledgers = [await world.closed_ledger(ensemble_size=2, write_quorum=2) for _ in range(LEDGERS)]
        await world.start("b4:1")
        await world.start("b5:1")
        for bookie in world.cluster.bookies.values():
            bookie.free_bytes = 1_000_000
        result = await balanced(world)
        counts = await replicas(world, ledgers)
        assert (result.left, min(counts["b4:1"], counts["b5:1"]) > 0) == ([], True)
        for ledger_id in ledgers:
            (bookies,) = await world.members(ledger_id)
            assert {racks[bookie] for bookie in bookies} == {"/a", "/b"}


async def test_copies_keep_to_the_rate(autojump_clock: MockClock) -> None:
    async with grown_world() as (world, _):
        rate = 1000
        began_s = trio.current_time()
        result = await balanced(world, replication=ReplicationConfig(rate_bytes_max=rate))
        # The first batch starts at once; each other one when those before it had their time.
        assert trio.current_time() - began_s >= 0.9 * result.bytes_copied / rate


async def test_a_bookie_that_does_not_tell_its_disks_is_named() -> None:
    async with grown_world() as (world, _):
        world.cluster.bookies["b5:1"].unanswered = (BookieInfoRequest,)
        await world.cluster.stop("b5:1", registered=True)
        with pytest.raises(ClusterNotWholeError, match="bookie b5:1 does not reply"):
            await plan_balance(world.client, world.session)
