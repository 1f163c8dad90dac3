"""The auditor: which ledgers it marks, and when."""

# covers: ledger/replication/config.py
# covers: ledger/replication/ledger_visits.py
# covers: ledger/runtime/clock.py

from __future__ import annotations

import gc
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from trio.testing import MockClock

from ledger.catalog.paths import cookie_path, ledger_id_of, readonly_path
from ledger.metadata import Ensemble
from ledger.metadata_store.errors import ConnectionLostError
from ledger.metadata_store.memory import open_memory_store
from ledger.metadata_store.store import MetadataStore
from ledger.replication.absences import SETTLE_S
from ledger.replication.auditor import AUDIT_GROUP, UNREACHED_PAUSE_S, Auditor
from ledger.replication.config import ReplicationConfig
from ledger.replication.ledger_visits import GROUP, OPEN_PAUSE_S, REST_S_MAX
from ledger.replication.marks import RegularCheck, UnderReplicatedLedgers
from ledger.replication.returned_bookies import RETURN_PAUSE_S
from ledger.runtime.clock import wall_ms
from tests.fakes.dict_namespace import WatchedStore
from tests.fakes.replication_world import PAYLOADS, ReplicationWorld, open_world


class Paths:
    """Notes the nodes that are read."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    async def __call__(self, kind: str, path: str) -> None:
        self.seen.add(path)


CONFIG = ReplicationConfig(lost_bookie_delay_s=60)
MEMBERS = [("b1:1", "b2:1", "b3:1"), ("b3:1", "b4:1", "b5:1"), ("b4:1", "b5:1", "b2:1")]


async def marked(world: ReplicationWorld) -> Mapping[int, tuple[str, ...]]:
    return {one.ledger_id: one.mark.replicas for one in await world.marks.marked()}


@asynccontextmanager
async def audited(world: ReplicationWorld) -> AsyncIterator[None]:
    """The auditor runs, and has made its first audit."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.auditor.run)
        await trio.sleep(1)
        assert world.auditor.stats.audits == 1
        yield
        nursery.cancel_scope.cancel()


async def test_the_ledgers_of_a_lost_bookie_are_marked_and_no_others(autojump_clock: MockClock) -> None:
    async with open_world(5) as world, audited(world):
        catalog = world.client.context.catalog
        ledgers = {await world.closed_ledger(): bookies for bookies in MEMBERS}
        for ledger_id, bookies in ledgers.items():
            current = await catalog.get(ledger_id)
            await catalog.put(ledger_id, current.metadata.with_replicas(0, bookies), expected=current.version)
        assert await marked(world) == {}
        await world.lose("b2:1")
        await trio.sleep(1)
        assert await marked(world) == {one: ("b2:1",) for one in ledgers if "b2:1" in ledgers[one]}


async def test_a_read_only_bookie_is_not_lost(autojump_clock: MockClock) -> None:
    async with open_world(3) as world, audited(world):
        await world.closed_ledger()
        await world.session.create(readonly_path("/ledgers", "b2:1"), ephemeral=True, parents=True)
        await world.lose("b2:1")
        await trio.sleep(1)
        assert await marked(world) == {}


async def test_a_bookie_that_is_gone_since_before_the_start_is_lost(autojump_clock: MockClock) -> None:
    async with open_world(3) as world:
        ledger_id = await world.closed_ledger()
        await world.session.create(cookie_path("/ledgers", "b2:1"), parents=True)
        await world.lose("b2:1")
        async with audited(world):
            assert await marked(world) == {ledger_id: ("b2:1",)}


async def test_a_bookie_that_comes_back_within_the_delay_is_not_audited(autojump_clock: MockClock) -> None:
    async with open_world(3, CONFIG) as world, audited(world):
        ledger_id = await world.closed_ledger()
        await world.lose("b2:1")
        await trio.sleep(50)
        await world.cluster.start("b2:1")
        await trio.sleep(100)
        assert world.auditor.stats.audits == 1
        await world.lose("b2:1")
        await trio.sleep(59)
        assert await marked(world) == {}
        await trio.sleep(2)
        assert await marked(world) == {ledger_id: ("b2:1",)}


async def test_an_operator_ends_the_delay_by_writing_it_again(autojump_clock: MockClock) -> None:
    async with open_world(3, CONFIG) as world, audited(world):
        ledger_id = await world.closed_ledger()
        await world.lose("b2:1")
        await trio.sleep(1)
        assert await marked(world) == {}
        await world.marks.set_recovery_delay(60)
        await trio.sleep(1)
        assert await marked(world) == {ledger_id: ("b2:1",)}


