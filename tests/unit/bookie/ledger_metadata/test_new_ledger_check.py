"""Which new ledgers are confirmed and which are deleted, with a metadata store in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence

import pytest
import trio
from trio.testing import MockClock

from bookie.errors import StorageFailedError
from bookie.ledger_metadata.cluster_nodes import ClusterNodes
from bookie.ledger_metadata.live_ledgers import ClusterChangedError, LiveLedgers
from bookie.ledger_metadata.new_ledger_check import BATCH_MAX, INTERVAL_S, NewLedgerCheck
from bookie.requests.new_ledgers import NewLedgers, NewLedgersConfig
from ledger.catalog.paths import Layout, ledger_path
from ledger.errors import LedgerMetadataError
from ledger.metadata_store.errors import ConnectionLostError
from ledger.metadata_store.memory import MemoryStore, MemoryTree, open_memory_store
from ledger.runtime.tasks.failure_domain import contained_failures

GRACE_S = 60.0


class World:
    """A bookie's new ledgers, and the store."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.new = NewLedgers(NewLedgersConfig(per_second_max=100_000, grace_s=GRACE_S), trio.current_time)
        self.deleted: list[int] = []
        self.deletions = 0
        self.live = LiveLedgers(
            ClusterNodes(lambda: store, "/ledgers", Layout.HIERARCHICAL), "b", None, requests_per_s=1_000_000
        )
        self.before_reply: Callable[[], None] = lambda: None
        self.after_deletion: Callable[[], None] = lambda: None
        self.check = NewLedgerCheck(self.new, self.find, self.delete)

    async def find(self, ledger_ids: Iterable[int]) -> Collection[int]:
        found = await self.live.find(ledger_ids)
        self.before_reply()
        return found

    async def delete(self, ledger_ids: Sequence[int]) -> None:
        await trio.lowlevel.checkpoint()
        self.deletions += 1
        self.deleted += ledger_ids
        self.after_deletion()

    async def create(self, ledger_id: int) -> None:
        """Create the metadata of a ledger."""
        await self.store.create(ledger_path("/ledgers", Layout.HIERARCHICAL, ledger_id), b"", parents=True)

    def begin(self, *ledger_ids: int) -> None:
        """A peer sends the first add of each ledger."""
        for ledger_id in ledger_ids:
            assert self.new.admit(ledger_id)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with open_memory_store(MemoryTree()) as store:
        await store.create("/ledgers/LAYOUT", Layout.HIERARCHICAL.text, parents=True)
        await store.create("/ledgers/cookies/b", parents=True)
        yield World(store)


async def test_a_ledger_that_exists_is_confirmed_and_never_deleted(
    world: World, autojump_clock: MockClock
) -> None:
    await world.create(7)
    world.begin(7)
    await world.check.check()
    assert len(world.new) == 0
    await trio.sleep(2 * GRACE_S)
    await world.check.check()
    assert world.deleted == []


async def test_a_ledger_that_does_not_exist_goes_after_the_second_look(
    world: World, autojump_clock: MockClock
) -> None:
    world.begin(5)
    await trio.sleep(2 * GRACE_S)  # its age alone does not matter
    await world.check.check()
    await trio.sleep(GRACE_S - 1)
    await world.check.check()
    assert world.deleted == []
    assert len(world.new) == 1
    await trio.sleep(1)
    await world.check.check()
    assert world.deleted == [5]
    assert len(world.new) == 0
    await world.check.check()
    assert world.deleted == [5]


@pytest.mark.slow
async def test_twenty_thousand_strange_ledgers_go_and_one_real_one_stays(
    world: World, autojump_clock: MockClock
) -> None:
    world.new = world.check._new_ledgers = NewLedgers(
        NewLedgersConfig(unconfirmed_max=20_001, per_second_max=100_000, grace_s=GRACE_S), trio.current_time
    )
    await world.create(500)
    world.begin(*range(20_001))
    for _ in range(2):
        await world.check.check()
        await trio.sleep(GRACE_S)
    assert sorted(world.deleted) == sorted({*range(20_001)} - {500})
    assert len(world.new) == 0
    assert world.check.deleted == 20_000 > BATCH_MAX
    assert world.deletions <= 20_000 // BATCH_MAX + 1, "each deletion has syncs of its own"


async def test_a_ledger_that_appears_between_the_looks_stays(world: World, autojump_clock: MockClock) -> None:
    """A store that was restored from a copy may name a ledger to our own bookie, and so on."""
    world.begin(5)
    await world.check.check()
    await world.create(5)
    await trio.sleep(GRACE_S)
    await world.check.check()
    assert (world.deleted, len(world.new)) == ([], 0)


