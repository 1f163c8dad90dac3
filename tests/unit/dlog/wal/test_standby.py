"""A second process with the state of a service: what it has, what it lacks, and its taking over."""

# covers: dlog/wal/applied_state.py

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

import dlog
from dlog.wal import (
    ApplyError,
    OperationsMissingError,
    ReplayError,
    WalStandby,
    WalStoppedError,
    follow_wal,
    open_wal,
)
from dlog.wal import standby as standby_module
from dlog.wal.applied_state import operations_log
from tests.unit.dlog.wal.test_write_ahead_log import State

pytestmark = pytest.mark.slow
LIMIT_S = 60  # a generous one: what it catches would wait for ever


class Follower(State):
    """The state of a standby."""

    def follow(
        self, namespace: dlog.Namespace, **options: Any
    ) -> AbstractAsyncContextManager[WalStandby[int]]:
        return follow_wal(
            namespace, apply=self.apply, snapshot=self.dump, restore=self.restore, name="w", **options
        )


@pytest.fixture
async def namespace(tmp_path: Path) -> AsyncIterator[dlog.Namespace]:
    with trio.fail_after(LIMIT_S):
        async with dlog.open_namespace(tmp_path.as_uri()) as opened:
            yield opened


async def test_a_standby_has_each_operation_that_the_owner_appends(namespace: dlog.Namespace) -> None:
    owner, follower = State(), Follower()
    async with owner.open(namespace) as wal, follower.follow(namespace) as standby:
        for number in range(5):
            await wal.append(b"%d" % number)
        await standby.wait_index(5)
        assert follower.lines == owner.lines
        assert (standby.index, await standby.lag(), standby.failure) == (5, 0, None)
        assert repr(standby) == "<WalStandby 'w': following, 5 operations>"


async def test_a_standby_may_begin_before_the_log_is_there(
    namespace: dlog.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby_module, "PAUSE_S", 0.01)
    follower = Follower()
    async with follower.follow(namespace) as standby:
        await trio.testing.wait_all_tasks_blocked()
        assert (standby.index, await standby.lag()) == (0, 0)
        async with State().open(namespace) as wal:
            await wal.append(b"0")
            await standby.wait_index(1)
    assert follower.lines == [b"0"]


@asynccontextmanager
async def held_before_reading(
    namespace: dlog.Namespace, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[trio.Event, trio.Event]]:
    """An event when the first reader of the operations is about to be opened, and one that lets it go on."""
    opens, may_open = trio.Event(), trio.Event()
    open_reader = type(namespace).open_reader

    @asynccontextmanager
    async def held(self: dlog.Namespace, name: str, **options: Any) -> AsyncIterator[dlog.LogReader]:
        if name == operations_log("w") and not opens.is_set():
            opens.set()
            await may_open.wait()
        async with open_reader(self, name, **options) as reader:
            yield reader

    with monkeypatch.context() as patched:
        patched.setattr(type(namespace), "open_reader", held)
        yield opens, may_open