async def test_a_new_auditor_grants_the_delay_to_a_bookie_that_is_away(autojump_clock: MockClock) -> None:
    async with open_world(3, CONFIG) as world, trio.open_nursery() as nursery:
        ledger_id = await world.closed_ledger()
        await world.session.create(cookie_path("/ledgers", "b2:1"), parents=True)
        await world.lose("b2:1")
        nursery.start_soon(world.auditor.run)
        await trio.sleep(59)
        assert await marked(world) == {}
        await trio.sleep(2)
        assert await marked(world) == {ledger_id: ("b2:1",)}
        nursery.cancel_scope.cancel()


async def test_a_lost_connection_is_no_wish_for_an_audit(autojump_clock: MockClock) -> None:
    async with open_world(3, CONFIG) as world, audited(world):
        world.session.suspend()
        await trio.sleep(1)
        world.session.resume()
        await trio.sleep(20)
        assert world.auditor.stats.audits == 1


async def test_the_delay_begins_when_the_switch_is_on_again(autojump_clock: MockClock) -> None:
    async with open_world(3, CONFIG) as world, audited(world):
        ledger_id = await world.closed_ledger()
        await world.marks.switch(on=False)
        await world.lose("b2:1")
        await trio.sleep(100)
        await world.marks.switch(on=True)
        await trio.sleep(59)
        assert await marked(world) == {}
        await trio.sleep(2)
        assert await marked(world) == {ledger_id: ("b2:1",)}


async def test_an_audit_that_was_switched_off_marks_nothing_and_begins_again() -> None:
    async with open_world(3) as world, trio.open_nursery() as nursery:
        ledger_id = await world.closed_ledger()
        await world.lose("b2:1")
        session = world.session
        assert isinstance(session, WatchedStore)
        is_off = trio.Event()

        async def switch_off(kind: str, path: str) -> None:
            if path == world.client.context.catalog.path(ledger_id) and not is_off.is_set():
                is_off.set()
                await world.marks.switch(on=False)

        session.before = switch_off
        nursery.start_soon(world.auditor.audit)
        await is_off.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert await marked(world) == {}
        await world.marks.switch(on=True)
        await trio.testing.wait_all_tasks_blocked()
        assert await marked(world) == {ledger_id: ("b2:1",)}


async def test_nothing_is_marked_while_the_switch_is_off(autojump_clock: MockClock) -> None:
    async with open_world(3) as world, audited(world):
        ledger_id = await world.closed_ledger()
        await world.marks.switch(on=False)
        await world.lose("b2:1")
        await trio.sleep(100)
        assert await marked(world) == {}
        await world.marks.switch(on=True)
        await trio.sleep(1)
        assert await marked(world) == {ledger_id: ("b2:1",)}


async def test_a_bookie_that_joined_during_the_audit_is_not_lost() -> None:
    async with open_world(3, ReplicationConfig(reads_in_flight_max=1)) as world:
        ledgers = [await world.closed_ledger() for _ in range(2)]
        catalog, session = world.client.context.catalog, world.session
        assert isinstance(session, WatchedStore)

        async def join(kind: str, path: str) -> None:
            for ledger_id in ledgers:
                if kind == "get" and path == catalog.path(ledger_id) and "b9:1" not in world.cluster.bookies:
                    (other,) = set(ledgers) - {ledger_id}
                    await world.cluster.start("b9:1")
                    current = await catalog.get(other)
                    bookies = (*current.metadata.ensembles[0].bookies[:2], "b9:1")
                    await catalog.put(
                        other, current.metadata.with_replicas(0, bookies), expected=current.version
                    )

        session.before = join
        assert await world.auditor.audit() == 0
        assert "b9:1" in world.cluster.bookies


async def test_the_check_of_all_ledgers_finds_lost_entries_of_a_bookie_that_runs() -> None:
    async with open_world(3) as world:
        whole, damaged = await world.closed_ledger(), await world.closed_ledger()
        del world.cluster.bookies["b2:1"].ledgers[damaged]
        assert await world.auditor.check_ledgers() == 1
        assert await marked(world) == {damaged: ("b2:1",)}
        assert await world.marks.checked_ms(RegularCheck.READS) is not None
        assert whole != damaged


