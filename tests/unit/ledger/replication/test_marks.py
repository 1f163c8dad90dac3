"""Marks and locks of under-replicated ledgers, in a metadata store in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from ledger.catalog.paths import underreplicated_lock_path, underreplicated_path
from ledger.catalog.replication_nodes import Mark, decode_mark
from ledger.errors import MetadataFormatError
from ledger.metadata_store.errors import ConnectionLostError
from ledger.metadata_store.memory import MemoryStore, MemoryTree, open_memory_store
from ledger.replication.marks import RecoveryDelay, RegularCheck, UnderReplicatedLedgers
from tests.fakes.dict_bookies import ENDS_WITHIN_S


class LossyStore(MemoryStore):
    """A session that can lose the reply to a creation or a deletion."""

    loses_reply_to = ""  # the beginning of the path
    refuses_deletes = 0  # the next ones are lost before they are carried out

    async def create(self, path: str, value: bytes = b"", **options: bool) -> str:
        made = await super().create(path, value, **options)
        self._lose(path)
        return made

    async def delete(self, path: str, *, expected: int = -1) -> None:
        if self.refuses_deletes:
            self.refuses_deletes -= 1
            await trio.lowlevel.checkpoint()
            raise ConnectionLostError(path)
        await super().delete(path, expected=expected)
        self._lose(path)

    def _lose(self, path: str) -> None:
        if self.loses_reply_to and path.startswith(self.loses_reply_to):
            self.loses_reply_to = ""
            raise ConnectionLostError(path)


@pytest.fixture
def tree() -> MemoryTree:
    return MemoryTree()


@pytest.fixture
async def store(tree: MemoryTree) -> AsyncIterator[LossyStore]:
    session = LossyStore(tree)
    yield session
    await session.aclose()


async def fired(watch: trio.Event) -> None:
    """Wait for a watch; a call that never leads to it fails the test."""
    with trio.fail_after(ENDS_WITHIN_S):
        await watch.wait()


@pytest.fixture
async def marks(store: LossyStore) -> UnderReplicatedLedgers:
    marks = UnderReplicatedLedgers(store, "/ledgers", host_name="w1", wall_ms=lambda: 1_700_000_000_000)
    await marks.prepare()
    return marks


async def test_a_mark_has_the_path_and_the_text_of_apache(
    marks: UnderReplicatedLedgers, store: LossyStore
) -> None:
    await marks.mark(12345, ["bk2.example.com:3181"])
    node = await store.get("/ledgers/underreplication/ledgers/0000/0000/0000/3039/urL0000012345")
    assert node.value == b'replica: "bk2.example.com:3181"\nctime: 1700000000000\n'
    layout = await store.get("/ledgers/underreplication/LAYOUT")
    assert layout.value == b'type: "BASIC"\nversion: 1\n'


async def test_marks_of_one_ledger_are_merged_and_repeated_ones_write_nothing(
    marks: UnderReplicatedLedgers, store: LossyStore
) -> None:
    for lost in (["a"], ["a"], ["b", "a"], ["b"]):
        await marks.mark(7, lost)
    node = await store.get(underreplicated_path("/ledgers", 7))
    assert decode_mark(node.value).replicas == ("a", "b")
    assert node.stat.version == 1
    assert await marks.get(8) is None
    await marks.mark(2**33 + 7, ["c"])
    assert [(one.ledger_id, one.mark.replicas) for one in await marks.marked()] == [
        (7, ("a", "b")),
        (2**33 + 7, ("c",)),
    ]


async def test_a_taken_ledger_is_not_taken_twice(marks: UnderReplicatedLedgers, store: LossyStore) -> None:
    await marks.mark(7, ["a"])
    taken = await marks.take()
    assert taken is not None
    assert (taken.ledger_id, taken.mark_version) == (7, 0)
    lock = await store.get("/ledgers/underreplication/locks/urL0000000007")
    assert lock.value == b'bookieId: "w1"\n'
    assert lock.stat.ephemeral_owner == store.session_id
    assert await marks.take() is None
    assert await marks.take_unmarked(7) is None
    await marks.release(taken)
    assert (await marks.take_unmarked(7)) == taken


async def test_a_ledger_whose_lock_an_operator_deleted_is_not_taken_twice(
    marks: UnderReplicatedLedgers, store: LossyStore
) -> None:
    await marks.mark(7, ["a"])
    assert await marks.take() is not None
    await store.delete(marks.lock_path(7))
    assert await marks.take() is None


async def test_another_session_takes_other_ledgers(
    marks: UnderReplicatedLedgers, store: LossyStore, tree: MemoryTree
) -> None:
    await marks.mark(7, ["a"])
    await marks.mark(8, ["a"])
    async with open_memory_store(tree) as second:
        others = UnderReplicatedLedgers(second, "/ledgers")
        taken, other = await marks.take(), await others.take()
        assert taken is not None
        assert other is not None
        assert {taken.ledger_id, other.ledger_id} == {7, 8}
        assert await others.take() is None
    # The lock ended with its session.
    assert await marks.take() == other


async def test_a_completed_mark_is_deleted_with_its_empty_parents(
    marks: UnderReplicatedLedgers, store: LossyStore
) -> None:
    await marks.mark(7, ["a"])
    await marks.mark(8, ["a"])
    for _ in range(2):
        taken = await marks.take()
        assert taken is not None
        await marks.complete(taken)
        await marks.release(taken)
    assert await marks.marked() == []
    assert (await store.children("/ledgers/underreplication/ledgers")).names == ()
    assert (await store.children("/ledgers/underreplication/locks")).names == ()


async def test_a_mark_that_changed_during_the_work_survives(marks: UnderReplicatedLedgers) -> None:
    await marks.mark(7, ["a"])
    taken = await marks.take()
    assert taken is not None
    await marks.mark(7, ["b"])
    await marks.complete(taken)
    assert await marks.get(7) == Mark(("a", "b"), 1_700_000_000_000)


async def test_a_lock_whose_reply_was_lost_is_taken_over(
    marks: UnderReplicatedLedgers, store: LossyStore
) -> None:
    await marks.mark(7, ["a"])
    store.loses_reply_to = underreplicated_lock_path("/ledgers", 7)
    with pytest.raises(ConnectionLostError):
        await marks.take()
    taken = await marks.take()
    assert taken is not None
    assert taken.ledger_id == 7


async def test_a_lock_is_released_although_the_reply_is_lost(
    marks: UnderReplicatedLedgers, store: LossyStore, autojump_clock: trio.testing.MockClock
) -> None:
    await marks.mark(7, ["a"])
    taken = await marks.take()
    assert taken is not None
    store.loses_reply_to = underreplicated_lock_path("/ledgers", 7)
    await marks.release(taken)
    assert await marks.take() == taken


async def test_an_idle_worker_is_woken_by_a_mark(marks: UnderReplicatedLedgers) -> None:
    await marks.mark(7, ["a"])
    taken = await marks.take()
    assert taken is not None
    watch = trio.Event()
    assert await marks.take(watch) is None
    await marks.mark(7 + 2**40, ["a"])
    await fired(watch)
    watch = trio.Event()
    other = await marks.take(watch)
    assert other is not None
    assert await marks.take(watch) is None
    await marks.release(taken)
    await fired(watch)


async def test_the_switch_is_an_empty_node(marks: UnderReplicatedLedgers, store: LossyStore) -> None:
    assert await marks.is_enabled()
    assert not await marks.switch(on=True)
    assert await marks.switch(on=False)
    assert not await marks.switch(on=False)
    assert (await store.get("/ledgers/underreplication/disable")).value == b""
    with trio.fail_after(ENDS_WITHIN_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(marks.wait_enabled)
            assert not await marks.is_enabled()
            assert await marks.switch(on=True)


async def test_each_write_of_the_delay_has_another_version(
    marks: UnderReplicatedLedgers, store: LossyStore
) -> None:
    watch = trio.Event()
    assert await marks.recovery_delay(watch) == RecoveryDelay(0, None)
    await marks.init_recovery_delay(30)
    await fired(watch)
    await marks.init_recovery_delay(60)
    assert await marks.recovery_delay() == RecoveryDelay(30, 0)
    await marks.set_recovery_delay(30)
    assert await marks.recovery_delay() == RecoveryDelay(30, 1)
    assert (await store.get("/ledgers/underreplication/lostBookieRecoveryDelay")).value == b"30"


async def test_the_time_of_the_last_check_is_stored(marks: UnderReplicatedLedgers, store: LossyStore) -> None:
    assert await marks.checked_ms(RegularCheck.READS) is None
    await marks.set_checked(RegularCheck.READS)
    await marks.set_checked(RegularCheck.READS)
    assert await marks.checked_ms(RegularCheck.READS) == 1_700_000_000_000
    node = await store.get("/ledgers/underreplication/checkallledgersctime")
    assert node.value.hex() == "0880d095ffbc31"


async def test_a_tree_of_another_layout_is_left_alone(store: LossyStore) -> None:
    await store.create("/ledgers/underreplication/LAYOUT", b'type: "NEW"\nversion: 2\n', parents=True)
    with pytest.raises(MetadataFormatError):
        await UnderReplicatedLedgers(store, "/ledgers").prepare()
    assert (await store.children("/ledgers/underreplication")).names == ("LAYOUT",)


async def test_a_lock_is_not_taken_while_it_is_being_released(
    marks: UnderReplicatedLedgers, store: LossyStore, tree: MemoryTree, autojump_clock: MockClock
) -> None:
    await marks.mark(7, ["a"])
    taken = await marks.take()
    assert taken is not None
    async with open_memory_store(tree) as second, trio.open_nursery() as nursery:
        others = UnderReplicatedLedgers(second, "/ledgers")
        store.refuses_deletes = 1
        nursery.start_soon(marks.release, taken)
        await trio.testing.wait_all_tasks_blocked()
        watch = trio.Event()
        assert await marks.take(watch) is None  # it would work on while the release deletes its lock
        with trio.fail_after(ENDS_WITHIN_S):
            await watch.wait()
        assert await others.take() is not None


async def test_a_release_leaves_the_lock_of_another_program(
    marks: UnderReplicatedLedgers, store: LossyStore, tree: MemoryTree, autojump_clock: MockClock
) -> None:
    await marks.mark(7, ["a"])
    taken = await marks.take()
    assert taken is not None
    async with open_memory_store(tree) as second:
        store.loses_reply_to = marks.lock_path(7)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(marks.release, taken)
            await trio.testing.wait_all_tasks_blocked()  # the lock is gone, and the release tries again
            assert await UnderReplicatedLedgers(second, "/ledgers").take() is not None
        assert (await store.get(marks.lock_path(7))).stat.ephemeral_owner == second.session_id
