"""The check of the replicas by lists of entries: what it counts, what it marks, and what is copied then."""

# covers: ledger/fragments/entry_lists.py
# covers: ledger/fragments/ledger_check.py

from __future__ import annotations

import random

import pytest
import trio
from trio.testing import MockClock

from ledger.catalog.availability import Availability, decode_availability, encode_availability
from ledger.codes import Code
from ledger.fragments.entry_lists import EntryLists, lacked_ranges, lacks_any
from ledger.fragments.fragments import Fragment
from ledger.fragments.replicas_check import LOOKED_MAX, ReplicaCount
from ledger.quorum import write_set
from ledger.replication.config import ReplicationConfig
from ledger.replication.ledger_restorer import Outcome
from ledger.replication.marks import RegularCheck
from ledger.wire.messages import AddRequest, ListEntriesRequest
from tests.fakes.replication_world import PAYLOADS, open_world
from tests.unit.ledger.catalog.test_availability import listed
from tests.unit.ledger.replication.test_auditor import marked

LAST = len(PAYLOADS) - 1
BOOKIES = ("a", "b", "c")
FAR = 10**18


def held(entries: set[int]) -> Availability:
    return decode_availability(encode_availability(sorted(entries)))


@pytest.mark.slow
@pytest.mark.parametrize("write_quorum", [1, 2, 3])
@pytest.mark.parametrize("seed", range(8))
def test_the_count_is_that_of_each_entry(write_quorum: int, seed: int) -> None:
    rng, ack_quorum, last = random.Random(seed), max(1, write_quorum - 1), 9000
    homes = {
        entry: [BOOKIES[index] for index in write_set(entry, 3, write_quorum)] for entry in range(last + 1)
    }
    have = {name: {entry for entry in homes if name in homes[entry]} for name in BOOKIES}
    for _ in range(rng.randrange(4)):
        have[rng.choice(BOOKIES)].discard(rng.randrange(last + 1))
    fewest = min(sum(entry in have[name] for name in homes[entry]) for entry in homes)
    fragment = Fragment(0, last, BOOKIES, write_quorum, True)
    count = ReplicaCount([fragment], ack_quorum, {name: held(entries) for name, entries in have.items()})
    for part in count.ranges():
        count.count(*part)
    assert count.is_without_replica == (fewest == 0)
    assert count.is_below_ack_quorum == (fewest < ack_quorum)
    assert count.is_below_write_quorum == (fewest < write_quorum)
    assert count.lacking == {
        name for name in BOOKIES if any(name in homes[entry] and entry not in have[name] for entry in homes)
    }


@pytest.mark.slow
async def test_a_hole_in_the_middle_is_counted_and_marked_and_filled() -> None:
    async with open_world(4) as world:
        whole, ledger_id = await world.closed_ledger(), await world.closed_ledger()
        bookie = (await world.members(ledger_id))[0][0]
        del world.cluster.bookies[bookie].ledgers[ledger_id].entries[5]
        found = await world.auditor.check_replicas()
        assert (found.ledgers, found.below_write_quorum, found.without_replica) == (2, 1, 0)
        assert await marked(world) == {ledger_id: (bookie,)}
        assert await world.marks.checked_ms(RegularCheck.REPLICAS) is not None
        await world.locked(ledger_id)
        assert await world.restorer.restore(ledger_id) is Outcome.RESTORED
        assert bookie in (await world.members(ledger_id))[0]  # it takes the entry itself
        world.check_replicas(ledger_id, await world.client.metadata(ledger_id), len(PAYLOADS) - 1)
        assert whole != ledger_id


@pytest.mark.slow
async def test_an_entry_that_no_bookie_has_is_counted_as_lost() -> None:
    async with open_world(3) as world:
        ledger_id = await world.closed_ledger()
        for bookie in world.cluster.bookies.values():
            del bookie.ledgers[ledger_id].entries[5]
        found = await world.auditor.check_replicas()
        assert (found.without_replica, found.below_ack_quorum, found.below_write_quorum) == (1, 1, 1)