@pytest.mark.parametrize("becomes", ["reachable", "forgotten", "silent"])
async def test_a_registered_bookie_that_cannot_be_reached_is_looked_at_again_before_a_mark(
    autojump_clock: MockClock, becomes: str
) -> None:
    """A bookie that died, or restarts, stays registered for the time of its session."""
    async with open_world(3) as world, trio.open_nursery() as nursery:
        ledger_id = await world.closed_ledger()
        await world.cluster.stop("b2:1", registered=True)
        nursery.start_soon(world.auditor.check_ledgers)
        await trio.sleep(UNREACHED_PAUSE_S / 2)
        assert await marked(world) == {}
        if becomes == "reachable":
            world.cluster.revive("b2:1")
        elif becomes == "forgotten":
            world.cluster.revive("b2:1")
            await world.lose("b2:1")
        while not world.auditor.stats.ledger_checks:  # noqa: ASYNC110
            await trio.sleep(1)
        assert await marked(world) == ({ledger_id: ("b2:1",)} if becomes == "silent" else {})


async def test_a_check_recorded_by_a_clock_that_was_ahead_delays_the_next_one_by_one_interval(
    autojump_clock: MockClock,
) -> None:
    async with (
        open_world(3, ReplicationConfig(ledger_check_interval_s=10)) as world,
        trio.open_nursery() as nursery,
    ):
        ahead_ms = wall_ms() + 86_400_000 * 365
        await UnderReplicatedLedgers(world.session, "/ledgers", wall_ms=lambda: ahead_ms).set_checked(
            RegularCheck.READS
        )
        nursery.start_soon(world.auditor.run)
        await trio.sleep(15)
        assert world.auditor.stats.ledger_checks == 1
        nursery.cancel_scope.cancel()


async def test_a_check_that_an_operator_makes_due_is_done_by_the_running_auditor(
    autojump_clock: MockClock,
) -> None:
    async with (
        open_world(3, ReplicationConfig(ledger_check_interval_s=1_000_000)) as world,
        trio.open_nursery() as nursery,
    ):
        await world.marks.set_checked(RegularCheck.READS)
        nursery.start_soon(world.auditor.run)
        await trio.sleep(15)
        assert world.auditor.stats.ledger_checks == 0
        await world.marks.force_check(RegularCheck.READS)
        await trio.sleep(15)
        assert world.auditor.stats.ledger_checks == 1
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("was_checked", [True, False])
async def test_a_check_that_is_off_is_done_when_an_operator_makes_it_due(
    was_checked: bool, autojump_clock: MockClock
) -> None:
    config = ReplicationConfig(placement_check_interval_s=0, ledger_check_interval_s=0)
    async with open_world(3, config) as world, trio.open_nursery() as nursery:
        if was_checked:
            await world.marks.set_checked(RegularCheck.PLACEMENT)
        nursery.start_soon(world.auditor.run)
        await trio.sleep(30)
        checked_ms = await world.marks.checked_ms(RegularCheck.PLACEMENT)
        assert (checked_ms is not None) is was_checked
        for _ in range(2):
            await world.marks.force_check(RegularCheck.PLACEMENT)
            await trio.sleep(15)
            assert await world.marks.checked_ms(RegularCheck.PLACEMENT)
        assert world.auditor.stats.ledger_checks == 0
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_an_audit_that_fails_leaves_no_iterator_of_ledgers_behind() -> None:
    async with open_world(3) as world:
        await world.closed_ledger()
        session = world.session
        assert isinstance(session, WatchedStore)

        async def fail(kind: str, path: str) -> None:
            if kind == "get":
                raise ConnectionLostError(path)

        session.before = fail
        with pytest.raises(ConnectionLostError):
            await world.auditor.audit()
        gc.collect()  # an iterator that is not closed warns here, and warnings are errors


async def test_a_ledger_that_changes_during_its_check_is_not_marked() -> None:
    async with open_world(3) as world:
        ledger_id = await world.closed_ledger()
        del world.cluster.bookies["b2:1"].ledgers[ledger_id]
        catalog, session = world.client.context.catalog, world.session
        assert isinstance(session, WatchedStore)

        async def rewrite(kind: str, path: str) -> None:
            if kind == "children" and path.endswith("/readonly"):
                current = await catalog.get(ledger_id)
                await catalog.put(ledger_id, current.metadata, expected=current.version)

        session.before = rewrite
        assert await world.auditor.check_ledgers() == 0
        assert await marked(world) == {}


