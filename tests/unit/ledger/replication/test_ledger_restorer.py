"""Restoring the replicas of one ledger: what is copied, where to, and when the metadata change."""

# covers: ledger/read/replica_copy.py

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from ledger.codes import Code
from ledger.digest import DigestType, EntryCodec
from ledger.errors import LedgerFencedError, LedgerReadError
from ledger.metadata import LedgerState
from ledger.metadata_store.errors import ConnectionLostError, NoNodeError
from ledger.replication.config import ReplicationConfig
from ledger.replication.ledger_restorer import Outcome
from ledger.wire.messages import AddRequest, BatchReadRequest, ListEntriesRequest, ReadRequest
from tests.fakes.dict_bookies import DictBookie
from tests.fakes.replication_world import PAYLOADS, ReplicationWorld, open_world

LAST = len(PAYLOADS) - 1


def refuse_adds(bookie: DictBookie, *, beyond: int = -1) -> None:
    bookie.refuse = lambda request: (
        Code.IO_ERROR if isinstance(request, AddRequest) and request.entry_id > beyond else None
    )


async def spare_of(world: ReplicationWorld, ledger_id: int) -> DictBookie:
    (ensemble,) = await world.members(ledger_id)
    (spare,) = set(world.cluster.bookies) - set(ensemble)
    return world.cluster.bookies[spare]


async def test_the_replicas_of_a_lost_bookie_are_copied_to_one_outside_the_ensemble() -> None:
    async with open_world() as world:
        ledger_id = await world.closed_ledger()
        spare = await spare_of(world, ledger_id)
        (before,) = await world.members(ledger_id)
        await world.lose(before[1])
        await world.locked(ledger_id)
        assert await world.restorer.restore(ledger_id) is Outcome.RESTORED
        metadata = await world.client.metadata(ledger_id)
        assert metadata.ensembles[0].bookies == (before[0], spare.name, before[2])
        assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, LAST)
        copies, originals = (
            world.cluster.bookies[name].ledgers[ledger_id].entries for name in (spare.name, before[0])
        )
        assert copies == originals  # the same bytes
        adds = [request for request in spare.requests if isinstance(request, AddRequest)]
        assert all(request.recovery for request in adds)
        assert len(adds) == world.restorer.stats.entries_copied == len(PAYLOADS)
        assert await world.payloads(ledger_id) == PAYLOADS


@pytest.mark.parametrize(("ensemble_size", "write_quorum"), [(3, 2), (4, 2), (4, 3)])
async def test_only_the_entries_of_the_lost_place_are_copied(ensemble_size: int, write_quorum: int) -> None:
    async with open_world(ensemble_size + 1) as world:
        ledger_id = await world.closed_ledger(ensemble_size=ensemble_size, write_quorum=write_quorum)
        spare = await spare_of(world, ledger_id)
        (before,) = await world.members(ledger_id)
        lost = world.cluster.bookies[before[2]]
        await world.lose(lost.name)
        await world.locked(ledger_id)
        assert await world.restorer.restore(ledger_id) is Outcome.RESTORED
        assert spare.ledgers[ledger_id].entries == lost.ledgers[ledger_id].entries
        world.check_replicas(ledger_id, await world.client.metadata(ledger_id), LAST)


async def test_two_lost_bookies_of_one_ensemble_are_replaced_at_once() -> None:
    async with open_world(5) as world:
        ledger_id = await world.closed_ledger()
        (before,) = await world.members(ledger_id)
        await world.lose(before[0])
        await world.lose(before[2])
        await world.locked(ledger_id)
        assert await world.restorer.restore(ledger_id) is Outcome.RESTORED
        (after,) = await world.members(ledger_id)
        assert after[1] == before[1]
        assert len({*before, *after}) == 5
        world.check_replicas(ledger_id, await world.client.metadata(ledger_id), LAST)


def adds_to(bookie: DictBookie) -> list[int]:
    """The entries that were copied to a bookie."""
    return [one.entry_id for one in bookie.requests if isinstance(one, AddRequest) and one.recovery]


@pytest.mark.parametrize("bookie_count", [3, 4])
async def test_a_registered_bookie_that_lost_its_entries_gets_them_back(bookie_count: int) -> None:
    async with open_world(bookie_count) as world:
        ledger_id = await world.closed_ledger()
        (before,) = await world.members(ledger_id)
        world.cluster.bookies[before[0]].ledgers.clear()
        await world.locked(ledger_id)
        assert await world.restorer.restore(ledger_id) is Outcome.RESTORED
        assert await world.members(ledger_id) == [before]
        copies, originals = (world.cluster.bookies[name].ledgers[ledger_id].entries for name in before[:2])
        assert copies == originals  # the same bytes