async def test_a_ledger_that_was_created_again_meanwhile_is_another_one(
    world: World, autojump_clock: MockClock
) -> None:
    world.begin(5)
    await world.check.check()
    await trio.sleep(GRACE_S)

    def begin_again() -> None:
        world.new.forget([5])
        world.begin(5)
        world.before_reply = lambda: None

    world.before_reply = begin_again
    # The clock stands still, so the time of its creation is moved by hand.
    world.new._now_s = lambda: trio.current_time() + 0.5
    await world.check.check()
    assert world.deleted == []
    await trio.sleep(1)
    await world.check.check()
    assert world.deleted == [], "it was not found once only"
    await trio.sleep(GRACE_S)
    await world.check.check()
    assert world.deleted == [5]


async def test_a_ledger_that_is_created_again_between_the_looks_needs_two_looks_of_its_own(
    world: World, autojump_clock: MockClock
) -> None:
    world.begin(5)
    await world.check.check()
    await trio.sleep(GRACE_S - 1)
    world.new.forget([5])
    world.begin(5)
    await trio.sleep(1)
    await world.check.check()
    assert (world.deleted, len(world.new)) == ([], 1), "its metadata may be in the store by the next look"
    await trio.sleep(GRACE_S)
    await world.check.check()
    assert world.deleted == [5]


async def test_a_ledger_that_is_created_again_during_its_deletion_is_looked_up_later(
    world: World, autojump_clock: MockClock
) -> None:
    world.begin(5)
    await world.check.check()
    await trio.sleep(GRACE_S)

    def begin_again() -> None:
        world.new.forget([5])
        world.begin(5)
        world.after_deletion = lambda: None

    world.after_deletion = begin_again
    # The clock stands still, so the time of its creation is moved by hand.
    world.new._now_s = lambda: trio.current_time() + 0.5
    await world.check.check()
    assert (world.deleted, len(world.new)) == ([5], 1)
    await world.check.check()
    await trio.sleep(GRACE_S)
    await world.check.check()
    assert (world.deleted, len(world.new)) == ([5, 5], 0), "it is of no other client either"


@pytest.mark.parametrize("change", ["instance", "cookie", "layout"])
async def test_in_another_cluster_nothing_is_deleted(
    world: World, autojump_clock: MockClock, change: str
) -> None:
    world.begin(5)
    await world.check.check()
    await trio.sleep(GRACE_S)
    if change == "instance":
        await world.store.create("/ledgers/INSTANCEID", b"formatted")
    else:
        await world.store.delete("/ledgers/cookies/b" if change == "cookie" else "/ledgers/LAYOUT")
    with pytest.raises(ClusterChangedError):
        await world.check.check()
    assert world.deleted == []


async def test_a_cluster_that_changes_during_the_look_deletes_nothing(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.begin(5)
    await world.check.check()
    await trio.sleep(GRACE_S)
    exists = world.store.exists

    async def exists_and_format(path: str, **more: object) -> object:
        await world.store.delete("/ledgers/cookies/b")
        return await exists(path)

    monkeypatch.setattr(world.store, "exists", exists_and_format)
    with pytest.raises(ClusterChangedError):
        await world.check.check()
    assert world.deleted == []


async def test_the_loop_goes_on_after_the_store_failed_and_ends_with_the_storage(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    new = NewLedgers(NewLedgersConfig(), trio.current_time)
    new.admit(5)
    looks = 0

    async def find(ledger_ids: Iterable[int]) -> Collection[int]:
        nonlocal looks
        looks += 1
        if looks <= 3:
            raise ConnectionLostError("gone")
        return ()

    async def delete(ledger_ids: Sequence[int]) -> None:
        raise StorageFailedError("disk")

    await NewLedgerCheck(new, find, delete).run()
    assert looks == 5
    assert trio.current_time() >= 60 + 3 * INTERVAL_S
    assert caplog.text.count("cannot be confirmed") == 1
    assert len(new) == 1


@pytest.mark.parametrize("fault", [KeyError("a fault"), RecursionError(), LedgerMetadataError("an odd id")])
async def test_an_unexpected_error_costs_one_round(
    world: World, nursery: trio.Nursery, autojump_clock: MockClock, fault: Exception
) -> None:
    calls, before = 0, contained_failures["check of new ledgers"]

    async def find(ledger_ids: Iterable[int]) -> Collection[int]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise fault
        return list(ledger_ids)

    world.begin(7)
    nursery.start_soon(NewLedgerCheck(world.new, find, world.delete).run)
    await trio.sleep(2.5 * INTERVAL_S)
    assert calls == 2
    assert contained_failures["check of new ledgers"] == before + 1
    assert len(world.new) == 0
    nursery.cancel_scope.cancel()