async def test_a_bookie_that_goes_away_during_a_check_is_left_to_the_audit(autojump_clock: MockClock) -> None:
    async with open_world(3) as world:
        path = world.client.context.catalog.path(await world.closed_ledger())

        async def go(kind: str, read: str) -> None:
            if kind == "get" and read == path and "b2:1" in world.client.membership.writable:
                await world.lose("b2:1")

        world.session.before = go
        assert await world.auditor.check_ledgers() == 0
        assert await marked(world) == {}


async def test_the_check_of_all_ledgers_waits_for_its_interval(autojump_clock: MockClock) -> None:
    async with open_world(3) as world, audited(world):
        assert world.auditor.stats.ledger_checks == 1  # never before


async def test_a_higher_percentage_finds_a_hole_in_the_middle() -> None:
    for percentage, found in ((0, 0), (100, 1)):
        async with open_world(3, ReplicationConfig(verified_percentage=percentage)) as world:
            ledger_id = await world.closed_ledger()
            del world.cluster.bookies["b2:1"].ledgers[ledger_id].entries[5]
            assert await world.auditor.check_ledgers() == found


async def test_a_hole_that_a_dead_writer_left_is_marked_when_its_bookie_is_back(
    autojump_clock: MockClock,
) -> None:
    """And no ledger is read that was closed before the bookie left."""
    async with open_world(3, CONFIG) as world:
        old = await world.closed_ledger()
        async with audited(world):
            await trio.sleep(RETURN_PAUSE_S + SETTLE_S + 1)
            left_open, closed = await world.client.create(), await world.client.create()
            await world.lose("b2:1")
            for writer in (left_open, closed):
                writer.note_missed = lambda _ledger_id, _bookie: None  # the writer's process is killed
                await writer.append_many(PAYLOADS)
                await writer.append(b"shows what is confirmed")
            await closed.close()
            left_open.abandon()
            assert await marked(world) == {}
            world.session.before = note = Paths()
            await world.start("b2:1")
            await trio.sleep(RETURN_PAUSE_S + OPEN_PAUSE_S + 1)
            assert await marked(world) == {one.ledger_id: ("b2:1",) for one in (left_open, closed)}
            path = world.client.context.catalog.path
            assert path(closed.ledger_id) in note.seen
            assert path(old) not in note.seen
            assert world.auditor.stats.audits == 1


async def test_ledgers_that_cannot_be_checked_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    async with open_world(3, CONFIG) as world:
        for _ in range(5):
            await world.client.create()  # open, so its end is unknown without its bookies
        for bookie in ("b1:1", "b2:1", "b3:1"):
            await world.cluster.stop(bookie)
        assert await world.auditor.check_ledgers() == 0
    lines = [line for line in caplog.messages if "not checked" in line]
    assert len(lines) == 1
    assert lines[0].startswith("5 ledgers were not checked, for example ledger ")


async def hole_of_a_dead_writer(world: ReplicationWorld, session: MetadataStore | None = None) -> int:
    """A closed ledger that lacks entries on b2:1, which is back, in this session if one is given."""
    writer = await world.client.create()
    await world.lose("b2:1")
    writer.note_missed = lambda _ledger_id, _bookie: None
    await writer.append_many(PAYLOADS)
    await writer.close()
    await world.cluster.start("b2:1", session=session)
    return writer.ledger_id


async def test_a_hole_is_marked_if_the_bookie_came_back_while_there_was_no_auditor(
    autojump_clock: MockClock,
) -> None:
    config = attrs.evolve(CONFIG, ledger_check_interval_s=math.inf, replicas_check_interval_s=math.inf)
    async with open_world(3, config) as world:
        ledger_id = await hole_of_a_dead_writer(world)
        async with audited(world):
            await trio.sleep(RETURN_PAUSE_S + 1)
            assert await marked(world) == {ledger_id: ("b2:1",)}


async def test_a_hole_is_marked_if_the_auditor_never_saw_the_bookie_away(autojump_clock: MockClock) -> None:
    async with (
        open_world(3, CONFIG) as world,
        audited(world),
        open_memory_store(world.cluster.tree) as session,
    ):
        await trio.sleep(RETURN_PAUSE_S + 1)
        world.session.suspend()
        ledger_id = await hole_of_a_dead_writer(world, session)
        world.session.resume()
        await trio.sleep(RETURN_PAUSE_S + CONFIG.retry_pause_s + 1)
        assert await marked(world) == {ledger_id: ("b2:1",)}