@pytest.mark.parametrize("ensemble_size", [3, 4])
async def test_only_what_a_bookie_lacks_is_copied_into_it(ensemble_size: int) -> None:
    async with open_world(ensemble_size) as world:
        ledger_id = await world.closed_ledger(ensemble_size=ensemble_size)
        (before,) = await world.members(ledger_id)
        bookie = world.cluster.bookies[before[0]]
        lost = sorted(bookie.ledgers[ledger_id].entries)[2:6]
        for entry_id in lost:
            del bookie.ledgers[ledger_id].entries[entry_id]
        await world.locked(ledger_id)
        assert await world.restorer.restore(ledger_id) is Outcome.RESTORED
        assert sorted(adds_to(bookie)) == lost
        world.check_replicas(ledger_id, await world.client.metadata(ledger_id), LAST)


async def test_all_entries_are_read_from_a_bookie_that_was_away_and_gives_no_list() -> None:
    # Apache's bookie with DbLedgerStorage.
    async with open_world(3) as world:
        ledger_id = await world.closed_ledger()
        (before,) = await world.members(ledger_id)
        bookie = world.cluster.bookies[before[0]]
        bookie.refuse = lambda one: Code.UNKNOWN_LEDGER_STATE if isinstance(one, ListEntriesRequest) else None
        del bookie.ledgers[ledger_id].entries[5]
        await world.locked(ledger_id)
        assert await world.restorer.restore(ledger_id) is Outcome.RESTORED  # nobody says that it was away
        assert 5 not in bookie.ledgers[ledger_id].entries
        assert await world.restorer.restore(ledger_id, [before[0]]) is Outcome.RESTORED
        world.check_replicas(ledger_id, await world.client.metadata(ledger_id), LAST)


async def test_a_bookie_with_a_damaged_entry_gets_all_of_its_entries_again() -> None:
    async with open_world(3) as world:
        ledger_id = await world.closed_ledger()
        (before,) = await world.members(ledger_id)
        entries = world.cluster.bookies[before[1]].ledgers[ledger_id].entries
        entries[LAST] = entries[LAST][:-1] + b"?"
        await world.locked(ledger_id)
        assert await world.restorer.restore(ledger_id) is Outcome.RESTORED
        assert entries == world.cluster.bookies[before[0]].ledgers[ledger_id].entries


async def test_a_bookie_that_takes_its_entries_and_still_lacks_them_is_replaced() -> None:
    async with open_world() as world:
        ledger_id = await world.closed_ledger()
        (before,) = await world.members(ledger_id)
        bookie = world.cluster.bookies[before[0]]
        bookie.ledgers.clear()
        refuse_adds(bookie)
        await world.locked(ledger_id)
        assert await world.restorer.restore(ledger_id) is Outcome.FAILED
        assert await world.members(ledger_id) == [before]
        assert await world.restorer.restore(ledger_id) is Outcome.RESTORED
        assert before[0] not in (await world.members(ledger_id))[0]


async def test_a_bookie_that_is_overloaded_is_filled_later_and_not_replaced(
    autojump_clock: MockClock,
) -> None:
    async with open_world() as world:
        ledger_id = await world.closed_ledger()
        (before,) = await world.members(ledger_id)
        bookie = world.cluster.bookies[before[0]]
        bookie.ledgers.clear()
        bookie.refuse = lambda one: Code.TOO_MANY_REQUESTS if isinstance(one, AddRequest) else None
        await world.locked(ledger_id)
        assert await world.restorer.restore(ledger_id) is Outcome.FAILED
        bookie.refuse = lambda _: None
        assert await world.restorer.restore(ledger_id) is Outcome.RESTORED
        assert await world.members(ledger_id) == [before]


