"""A state behind a write-ahead log: what is applied, when, and what a restart finds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

import dlog
from dlog.wal import (
    ApplyError,
    OperationConflictError,
    OperationsMissingError,
    ReplayError,
    WalStoppedError,
    WriteAheadLog,
    open_wal,
    snapshots,
)
from dlog.wal.applied_state import operations_log, snapshots_log
from dlog.wal.snapshot_format import StateSnapshot, encode
from namespace.segments.segment import TruncationStatus

pytestmark = pytest.mark.slow


class State:
    """A list of applied operations, that is dumped and restored as lines."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.restored: list[int] = []

    def apply(self, operation: bytes) -> int:
        if operation == b"bad":
            raise ValueError("bad operation")
        self.lines.append(operation)
        return len(self.lines)

    def dump(self) -> bytes:
        return b"\n".join(self.lines)

    def restore(self, dump: bytes) -> None:
        self.lines = dump.split(b"\n")
        self.restored.append(len(self.lines))

    def open(
        self, namespace: dlog.Namespace, **options: Any
    ) -> AbstractAsyncContextManager[WriteAheadLog[int]]:
        return open_wal(
            namespace, apply=self.apply, snapshot=self.dump, restore=self.restore, name="w", **options
        )


@pytest.fixture
async def namespace(tmp_path: Path) -> AsyncIterator[dlog.Namespace]:
    async with dlog.open_namespace(tmp_path.as_uri()) as opened:
        yield opened


async def test_a_restart_finds_each_acknowledged_operation_once(namespace: dlog.Namespace) -> None:
    first = State()
    async with first.open(namespace) as wal:
        assert [await wal.append(b"%d" % number) for number in range(3)] == [1, 2, 3]
        assert (wal.index, wal.snapshot_index) == (3, 0)
    second = State()
    async with second.open(namespace) as wal:
        assert second.lines == first.lines == [b"0", b"1", b"2"]
        assert await wal.append(bytearray(b"3")) == 4
    third = State()
    async with third.open(namespace):
        assert third.lines == [b"0", b"1", b"2", b"3"]


async def test_a_snapshot_that_is_due_after_a_replay_is_taken(namespace: dlog.Namespace) -> None:
    async with open_wal(namespace, apply=len, name="w") as wal:
        for number in range(3):
            await wal.append(b"%d" % number)
    state, dumped = State(), trio.Event()

    def dump() -> bytes:
        dumped.set()
        return state.dump()

    with trio.fail_after(60):
        async with open_wal(
            namespace,
            apply=state.apply,
            snapshot=dump,
            restore=state.restore,
            name="w",
            operations_between_snapshots=3,
        ):
            await dumped.wait()


async def test_concurrent_operations_are_applied_in_the_order_of_the_log(namespace: dlog.Namespace) -> None:
    state = State()
    results: dict[bytes, int] = {}

    async def append(wal: WriteAheadLog[int], task: int) -> None:
        for number in range(10):
            operation = b"%d/%d" % (task, number)
            results[operation] = await wal.append(operation)

    async with state.open(namespace) as wal, trio.open_nursery() as nursery:
        for task in range(20):
            nursery.start_soon(append, wal, task)
            await trio.testing.wait_all_tasks_blocked()  # so that several entries are in flight
    assert [results[line] for line in state.lines] == list(range(1, 201))
    again = State()
    async with again.open(namespace):
        assert again.lines == state.lines


async def test_a_snapshot_shortens_the_replay_and_frees_the_operations(namespace: dlog.Namespace) -> None:
    async with State().open(namespace) as wal:
        for number in range(5):
            await wal.append(b"%d" % number)
    state = State()
    async with state.open(namespace) as wal:
        await wal.append(b"5")
        assert await wal.snapshot()
        assert wal.snapshot_index == 6
        assert not await wal.snapshot(), "nothing is new"
        await wal.append(b"6")
    left = [
        each
        for each in await namespace.segments(operations_log("w"))
        if each.truncation is not TruncationStatus.TRUNCATED
    ]
    assert [each.first_txid for each in left] == [6]
    fresh = State()
    async with fresh.open(namespace) as wal:
        assert fresh.restored == [6]
        assert fresh.lines == state.lines
        assert wal.index == 7
        await wal.append(b"7")
        assert await wal.snapshot()


async def test_snapshots_are_taken_in_the_background(namespace: dlog.Namespace) -> None:
    state = State()
    async with state.open(namespace, operations_between_snapshots=10) as wal:
        with trio.fail_after(120):
            for number in range(500):
                await wal.append(b"%d" % number)
                if wal.snapshot_index >= 20:
                    break
    fresh = State()
    async with fresh.open(namespace):
        assert fresh.lines == state.lines
        assert fresh.restored
        assert fresh.restored[0] >= 20