async def test_a_new_auditor_does_not_look_at_ledgers_of_bookies_that_registered_long_ago(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "ledger.replication")
    for wall, looks in ((wall_ms, True), (lambda: wall_ms() + 10**9, False)):
        caplog.clear()
        async with open_world(3, CONFIG) as world:
            marks = UnderReplicatedLedgers(world.session, "/ledgers", wall_ms=wall)
            auditor = Auditor(world.client.context, world.session, marks, CONFIG, wall_ms=wall)
            async with audited(attrs.evolve(world, auditor=auditor)):
                await trio.sleep(RETURN_PAUSE_S + 1)
        assert ("came back" in caplog.text) is looks


async def test_a_look_at_returned_bookies_is_repeated_after_a_lost_connection(
    autojump_clock: MockClock,
) -> None:
    async with open_world(3, CONFIG) as world, audited(world):
        ledger_id = await hole_of_a_dead_writer(world)
        await trio.sleep(1)
        world.session.suspend()
        await trio.sleep(RETURN_PAUSE_S + 3)
        world.session.resume()
        await trio.sleep(20)
        assert await marked(world) == {ledger_id: ("b2:1",)}


async def test_a_ledger_that_lacks_nothing_is_not_marked_when_a_bookie_is_back(
    autojump_clock: MockClock,
) -> None:
    async with open_world(4, CONFIG) as world, audited(world):
        await world.lose("b2:1")
        writer = await world.client.create()
        await writer.append_many(PAYLOADS)
        await world.start("b2:1")
        await trio.sleep(20)
        assert await marked(world) == {}
        await writer.close()


async def test_marks_that_no_worker_can_use_are_made_slowly_until_the_bookies_change(
    autojump_clock: MockClock,
) -> None:
    async with open_world(3) as world, trio.open_nursery() as nursery:
        metadata = await world.client.metadata(await world.closed_ledger())
        catalog = world.client.context.catalog
        for _ in range(99):
            await catalog.create(metadata, None)
        writer = await world.client.create()

        async def slowly(kind: str, path: str) -> None:
            if kind == "create":
                await trio.sleep(0.01)

        world.session.before = slowly
        nursery.start_soon(world.auditor._follow_bookies)
        await world.lose("b1:1")
        nursery.start_soon(world.auditor.audit)
        await trio.sleep(2)
        found = await marked(world)
        assert found[writer.ledger_id] == ("b1:1",)  # first
        assert 2 <= len(found) <= 12  # 0.01 s for each, and a pause of 0.4 s
        await world.cluster.start("b4:1")
        await trio.sleep(2)
        assert len(await marked(world)) == 101
        await writer.close()
        nursery.cancel_scope.cancel()


async def test_a_bookie_that_is_back_ends_the_marks_for_it(autojump_clock: MockClock) -> None:
    async with open_world(3) as world, trio.open_nursery() as nursery:
        metadata = await world.client.metadata(await world.closed_ledger())
        for _ in range(99):
            await world.client.context.catalog.create(metadata, None)

        async def slowly(kind: str, path: str) -> None:
            if kind == "create":
                await trio.sleep(0.01)

        world.session.before = slowly
        nursery.start_soon(world.auditor._follow_bookies)
        await world.lose("b1:1")
        nursery.start_soon(world.auditor.audit)
        await trio.sleep(2)
        await world.start("b1:1")
        await trio.sleep(60)
        assert world.auditor.stats.audits == 1
        assert len(await marked(world)) <= 12
        nursery.cancel_scope.cancel()


class Reads:
    """Counts the reads of ledgers' metadata, each of which takes some time."""

    def __init__(self, world: ReplicationWorld) -> None:
        self.count, self._root = 0, world.client.context.catalog.root
        world.session.before = self._before

    async def _before(self, kind: str, path: str) -> None:
        if kind == "get" and ledger_id_of(self._root, path) is not None:
            self.count += 1
            await trio.sleep(0.01)