async def test_a_member_of_an_open_end_gets_what_is_confirmed_and_nothing_more() -> None:
    async with open_world(3) as world:
        writer = await world.client.create()
        for payload in PAYLOADS:
            await writer.append(payload)
        await writer.write_explicit_lac()
        (before,) = await world.members(writer.ledger_id)
        bookie = world.cluster.bookies[before[0]]
        for other in before[1:]:
            refuse_adds(world.cluster.bookies[other], beyond=LAST + 1)
        pending = [writer.submit(b"in flight"), writer.submit(b"in flight too")]
        await trio.testing.wait_all_tasks_blocked()
        assert writer.lac <= LAST + 1
        entries = bookie.ledgers[writer.ledger_id].entries
        for entry_id in [4, *pending]:
            entries.pop(entry_id, None)
        await world.locked(writer.ledger_id)
        assert await world.restorer.restore(writer.ledger_id) is Outcome.RESTORED
        assert adds_to(bookie) == [4]
        assert (await world.client.metadata(writer.ledger_id)).state is LedgerState.OPEN
        bookies = world.cluster.bookies.values()
        assert not any(ledger.fenced for bookie in bookies for ledger in bookie.ledgers.values())
        writer.abandon()


async def test_a_forged_lac_does_not_make_unconfirmed_entries_copied() -> None:
    async with open_world(3) as world:
        writer = await world.client.create(digest_type=DigestType.MAC, password=b"secret")
        for payload in PAYLOADS:
            await writer.append(payload)
        ledger_id = writer.ledger_id
        (before,) = await world.members(ledger_id)
        forged = EntryCodec(DigestType.MAC, b"guessed").pack_lac(ledger_id, LAST + 5)
        for name in before:
            world.cluster.bookies[name].ledgers[ledger_id].lac_body = forged
        bookie = world.cluster.bookies[before[0]]
        entries = bookie.ledgers[ledger_id].entries
        del entries[LAST], entries[3]
        await world.locked(ledger_id)
        with pytest.raises(LedgerReadError):  # nobody proves a LAC
            await world.restorer.restore(ledger_id)
        assert adds_to(bookie) == []
        writer.abandon()


async def test_a_bookie_that_came_back_is_left_in_place() -> None:
    async with open_world() as world:
        ledger_id = await world.closed_ledger()
        (before,) = await world.members(ledger_id)
        await world.lose(before[1])
        await world.cluster.start(before[1])
        await world.locked(ledger_id)
        assert await world.restorer.restore(ledger_id) is Outcome.RESTORED
        assert await world.members(ledger_id) == [before]
        assert world.restorer.stats.entries_copied == 0


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110
        await trio.sleep(0.1)


SLOW = ReplicationConfig(batch_entries=1, rate_bytes_max=20)


@pytest.mark.parametrize("has_its_entries", [True, False])
async def test_a_copy_ends_when_the_bookie_comes_back(
    autojump_clock: MockClock, has_its_entries: bool
) -> None:
    async with open_world(4, SLOW) as world, trio.open_nursery() as nursery:
        ledger_id = await world.closed_ledger()
        spare = await spare_of(world, ledger_id)
        (before,) = await world.members(ledger_id)
        await world.lose(before[1])
        if not has_its_entries:
            world.cluster.bookies[before[1]].ledgers.clear()
        await world.locked(ledger_id)
        outcomes = []

        async def restore() -> None:
            outcomes.append(await world.restorer.restore(ledger_id))

        nursery.start_soon(restore)
        await until(lambda: bool(spare.ledgers))
        await world.cluster.start(before[1])
        await until(lambda: bool(outcomes))
        copied = world.restorer.stats.entries_copied
        assert 0 < copied < len(PAYLOADS)
        assert await world.members(ledger_id) == [before]
        assert outcomes == [Outcome.RESTORED if has_its_entries else Outcome.FAILED]
        if not has_its_entries:  # the next attempt copies them into the bookie itself
            assert await world.restorer.restore(ledger_id) is Outcome.RESTORED
            assert await world.members(ledger_id) == [before]
            world.check_replicas(ledger_id, await world.client.metadata(ledger_id), LAST)


async def test_a_copy_goes_on_while_one_of_its_bookies_is_away(autojump_clock: MockClock) -> None:
    async with open_world(5, SLOW) as world, trio.open_nursery() as nursery:
        ledger_id = await world.closed_ledger()
        (before,) = await world.members(ledger_id)
        await world.lose(before[0])
        await world.lose(before[1])
        await world.locked(ledger_id)
        nursery.start_soon(world.restorer.restore, ledger_id)
        await until(lambda: world.restorer.stats.fragments_copied == 0)
        await trio.sleep(1)
        await world.cluster.start(before[0])
        await until(lambda: world.restorer.stats.fragments_copied == 1)
        assert {before[0], before[1]}.isdisjoint((await world.members(ledger_id))[0])