@pytest.mark.slow
async def test_a_bookie_that_gives_no_list_is_neither_complete_nor_incomplete() -> None:
    def refuse(request: object) -> Code | None:
        return Code.UNKNOWN_LEDGER_STATE if isinstance(request, ListEntriesRequest) else None

    async with open_world(3) as world:
        ledger_id = await world.closed_ledger()
        world.cluster.bookies["b2:1"].refuse = refuse
        found = await world.auditor.check_replicas()
        assert (found.ledgers, found.unknown, found.below_write_quorum) == (1, 1, 0)
        assert await marked(world) == {}
        await world.locked(ledger_id)
        assert await world.restorer.restore(ledger_id) is Outcome.RESTORED


async def test_a_bookie_that_never_answers_is_asked_once(autojump_clock: MockClock) -> None:
    # Apache's bookie with DbLedgerStorage.
    async with open_world(3) as world:
        ledgers = [await world.closed_ledger() for _ in range(3)]
        silent = world.cluster.bookies["b2:1"]
        silent.unanswered = (ListEntriesRequest,)
        for ledger_id in ledgers:
            await world.locked(ledger_id)
            assert await world.restorer.restore(ledger_id) is Outcome.RESTORED
        assert sum(isinstance(one, ListEntriesRequest) for one in silent.requests) == 1


@pytest.mark.parametrize(("before", "asked"), [(1, 3), (0, 1)])
async def test_a_bookie_that_gave_a_list_before_is_asked_again_after_a_timeout(
    autojump_clock: MockClock, before: int, asked: int
) -> None:
    async with open_world(3) as world:
        ledgers = [await world.closed_ledger() for _ in range(3)]
        lists = EntryLists(world.client.context, trio.CapacityLimiter(9))
        for ledger_id in ledgers[:before]:
            assert (await lists.of_each(ledger_id, ["b2:1"]))["b2:1"] is not None
        busy = world.cluster.bookies["b2:1"]
        busy.unanswered = (ListEntriesRequest,)
        for ledger_id in ledgers[before:]:
            assert (await lists.of_each(ledger_id, ["b2:1"]))["b2:1"] is None
        assert sum(isinstance(one, ListEntriesRequest) for one in busy.requests) == asked


@pytest.mark.slow
async def test_a_bookie_that_is_away_counts_but_is_left_to_the_audit() -> None:
    async with open_world(3) as world:
        await world.closed_ledger()
        await world.lose("b2:1")
        assert (await world.auditor.check_replicas()).below_write_quorum == 1
        assert await marked(world) == {}


async def test_marked_ledgers_are_left_out() -> None:
    async with open_world(3) as world:
        ledger_id = await world.closed_ledger()
        await world.marks.mark(ledger_id, ["b9:1"])
        assert (await world.auditor.check_replicas()).ledgers == 0


async def test_a_hole_of_an_open_ledger_is_found_up_to_what_is_confirmed(autojump_clock: MockClock) -> None:
    async with open_world(3) as world:
        writer = await world.client.create()
        for payload in PAYLOADS:
            await writer.append(payload)
        await writer.write_explicit_lac()
        entries = world.cluster.bookies["b2:1"].ledgers[writer.ledger_id].entries
        for bookie in ("b1:1", "b3:1"):
            world.cluster.bookies[bookie].unanswered = (AddRequest,)
        writer.submit(b"not confirmed")
        await trio.testing.wait_all_tasks_blocked()
        assert (await world.auditor.check_replicas()).marked == 0
        del entries[5]
        found = await world.auditor.check_replicas()
        assert (found.marked, found.below_write_quorum) == (1, 1)
        assert await marked(world) == {writer.ledger_id: ("b2:1",)}
        writer.abandon()


async def test_an_entry_that_is_only_late_is_no_hole(autojump_clock: MockClock) -> None:
    async with open_world(3) as world, trio.open_nursery() as nursery:
        writer = await world.client.create()
        for payload in PAYLOADS:
            await writer.append(payload)
        await writer.write_explicit_lac()
        entries = world.cluster.bookies["b2:1"].ledgers[writer.ledger_id].entries
        late = entries.pop(LAST)

        async def come() -> None:
            await trio.sleep(1)
            entries[LAST] = late

        nursery.start_soon(come)
        assert (await world.auditor.check_replicas()).marked == 0
        writer.abandon()