async def test_an_operation_with_its_index_is_logged_once(namespace: dlog.Namespace) -> None:
    state = State()
    async with state.open(namespace) as wal:
        assert await wal.append(b"a", index=1) == 1
    async with State().open(namespace) as wal:
        with pytest.raises(OperationConflictError, match="the next is 2; nothing was written") as caught:
            await wal.append(b"a", index=1)
        assert (caught.value.index, caught.value.next_index) == (1, 2)
        with pytest.raises(OperationConflictError):
            await wal.append(b"c", index=3)
        await wal.append(b"b", index=2)
    fresh = State()
    async with fresh.open(namespace):
        assert fresh.lines == [b"a", b"b"]


async def test_a_cancelled_append_that_is_logged_is_applied_too(namespace: dlog.Namespace) -> None:
    state = State()
    async with state.open(namespace) as wal:
        with trio.CancelScope() as scope:
            scope.cancel()
            await wal.append(b"cancelled")
        assert scope.cancelled_caught
        assert await wal.append(b"next") == 2
        assert state.lines == [b"cancelled", b"next"]
        with trio.CancelScope() as scope:
            scope.cancel()
            await wal.append(b"last")
    assert state.lines == [b"cancelled", b"next", b"last"], "closing the log applies what it wrote"
    fresh = State()
    async with fresh.open(namespace):
        assert fresh.lines == state.lines


async def test_an_operation_that_cannot_be_applied_stops_the_log(namespace: dlog.Namespace) -> None:
    state = State()
    async with state.open(namespace) as wal:
        await wal.append(b"good")
        with pytest.raises(ApplyError, match="for operation 2, which is in the log") as caught:
            await wal.append(b"bad")
        assert isinstance(caught.value.__cause__, ValueError)
        with pytest.raises(ApplyError):
            await wal.append(b"later")
        with pytest.raises(ApplyError):
            await wal.snapshot()
    with pytest.raises(ApplyError, match="operation 2"):
        async with State().open(namespace):
            pass
    assert state.lines == [b"good"]


async def test_a_service_that_lost_its_log_is_stopped(namespace: dlog.Namespace, tmp_path: Path) -> None:
    old, new = State(), State()
    async with old.open(namespace) as wal:
        await wal.append(b"old")
        locks = f"/dlog/{operations_log('w')}/<default>/lock"
        for lock in (await namespace.context.store.children(locks)).names:
            await namespace.context.store.delete(f"{locks}/{lock}")
        async with dlog.open_namespace(tmp_path.as_uri()) as other, new.open(other) as taken:
            await taken.append(b"new")
            with pytest.raises(dlog.WriteError):
                await wal.append(b"too late")
            with pytest.raises(WalStoppedError, match="open it again") as caught:
                await wal.append(b"too late")
            assert isinstance(wal.failure, dlog.WriteError)
            assert str(wal.failure) in str(caught.value)
            assert caught.value.__cause__ is None  # a traceback shows the message once
            await taken.append(b"newer")
    assert new.lines == [b"old", b"new", b"newer"]
    assert old.lines == [b"old"]


async def test_a_snapshot_of_a_service_that_lost_its_log_harms_nothing(namespace: dlog.Namespace) -> None:
    state = State()
    async with state.open(namespace) as wal:
        await wal.append(b"1")
        later = StateSnapshot(2, dlog.DLSN(9, 9, 9), b"later")
        assert await snapshots.write(namespace, snapshots_log("w"), later)
        with pytest.raises(WalStoppedError, match="another service has taken it over"):
            await wal.snapshot()
        assert await snapshots.read_last(namespace, snapshots_log("w")) == later