@pytest.mark.parametrize("code", [Code.TOO_MANY_REQUESTS, Code.UNAUTHORIZED])
async def test_a_bookie_that_does_not_say_what_it_has_is_neither_replaced_nor_taken_for_good(
    code: Code,
) -> None:
    async with open_world() as world:
        ledger_id = await world.closed_ledger()
        (before,) = await world.members(ledger_id)
        bookie = world.cluster.bookies[before[0]]
        bookie.refuse = lambda request: code if isinstance(request, ReadRequest) else None
        await world.locked(ledger_id)
        assert await world.restorer.restore(ledger_id) is Outcome.FAILED
        assert await world.members(ledger_id) == [before]
        bookie.refuse = lambda _: None
        assert await world.restorer.restore(ledger_id) is Outcome.RESTORED
        assert await world.members(ledger_id) == [before]


async def test_without_a_spare_bookie_nothing_changes() -> None:
    async with open_world(3) as world:
        ledger_id = await world.closed_ledger()
        (before,) = await world.members(ledger_id)
        await world.lose(before[1])
        await world.locked(ledger_id)
        assert await world.restorer.must_wait(ledger_id, [before[1]])
        assert await world.restorer.restore(ledger_id) is Outcome.WAITING
        assert await world.members(ledger_id) == [before]
        await world.start("b4:1")
        assert not await world.restorer.must_wait(ledger_id, [before[1]])


async def test_an_open_ledger_without_a_spare_bookie_is_not_closed() -> None:
    async with open_world(3) as world:
        writer = await world.client.create()
        await writer.append_many(PAYLOADS)
        (before,) = await world.members(writer.ledger_id)
        await world.lose(before[1])
        await world.locked(writer.ledger_id)
        assert await world.restorer.restore(writer.ledger_id) is Outcome.WAITING
        assert not await world.restorer.close_if_stuck(writer.ledger_id)
        await writer.append(b"goes on with two of three")
        assert not (await world.client.metadata(writer.ledger_id)).is_closed
        await world.start("b4:1")
        assert await world.restorer.restore(writer.ledger_id) is Outcome.OPEN


async def test_a_mark_of_a_bookie_that_is_back_is_never_waited_with() -> None:
    async with open_world(3) as world:
        ledger_id = await world.closed_ledger()
        await world.lose("b1:1")
        assert not await world.restorer.must_wait(ledger_id, ["b1:1", "b2:1"])
        assert not await world.restorer.must_wait(ledger_id, [])
        assert not await world.restorer.must_wait(77, ["b1:1"])


async def test_a_closed_ledger_without_entries_waits_for_no_bookie() -> None:
    async with open_world(3) as world:
        async with await world.client.create() as writer:
            pass
        await world.lose("b1:1")
        assert not await world.restorer.must_wait(writer.ledger_id, ["b1:1"])


async def test_the_metadata_stay_until_every_entry_is_stored() -> None:
    async with open_world() as world:
        ledger_id = await world.closed_ledger()
        spare = await spare_of(world, ledger_id)
        refuse_adds(spare, beyond=LAST - 1)  # the last entry is refused
        (before,) = await world.members(ledger_id)
        await world.lose(before[1])
        await world.locked(ledger_id)
        assert await world.restorer.restore(ledger_id) is Outcome.FAILED
        assert len(spare.ledgers[ledger_id].entries) == LAST
        assert await world.members(ledger_id) == [before]
        spare.refuse = lambda _: None
        assert await world.restorer.restore(ledger_id) is Outcome.RESTORED


async def test_an_entry_that_no_replica_returns_is_tried_first_the_next_time() -> None:
    async with open_world() as world:
        ledger_id = await world.closed_ledger()
        spare = await spare_of(world, ledger_id)
        (before,) = await world.members(ledger_id)
        await world.lose(before[1])
        kept = {name: world.cluster.bookies[name].ledgers[ledger_id].entries.pop(5) for name in before}
        await world.locked(ledger_id)
        assert await world.restorer.restore(ledger_id) is Outcome.FAILED
        assert await world.members(ledger_id) == [before]
        copied = world.restorer.stats.entries_copied
        assert await world.restorer.restore(ledger_id) is Outcome.FAILED
        assert world.restorer.stats.entries_copied == copied
        for name in (before[0], before[2]):
            world.cluster.bookies[name].ledgers[ledger_id].entries[5] = kept[name]
        assert await world.restorer.restore(ledger_id) is Outcome.RESTORED
        assert spare.ledgers[ledger_id].entries[5] == kept[before[0]]