async def test_the_check_keeps_its_pace(autojump_clock: MockClock) -> None:
    async with open_world(3, ReplicationConfig(replicas_check_ledgers_per_s=2)) as world:
        for _ in range(6):
            await world.closed_ledger()
        began = trio.current_time()
        assert (await world.auditor.check_replicas()).ledgers == 6
        assert trio.current_time() - began >= 3


@pytest.mark.slow
async def test_nothing_is_marked_while_auto_recovery_is_off() -> None:
    async with open_world(3) as world:
        ledger_id = await world.closed_ledger()
        del world.cluster.bookies["b2:1"].ledgers[ledger_id].entries[5]
        await world.marks.switch(on=False)
        assert (await world.auditor.check_replicas()).ledgers == 0
        assert await marked(world) == {}


def test_a_ledger_that_names_any_number_of_entries_is_counted_in_few_steps() -> None:
    fragments = [Fragment(0, 2**62, BOOKIES, 2, True), Fragment(2**62 + 1, 2**63 - 1, BOOKIES, 3, True)]
    lists = {name: held(set(range(10))) for name in BOOKIES}
    count = ReplicaCount(fragments, 2, lists)
    ranges = list(count.ranges())
    assert sum(last - first + 1 for _, first, last in ranges) <= 100
    for part in ranges:
        count.count(*part)
    assert count.is_without_replica
    assert count.lacking == set(BOOKIES)


def striped(index: int, *, hole: int | None = None) -> Availability:
    """Each third entry, from the index to ``FAR``."""
    first, last = index, FAR - (FAR - index) % 3
    if hole is None:
        return decode_availability(listed((first, last, 1, 3)))
    return decode_availability(listed((first, hole - 3, 1, 3), (hole + 3, last, 1, 3)))


@pytest.mark.parametrize("hole", [3, 999_999_999, 3 * 10**17])
async def test_one_hole_in_a_long_striped_ledger_is_found(hole: int) -> None:
    fragment = Fragment(0, FAR, BOOKIES, 1, True)
    lists = {name: striped(index) for index, name in enumerate(BOOKIES)}
    whole, holed = (
        ReplicaCount([fragment], 1, lists),
        ReplicaCount([fragment], 1, lists | {"a": striped(0, hole=hole)}),
    )
    for count in (whole, holed):
        for part in count.ranges():
            count.count(*part)
    assert whole.lacking == set()
    assert holed.lacking == {"a"}
    assert holed.is_without_replica
    assert [part async for part in lacked_ranges(fragment, 0, striped(0, hole=hole))] == [(hole, hole)]
    assert not await lacks_any(fragment, 1, lists["b"])


def test_lists_that_repeat_at_odd_distances_cost_a_limited_number_of_looks() -> None:
    fragment = Fragment(0, FAR, BOOKIES, 2, True)
    odd = [(at * 2**40, (at + 1) * 2**40 - 2 * 2**20, 1, 2**20 - at) for at in range(1000)]
    groups = [
        (first, first + (last - first) // every * every, size, every) for first, last, size, every in odd
    ]
    lists = {name: decode_availability(listed(*groups)) for name in BOOKIES}
    ranges = list(ReplicaCount([fragment], 1, lists).ranges())
    assert sum(last - first + 1 for _, first, last in ranges) <= 2 * LOOKED_MAX


@pytest.mark.parametrize("seed", range(20))
async def test_what_is_lacked_is_told_once_and_wholly(seed: int) -> None:
    rng, last = random.Random(seed), 300
    size = rng.choice([3, 5])
    fragment = Fragment(rng.randrange(9), last, tuple("abcde"[:size]), rng.randrange(1, size + 1), True)
    homes = {entry for entry in range(last + 1) if fragment.holds(1, entry)}
    have = set(range(0, last + 1, rng.randrange(1, 9))) | {entry for entry in homes if rng.random() < 0.5}
    have -= {entry for entry in have if 100 <= entry < 200 and seed % 2}
    parts = [part async for part in lacked_ranges(fragment, 1, held(have))]
    found = [entry for first, stop in parts for entry in range(first, stop + 1)]
    assert found == sorted(entry for entry in homes - have if entry >= fragment.first)
    assert await lacks_any(fragment, 1, held(have)) == bool(found)
