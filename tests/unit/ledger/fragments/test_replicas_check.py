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
from ledger.fragments.fragments import Fragment
from ledger.fragments.replicas_check import RANGE_ENTRIES_MAX, RANGES_MAX, ReplicaCount
from ledger.quorum import write_set
from ledger.replication.config import ReplicationConfig
from ledger.replication.ledger_restorer import Outcome
from ledger.replication.marks import RegularCheck
from ledger.wire.messages import AddRequest, ListEntriesRequest
from tests.fakes.replication_world import PAYLOADS, open_world
from tests.unit.ledger.replication.test_auditor import marked

LAST = len(PAYLOADS) - 1
BOOKIES = ("a", "b", "c")


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


def test_of_a_ledger_that_names_a_million_million_entries_a_share_is_counted() -> None:
    fragments = [Fragment(0, 10**12, BOOKIES, 2, True), Fragment(10**12 + 1, 2 * 10**12, BOOKIES, 2, True)]
    ranges = list(ReplicaCount(fragments, 1, {}).ranges())
    assert len(ranges) <= RANGES_MAX + len(fragments)
    assert all(last - first < RANGE_ENTRIES_MAX for _, first, last in ranges)
    assert {first for _, first, _ in ranges} >= {0, 10**12 + 1}