async def test_a_damaged_replica_is_not_the_source_of_a_copy() -> None:
    async with open_world() as world:
        ledger_id = await world.closed_ledger()
        spare = await spare_of(world, ledger_id)
        (before,) = await world.members(ledger_id)
        good = dict(world.cluster.bookies[before[2]].ledgers[ledger_id].entries)
        entries = world.cluster.bookies[before[0]].ledgers[ledger_id].entries
        for entry_id in range(1, LAST):
            entries[entry_id] = entries[entry_id][:-1] + b"?"
        await world.lose(before[1])
        await world.locked(ledger_id)
        await world.restorer.restore(ledger_id)
        assert spare.ledgers[ledger_id].entries == good


async def test_without_the_lock_the_metadata_stay() -> None:
    async with open_world() as world:
        ledger_id = await world.closed_ledger()
        (before,) = await world.members(ledger_id)
        await world.lose(before[1])
        with pytest.raises(NoNodeError, match="the lock is lost"):
            await world.restorer.restore(ledger_id)
        assert await world.members(ledger_id) == [before]


async def test_copies_are_not_used_if_another_program_replaced_the_bookie() -> None:
    async with open_world(5) as world:
        ledger_id = await world.closed_ledger()
        (before,) = await world.members(ledger_id)
        await world.lose(before[1])
        await world.locked(ledger_id)
        spares = set(world.cluster.bookies) - set(before)
        catalog, session = world.client.context.catalog, cast(Any, world.session)
        original = session.commit

        async def move_first(operations: Any) -> None:
            # After the copy and before the change of the metadata, a program puts the replica elsewhere.
            session.commit = original
            bookies = world.cluster.bookies
            (other,) = (name for name in spares if ledger_id not in bookies[name].ledgers)
            bookies[other].ledgers[ledger_id] = bookies[before[1]].ledgers[ledger_id]
            current = await catalog.get(ledger_id)
            changed = current.metadata.with_replicas(0, (before[0], other, before[2]))
            await catalog.put(ledger_id, changed, expected=current.version)
            await original(operations)

        session.commit = move_first
        assert await world.restorer.restore(ledger_id) is Outcome.RESTORED
        assert world.restorer.stats.fragments_copied == 0
        assert before[1] not in (await world.members(ledger_id))[0]
        world.check_replicas(ledger_id, await world.client.metadata(ledger_id), LAST)


@pytest.mark.slow
async def test_a_change_whose_reply_was_lost_is_made_once() -> None:
    async with open_world() as world:
        ledger_id = await world.closed_ledger()
        (before,) = await world.members(ledger_id)
        await world.lose(before[1])
        await world.locked(ledger_id)
        session = cast(Any, world.session)
        original = session.commit

        async def commit(operations: Any) -> None:
            await original(operations)
            session.commit = original
            raise ConnectionLostError("/")

        session.commit = commit
        path = world.client.context.catalog.path(ledger_id)
        version = (await world.session.get(path)).stat.version
        assert await world.restorer.restore(ledger_id) is Outcome.RESTORED
        assert (await world.session.get(path)).stat.version == version + 1


async def test_final_fragments_of_an_open_ledger_are_restored_while_its_writer_writes() -> None:
    async with open_world(5) as world:
        writer = await world.client.create()
        await writer.append_many(PAYLOADS)
        (before,) = await world.members(writer.ledger_id)
        await world.lose(before[0])
        await writer.append_many(PAYLOADS)  # its writer replaces the bookie
        _, end = await world.members(writer.ledger_id)
        await world.locked(writer.ledger_id)
        assert await world.restorer.restore(writer.ledger_id) is Outcome.RESTORED
        first, unchanged = await world.members(writer.ledger_id)
        assert before[0] not in first
        assert unchanged == end
        await writer.append_many(PAYLOADS)
        await writer.close()
        assert await world.payloads(writer.ledger_id) == PAYLOADS * 3
        metadata = await world.client.metadata(writer.ledger_id)
        world.check_replicas(writer.ledger_id, metadata, metadata.last_entry_id)


async def test_the_open_end_is_left_alone_until_it_is_closed() -> None:
    async with open_world() as world:
        writer = await world.client.create()
        for payload in PAYLOADS:  # one by one, so that bookies know of confirmed entries
            await writer.append(payload)
        (before,) = await world.members(writer.ledger_id)
        await world.lose(before[0])
        await world.locked(writer.ledger_id)
        assert await world.restorer.restore(writer.ledger_id) is Outcome.OPEN
        assert world.restorer.stats.entries_copied == 0
        assert await world.members(writer.ledger_id) == [before]
        assert (await world.client.metadata(writer.ledger_id)).state is LedgerState.OPEN
        bookies = world.cluster.bookies.values()
        assert not any(ledger.fenced for bookie in bookies for ledger in bookie.ledgers.values())
        assert await world.restorer.close_if_stuck(writer.ledger_id)
        assert await world.restorer.restore(writer.ledger_id) is Outcome.RESTORED
        with pytest.raises(LedgerFencedError):
            await writer.append(b"too late")
        assert await world.payloads(writer.ledger_id) == PAYLOADS