async def test_it_says_how_many_operations_it_lacks(
    namespace: dlog.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    await namespace.create_log(operations_log("w"))
    async with (
        held_before_reading(namespace, monkeypatch) as (opens, may_open),
        Follower().follow(namespace) as standby,
    ):
        await opens.wait()
        async with State().open(namespace) as wal:
            for number in range(3):
                await wal.append(b"%d" % number)
        assert await standby.lag() == 3
        may_open.set()
        await standby.wait_index(3)
        assert await standby.lag() == 0


async def test_what_was_truncated_while_it_was_late_comes_from_the_newest_snapshot(
    namespace: dlog.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = Follower()
    async with State().open(namespace) as wal:
        await wal.append(b"0")
    async with (
        held_before_reading(namespace, monkeypatch) as (opens, may_open),
        follower.follow(namespace) as standby,
    ):
        await opens.wait()  # it has found no snapshot
        owner = State()
        async with owner.open(namespace) as wal:
            await wal.append(b"1")
            assert await wal.snapshot()
            await wal.append(b"2")
            may_open.set()
            await standby.wait_index(3)
        assert follower.lines == owner.lines
        assert follower.restored == [2]


async def test_a_snapshot_that_has_less_than_the_state_is_not_restored(namespace: dlog.Namespace) -> None:
    follower = Follower()
    async with follower.follow(namespace) as standby:
        async with State().open(namespace) as wal:
            for number in range(4):
                await wal.append(b"%d" % number)
                assert number != 1 or await wal.snapshot()
            await standby.wait_index(4)
        async with standby.take_over() as wal:
            assert (wal.index, wal.snapshot_index) == (4, 2)
            assert await wal.append(b"4") == 5
    assert follower.lines == [b"0", b"1", b"2", b"3", b"4"]
    assert follower.restored == []


async def test_operations_that_are_missing_stop_it_with_the_reason(namespace: dlog.Namespace) -> None:
    async with State().open(namespace) as wal:
        await wal.append(b"0")
    async with State().open(namespace) as wal:
        await wal.append(b"1")
        last = await namespace.last_dlsn(operations_log("w"))
        assert last is not None
        await namespace.truncate_log(operations_log("w"), last)
        async with Follower().follow(namespace) as standby:
            with pytest.raises(WalStoppedError, match="operations 1 to 1 are missing"):
                await standby.wait_index(2)
            assert isinstance(standby.failure, OperationsMissingError)
            assert standby.index == 0
            for call in (standby.lag, standby.take_over().__aenter__):
                with pytest.raises(WalStoppedError, match="operations 1 to 1 are missing"):
                    await call()


async def test_an_operation_that_fails_stops_it(namespace: dlog.Namespace) -> None:
    async with follow_wal(namespace, apply=State().apply) as standby:
        async with open_wal(namespace, apply=len) as wal:
            await wal.append(b"bad")
            with pytest.raises(WalStoppedError, match="bad operation"):
                await standby.wait_index(1)
        assert isinstance(standby.failure, ApplyError)


async def test_a_restore_that_fails_stops_it(namespace: dlog.Namespace) -> None:
    def restore(dump: bytes) -> None:
        raise ValueError("bad dump")

    async with State().open(namespace) as wal:
        await wal.append(b"0")
        assert await wal.snapshot()
    async with follow_wal(namespace, apply=len, snapshot=bytes, restore=restore, name="w") as standby:
        with pytest.raises(WalStoppedError, match="bad dump"):
            await standby.wait_index(1)
        assert isinstance(standby.failure, ValueError)


async def make_again(namespace: dlog.Namespace) -> None:
    """Delete the operations, and let a service write others, as many and one more."""
    await namespace.delete_log(operations_log("w"))
    async with open_wal(namespace, apply=len, name="w") as wal:
        for _ in range(3):
            await wal.append(b"of another log")


async def test_a_log_that_was_deleted_and_made_again_is_not_taken_for_the_one_before(
    namespace: dlog.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_reader = type(namespace).open_reader
    stalls = 0

    class Stalling:
        """A reader that stalls once it has returned two records, and the log is another one then."""

        def __init__(self, reader: dlog.LogReader) -> None:
            self._reader, self._count = reader, 0

        async def read_batch(self, records_max: int) -> Any:
            if self._count == 2:
                await make_again(namespace)
                raise dlog.LogReaderStalledError(operations_log("w"), None, 60, "no bookie answers")
            batch = await self._reader.read_batch(records_max)
            self._count += len(batch or ())
            return batch

    @asynccontextmanager
    async def stalling_reader(self: dlog.Namespace, name: str, **options: Any) -> AsyncIterator[Any]:
        nonlocal stalls
        async with open_reader(self, name, **options) as reader:
            stalls += name == operations_log("w")
            yield Stalling(reader) if stalls == 1 and name == operations_log("w") else reader

    monkeypatch.setattr(standby_module, "PAUSE_S", 0.01)
    async with State().open(namespace) as wal:
        await wal.append(b"0")
        await wal.append(b"1")
    monkeypatch.setattr(type(namespace), "open_reader", stalling_reader)
    follower = Follower()
    async with follower.follow(namespace) as standby:
        with pytest.raises(WalStoppedError, match="deleted and created again"):
            await standby.wait_index(3)
    assert follower.lines == [b"0", b"1"]


async def test_so_it_is_when_it_takes_over(
    namespace: dlog.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = Follower()
    async with State().open(namespace) as wal:
        await wal.append(b"0")
        await wal.append(b"1")
    async with follower.follow(namespace) as standby:
        await standby.wait_index(2)
        standby._scope.cancel()  # as if what follows came between its last look and the lock
        await standby._has_ended.wait()
        await make_again(namespace)
        monkeypatch.setattr(standby, "_check_following", lambda: None)
        with pytest.raises(ReplayError, match="deleted and created again"):
            async with standby.take_over():
                raise AssertionError("not reached")
    assert follower.lines == [b"0", b"1"]


async def test_a_snapshot_without_restore_stops_it(namespace: dlog.Namespace) -> None:
    async with State().open(namespace) as wal:
        await wal.append(b"0")
        assert await wal.snapshot()
        async with follow_wal(namespace, apply=len, name="w") as standby:
            with pytest.raises(WalStoppedError, match="restore= is missing"):
                await standby.wait_index(1)
            assert isinstance(standby.failure, ReplayError)


async def test_it_takes_over_when_the_owner_ends_and_goes_on_with_the_state(
    namespace: dlog.Namespace, nursery: trio.Nursery
) -> None:
    follower, took = Follower(), trio.Event()

    async def take_over(standby: WalStandby[int]) -> None:
        async with standby.take_over() as log:
            assert (log.index, follower.lines) == (3, [b"0", b"1", b"2"])
            assert await log.append(b"3") == 4
            assert await log.snapshot()
            took.set()

    async with follower.follow(namespace) as standby:
        async with State().open(namespace) as wal:
            nursery.start_soon(take_over, standby)
            for number in range(3):
                await wal.append(b"%d" % number)
            await standby.wait_index(3)  # it follows while it waits for the lock
            assert not took.is_set()
        await took.wait()
        with pytest.raises(WalStoppedError, match="has taken over"):
            await standby.wait_index(9)
        with pytest.raises(WalStoppedError, match="has taken over"):
            async with standby.take_over():
                raise AssertionError("not reached")
    again = State()
    async with again.open(namespace):
        assert again.lines == follower.lines
    assert again.restored == [4]


async def test_it_applies_what_it_lacks_before_it_owns_the_state(
    namespace: dlog.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = Follower()
    await namespace.create_log(operations_log("w"))
    async with (
        held_before_reading(namespace, monkeypatch) as (opens, _),
        follower.follow(namespace) as standby,
    ):
        await opens.wait()
        async with State().open(namespace) as wal:
            for number in range(3):
                await wal.append(b"%d" % number)
        assert standby.index == 0
        async with standby.take_over() as log:
            assert log.index == 3
    assert follower.lines == [b"0", b"1", b"2"]


async def test_a_wait_for_the_owner_that_ends_early_leaves_it_following(namespace: dlog.Namespace) -> None:
    follower = Follower()
    async with State().open(namespace) as wal, follower.follow(namespace) as standby:
        with pytest.raises(dlog.LogLockedError):
            async with standby.take_over(lock_timeout_s=0):
                raise AssertionError("not reached")
        with trio.move_on_after(0.01) as scope:
            async with standby.take_over():
                raise AssertionError("not reached")
        assert scope.cancelled_caught
        await wal.append(b"0")
        await standby.wait_index(1)


async def test_it_has_stopped_following_before_it_reads_as_the_owner(
    namespace: dlog.Namespace, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    closes, may_close, owns = trio.Event(), trio.Event(), trio.Event()
    open_reader = type(namespace).open_reader

    @asynccontextmanager
    async def slow_to_close(self: dlog.Namespace, name: str, **options: Any) -> AsyncIterator[dlog.LogReader]:
        async with open_reader(self, name, **options) as reader:
            try:
                yield reader
            finally:
                if options.get("follow", True):
                    closes.set()
                    with trio.CancelScope(shield=True):
                        await may_close.wait()

    async def take_over(standby: WalStandby[int]) -> None:
        async with standby.take_over():
            owns.set()

    async with State().open(namespace) as wal:
        await wal.append(b"0")
    monkeypatch.setattr(type(namespace), "open_reader", slow_to_close)
    async with Follower().follow(namespace) as standby:
        await standby.wait_index(1)
        nursery.start_soon(take_over, standby)
        await closes.wait()
        with trio.move_on_after(0.1):
            await owns.wait()
        owns_too_early = owns.is_set()
        may_close.set()
        await owns.wait()
    assert not owns_too_early


async def test_what_stops_it_while_it_waits_for_the_owner_ends_the_wait_with_the_reason(
    namespace: dlog.Namespace,
) -> None:
    async def take_over() -> None:
        with pytest.raises(WalStoppedError, match="bad operation"):
            async with standby.take_over():
                raise AssertionError("not reached")

    async with (
        follow_wal(namespace, apply=State().apply) as standby,
        trio.open_nursery() as nursery,
        open_wal(namespace, apply=len) as wal,
    ):
        nursery.start_soon(take_over)
        await trio.testing.wait_all_tasks_blocked()
        await wal.append(b"bad")
        with pytest.raises(WalStoppedError):
            await standby.wait_index(1)


async def test_it_goes_on_after_the_cluster_was_away(
    namespace: dlog.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    stalled = trio.Event()
    open_reader = type(namespace).open_reader

    @asynccontextmanager
    async def away_once(self: dlog.Namespace, name: str, **options: Any) -> AsyncIterator[dlog.LogReader]:
        async with open_reader(self, name, **options) as reader:
            if name == operations_log("w") and not stalled.is_set():
                stalled.set()
                raise dlog.LogReaderStalledError(name, None, 60, "no bookie answers")
            yield reader

    monkeypatch.setattr(standby_module, "PAUSE_S", 0.01)
    async with State().open(namespace) as wal:
        await wal.append(b"0")
    monkeypatch.setattr(type(namespace), "open_reader", away_once)
    async with Follower().follow(namespace) as standby:
        await standby.wait_index(1)
        assert stalled.is_set()


async def test_half_of_a_snapshot_is_refused(namespace: dlog.Namespace) -> None:
    with pytest.raises(ValueError, match="restore="):
        follow_wal(namespace, apply=len, snapshot=bytes)
    with pytest.raises(ValueError, match="at least 1"):
        follow_wal(namespace, apply=len, operations_between_snapshots=0)