async def test_operations_stay_until_their_snapshot_is_complete(
    namespace: dlog.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The power fails at each step of a snapshot, seen as an error of that step."""
    parts = 0
    whole = encode

    def cut(snapshot: StateSnapshot) -> Any:
        for number, payload in enumerate(whole(snapshot)):
            if number == parts:
                raise dlog.LogUnavailableError("the power is out")
            yield payload

    monkeypatch.setattr(snapshots, "encode", cut)
    for parts in range(3):
        state = State()
        async with state.open(namespace) as wal:
            await wal.append(b"%d" % parts)
            with pytest.raises(dlog.LogUnavailableError):
                await wal.snapshot()
        state = State()
        async with state.open(namespace):
            assert state.restored == []
            assert state.lines == [b"%d" % number for number in range(parts + 1)]


async def test_the_snapshot_of_the_service_before_may_come_late(namespace: dlog.Namespace) -> None:
    """The service before truncates the operations while this one opens, after its snapshot is complete."""
    old = State()
    for number in range(3):
        async with State().open(namespace) as wal:
            await wal.append(b"%d" % number)
    async with old.open(namespace):
        pass
    late = StateSnapshot(3, await last(namespace), old.dump())
    fresh = State()
    real = snapshots.read_last
    calls = 0

    async def slow_read(namespace: dlog.Namespace, log: str) -> StateSnapshot | None:
        nonlocal calls
        calls += 1
        found = await real(namespace, log)
        if calls == 1:
            assert found is None
            await snapshots.write(namespace, log, late)
            await namespace.truncate_log(operations_log("w"), late.dlsn)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshots, "read_last", slow_read)
        async with fresh.open(namespace) as wal:
            assert calls == 2
            assert fresh.lines == old.lines
            assert await wal.append(b"3") == 4


async def last(namespace: dlog.Namespace) -> dlog.DLSN:
    found = await namespace.last_dlsn(operations_log("w"))
    assert found is not None
    return found


async def test_missing_operations_are_an_error_and_change_nothing(namespace: dlog.Namespace) -> None:
    async with State().open(namespace) as wal:
        await wal.append(b"1")
    async with State().open(namespace) as wal:
        await wal.append(b"2")
    await namespace.truncate_log(operations_log("w"), await last(namespace))
    with pytest.raises(OperationsMissingError, match="operations 1 to 1 are missing"):
        async with State().open(namespace):
            pass


async def test_an_end_that_cannot_be_seen_is_an_error(
    namespace: dlog.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with State().open(namespace) as wal:
        await wal.append(b"1")
        await wal.append(b"2")
    whole = namespace.open_reader

    def cut(name: str, **options: Any) -> AbstractAsyncContextManager[dlog.LogReader]:
        return whole(name, end=dlog.DLSN(1, 0, 0), **options)

    monkeypatch.setattr(namespace, "open_reader", cut)
    with pytest.raises(OperationsMissingError, match="operations 2 to 2 are missing"):
        async with State().open(namespace):
            pass


async def test_operations_are_not_applied_again_when_a_replay_is_repeated(
    namespace: dlog.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first replay sees less than there is. A second one would apply what it saw once more."""
    async with State().open(namespace) as wal:
        await wal.append(b"1")
        await wal.append(b"2")
    whole = namespace.open_reader
    ends = [dlog.DLSN(1, 0, 0)]

    def cut_once(name: str, **options: Any) -> AbstractAsyncContextManager[dlog.LogReader]:
        if name == operations_log("w") and ends:
            return whole(name, end=ends.pop(), **options)
        return whole(name, **options)

    monkeypatch.setattr(namespace, "open_reader", cut_once)
    state = State()
    with pytest.raises(OperationsMissingError):
        async with state.open(namespace):
            pass
    assert state.lines == [b"1"]
    fresh = State()
    async with fresh.open(namespace):
        assert fresh.lines == [b"1", b"2"]


async def test_a_snapshot_without_a_way_to_restore_it_is_an_error(namespace: dlog.Namespace) -> None:
    state = State()
    async with state.open(namespace) as wal:
        await wal.append(b"1")
        await wal.snapshot()
    with pytest.raises(ReplayError, match="open it with snapshot= and restore="):
        async with open_wal(namespace, apply=state.apply, name="w"):
            pass
    with pytest.raises(ValueError, match="belong together"):
        open_wal(namespace, apply=state.apply, snapshot=state.dump)
    with pytest.raises(ValueError, match="at least 1"):
        open_wal(namespace, apply=state.apply, operations_between_snapshots=0)
    async with open_wal(namespace, apply=state.apply, name="plain") as plain:
        with pytest.raises(ValueError, match="without snapshot= and restore="):
            await plain.snapshot()
        assert "0 operations in flight" in repr(plain)


async def test_an_operation_that_is_too_long_is_refused_and_the_log_goes_on(
    namespace: dlog.Namespace,
) -> None:
    state = State()
    async with state.open(namespace) as wal:
        with pytest.raises(dlog.RecordTooLongError):
            await wal.append(bytes(dlog.PAYLOAD_BYTES_MAX + 1))
        assert await wal.append(b"short") == 1


async def test_it_says_how_it_is(namespace: dlog.Namespace) -> None:
    state = State()
    async with state.open(namespace) as wal:
        await wal.append(b"good")
        assert (wal.state, wal.failure, wal.oldest_pending_s) == (dlog.WriterState.OPEN, None, 0.0)
        with pytest.raises(ApplyError):
            await wal.append(b"bad")
        assert wal.state is dlog.WriterState.FAILED
        assert isinstance(wal.failure, ApplyError)
        health = wal.health()
        assert (health.log, health.state) == ("w/operations", dlog.WriterState.FAILED)
        assert health.reason == str(wal.failure)