async def test_a_ledger_whose_writer_replaced_the_bookie_in_time_is_not_closed() -> None:
    async with open_world() as world:
        writer = await world.client.create()
        await writer.append_many(PAYLOADS)
        (before,) = await world.members(writer.ledger_id)
        await world.lose(before[0])
        await world.locked(writer.ledger_id)
        assert await world.restorer.restore(writer.ledger_id) is Outcome.OPEN
        await writer.append_many(PAYLOADS)
        assert not await world.restorer.close_if_stuck(writer.ledger_id)
        await writer.append(b"goes on")
        assert await world.restorer.restore(writer.ledger_id) is Outcome.RESTORED
        await writer.close()


async def test_a_deleted_ledger_is_gone() -> None:
    async with open_world() as world:
        await world.locked(77)
        assert await world.restorer.restore(77) is Outcome.GONE
        assert not await world.restorer.close_if_stuck(77)
        assert await world.restorer.evacuate(77, ["b1:1"], close_open=True) is Outcome.GONE


async def test_an_evacuated_bookie_is_in_no_ensemble_although_it_runs() -> None:
    async with open_world(5) as world:
        closed, empty = await world.closed_ledger(), await world.client.create()
        await empty.close()
        writer = await world.client.create()
        await writer.append_many(PAYLOADS)
        (bookie,) = (await world.members(writer.ledger_id))[0][:1]
        outcomes = {}
        for ledger_id in (closed, empty.ledger_id, writer.ledger_id):
            await world.locked(ledger_id)
            outcomes[ledger_id] = await world.restorer.evacuate(ledger_id, [bookie], close_open=False)
        assert outcomes[writer.ledger_id] is Outcome.OPEN
        assert not (await world.client.metadata(writer.ledger_id)).is_closed
        assert (
            await world.restorer.evacuate(writer.ledger_id, [bookie], close_open=True)
        ) is Outcome.RESTORED
        for ledger_id in outcomes:
            assert bookie not in (await world.members(ledger_id))[0]
        world.check_replicas(closed, await world.client.metadata(closed), LAST)
        assert await world.payloads(writer.ledger_id) == PAYLOADS


async def test_copies_keep_to_the_limit_of_bytes(autojump_clock: trio.testing.MockClock) -> None:
    config = ReplicationConfig(rate_bytes_max=100, batch_entries=1)
    async with open_world(config=config) as world:
        ledger_id = await world.closed_ledger()
        (before,) = await world.members(ledger_id)
        await world.lose(before[1])
        await world.locked(ledger_id)
        started = trio.current_time()
        assert await world.restorer.restore(ledger_id) is Outcome.RESTORED
        seconds = trio.current_time() - started
        assert seconds >= (world.restorer.stats.bytes_copied - 100) / 100


@pytest.mark.slow
@pytest.mark.parametrize("reads_left", range(0, 40, 3))
async def test_a_worker_that_dies_anywhere_leaves_a_ledger_that_another_one_restores(reads_left: int) -> None:
    async with open_world() as world:
        ledger_id = await world.closed_ledger()
        (before,) = await world.members(ledger_id)
        await world.lose(before[1])
        left = reads_left
        with trio.CancelScope() as scope:

            def count(request: object) -> Code | None:
                nonlocal left
                if isinstance(request, (ReadRequest, BatchReadRequest, AddRequest)):
                    left -= 1
                    if left < 0:
                        scope.cancel()
                return None

            for bookie in world.cluster.bookies.values():
                bookie.refuse = count
            taken = await world.locked(ledger_id)
            await world.restorer.restore(ledger_id)
        for bookie in world.cluster.bookies.values():
            bookie.refuse = lambda _: None
        assert await world.payloads(ledger_id) == PAYLOADS
        await world.marks.release(taken)
        await world.locked(ledger_id)
        assert await world.restorer.restore(ledger_id) is Outcome.RESTORED
        world.check_replicas(ledger_id, await world.client.metadata(ledger_id), LAST)