async def test_an_audit_that_can_restore_nothing_rests_until_the_bookies_change(
    autojump_clock: MockClock,
) -> None:
    async with open_world(3) as world, trio.open_nursery() as nursery:
        metadata = await world.client.metadata(await world.closed_ledger())
        for _ in range(4 * AUDIT_GROUP - 1):
            await world.client.context.catalog.create(metadata, None)
        reads = Reads(world)
        nursery.start_soon(world.auditor._follow_bookies)
        nursery.start_soon(world.auditor._follow_delay_and_audit, nursery)
        await trio.sleep(REST_S_MAX / 4)
        assert reads.count == AUDIT_GROUP  # it looks although no bookie is lost
        await world.lose("b1:1")
        await trio.sleep(REST_S_MAX / 4)
        assert reads.count == 2 * AUDIT_GROUP  # another audit, from the beginning
        await world.cluster.start("b4:1")
        await trio.sleep(REST_S_MAX / 4)
        assert len(await marked(world)) == 4 * AUDIT_GROUP
        nursery.cancel_scope.cancel()


async def test_a_bookie_that_is_lost_during_an_audit_leads_to_another_one_at_once(
    autojump_clock: MockClock,
) -> None:
    async with open_world(4) as world, trio.open_nursery() as nursery:
        waiting = await world.client.metadata(await world.closed_ledger(ensemble_size=4))
        for _ in range(AUDIT_GROUP):
            await world.client.context.catalog.create(waiting, None)

        async def slowly(kind: str, path: str) -> None:
            if kind == "create":
                await trio.sleep(0.01)

        world.session.before = slowly
        nursery.start_soon(world.auditor._follow_bookies)
        nursery.start_soon(world.auditor._follow_delay_and_audit, nursery)
        await trio.sleep(1)
        await world.lose("b1:1")
        await trio.sleep(5)
        assert 2 <= len(await marked(world)) <= 20  # slowly
        pair = (Ensemble(0, ("b2:1", "b3:1")),)
        other = attrs.evolve(waiting, ensembles=pair, ensemble_size=2, write_quorum=2, ack_quorum=2)
        later = (await world.client.context.catalog.create(other, None)).ledger_id
        await world.lose("b2:1")
        await trio.sleep(2)
        found = await marked(world)
        assert found[later] == ("b2:1",)
        assert len(found) <= 40
        await trio.sleep(AUDIT_GROUP)
        assert len(await marked(world)) == AUDIT_GROUP + 2
        nursery.cancel_scope.cancel()


async def test_an_audit_that_a_new_delay_cut_short_is_repeated(autojump_clock: MockClock) -> None:
    async with open_world(3) as world, trio.open_nursery() as nursery:
        metadata = await world.client.metadata(await world.closed_ledger())
        for _ in range(GROUP):
            await world.client.context.catalog.create(metadata, None)
        nursery.start_soon(world.auditor._follow_bookies)
        nursery.start_soon(world.auditor._follow_delay_and_audit, nursery)
        await trio.sleep(1)

        async def slowly(kind: str, path: str) -> None:
            if kind == "create":
                await trio.sleep(0.01)

        world.session.before = slowly
        await world.lose("b1:1")
        await trio.sleep(1)
        assert 1 <= len(await marked(world)) <= 4
        await world.marks.set_recovery_delay(60)
        await trio.sleep(GROUP)
        assert len(await marked(world)) == GROUP + 1
        nursery.cancel_scope.cancel()


async def test_an_audit_does_not_rest_while_it_finds_what_can_be_restored(autojump_clock: MockClock) -> None:
    async with open_world(4) as world, trio.open_nursery() as nursery:
        metadata = await world.client.metadata(await world.closed_ledger())
        for _ in range(2 * AUDIT_GROUP):
            await world.client.context.catalog.create(metadata, None)
        await world.lose(metadata.ensembles[0].bookies[0])
        Reads(world)
        nursery.start_soon(world.auditor.audit)
        await trio.sleep(REST_S_MAX)
        assert len(await marked(world)) == 2 * AUDIT_GROUP + 1


async def test_checks_of_all_ledgers_share_one_pace(autojump_clock: MockClock) -> None:
    config = ReplicationConfig(reads_in_flight_max=1, replicas_check_ledgers_per_s=1000)
    async with open_world(3, config) as world, trio.open_nursery() as nursery:
        metadata = await world.client.metadata(await world.closed_ledger())
        for _ in range(4 * GROUP - 1):
            await world.client.context.catalog.create(metadata, None)
        reads, began_s = Reads(world), trio.current_time()
        async with trio.open_nursery() as checks:
            checks.start_soon(world.auditor.check_ledgers)
            checks.start_soon(world.auditor.check_replicas)
        assert reads.count >= 8 * GROUP
        assert trio.current_time() - began_s >= 8 * REST_S_MAX
        nursery.cancel_scope.cancel()
