"""The shell of a writer with its machine: failed ledgers, lost sessions, visibility, waiting for capacity."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import trio
import trio.testing

from dlog.config import WriterConfig
from dlog.errors import (
    DLogError,
    LogFencedError,
    LogLockLostError,
    LogMetadataError,
    LogWriteError,
    NamespaceLostError,
    RecordOutcome,
    WriteError,
)
from dlog.format.compression import Compression
from dlog.write.batcher import Batch
from dlog.write.pending import Pending, wait_settled
from dlog.write.writer_shell import WriterShell
from ledger.errors import LedgerError, LedgerFencedError, LedgerWriteError
from ledger.metadata_store.memory import MemoryStore, MemoryTree
from ledger.runtime.statistics import Recorder
from ledger.runtime.tasks.timers import Timers
from namespace.segments.segment import LogSegment


class SilentLedger:
    """Stands in for ``ledger.handle.WriteHandle``; takes entries and acknowledges none."""

    ledger_id, bytes_in_flight = 7, 0
    metadata = SimpleNamespace(custom={})

    def __init__(self) -> None:
        self._entries = 0
        self.callback: Callable[[int, BaseException | None], None] | None = None

    def submit(self, payload: bytes, *, hold: bool = False) -> int:
        self._entries += 1
        return self._entries - 1

    def send_soon(self) -> None:
        pass

    def send_now(self) -> None:
        pass

    def on_confirmed(self, callback: Callable[[int, BaseException | None], None]) -> None:
        self.callback = callback

    def abandon(self) -> None:
        pass


class UnreachableSegments:
    """Stands in for ``SegmentLifecycle``; one segment can be started, then the session is over."""

    compression = Compression.NONE

    def __init__(self) -> None:
        self.ledger = SilentLedger()
        self.recoveries = 0

    async def begin(self, first_txid: int) -> tuple[SilentLedger, LogSegment]:
        handle = await self.allocate()
        return handle, await self.start(handle, first_txid)

    async def allocate(self) -> SilentLedger:
        await trio.lowlevel.checkpoint()
        return self.ledger

    async def start(self, handle: SilentLedger, first_txid: int) -> LogSegment:
        await trio.lowlevel.checkpoint()
        return LogSegment(segment_seqno=1, ledger_id=handle.ledger_id, first_txid=first_txid)

    async def recovered_end(self, segment: LogSegment) -> int:
        await trio.lowlevel.checkpoint()
        self.recoveries += 1
        raise NamespaceLostError("the session is over")


class Lock:
    """Stands in for ``ledger.metadata_store.lock.DistributedLock``; held until ``lost`` is set."""

    is_away = False  # from the metadata store, so it is not known whether it is held

    def __init__(self) -> None:
        self.lost = trio.Event()
        self.session = MemoryStore(MemoryTree())

    @property
    def held(self) -> bool:
        return not self.is_away and not self.lost.is_set()

    async def wait_lost(self) -> None:
        await self.lost.wait()

    async def release(self) -> None:
        await trio.lowlevel.checkpoint()


async def test_records_in_flight_settle_at_once_when_the_session_is_over(
    autojump_clock: trio.testing.MockClock,
) -> None:
    segments: Any = UnreachableSegments()
    lock: Any = Lock()
    shell = WriterShell("log", segments, lock, WriterConfig(), last_txid=-1, timers=Timers())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shell.run)
        nursery.start_soon(shell.watch_lock)
        pending = Pending(*shell.machine.batcher.add(b"a", 1))
        shell.machine.pump()
        while segments.ledger.callback is None:
            await trio.lowlevel.checkpoint()
        began_s = trio.current_time()
        lock.lost.set()
        segments.ledger.callback(-1, LedgerFencedError(7, "a bookie refused an add as fenced"))
        settled = trio.Event()
        pending.on_settled(settled.set)
        await settled.wait()
        assert trio.current_time() == began_s
        assert pending.outcome is RecordOutcome.UNKNOWN
        assert segments.recoveries == 1
        assert isinstance(shell.machine.stopped, LogFencedError)


class ScriptedLedger:
    """Stands in for ``ledger.handle.WriteHandle``; the test acknowledges. Knows what readers see."""

    def __init__(self, ledger_id: int) -> None:
        self.ledger_id, self.lac = ledger_id, -1
        self.metadata = SimpleNamespace(custom={})
        self.bytes_in_flight = 0
        self.has_ended = False
        self.waits = 0  # calls of wait_bytes_in_flight_below
        self._replied = trio.Event()
        self.carried: list[int] = []  # the LAC in each entry
        self._callback: Callable[[int, BaseException | None], None] = lambda lac, error: None

    @property
    def visible(self) -> int:
        """The last entry that a reader sees."""
        return max(self.carried[: self.lac + 1], default=-1)

    def submit(self, payload: bytes, *, hold: bool = False) -> int:
        self.carried.append(self.lac)
        return len(self.carried) - 1

    def send_soon(self) -> None:
        pass

    def send_now(self) -> None:
        pass

    def hint_now(self) -> None:
        pass

    def on_confirmed(self, callback: Callable[[int, BaseException | None], None]) -> None:
        self._callback = callback

    async def wait_bytes_in_flight_below(self, limit_bytes: int) -> None:
        self.waits += 1
        while self.bytes_in_flight >= limit_bytes and not self.has_ended:
            await self._replied.wait()

    def reply(self, bytes_in_flight: int) -> None:
        """The slowest replica replies; this many bytes are still in flight."""
        self.bytes_in_flight = bytes_in_flight
        self._replied.set()
        self._replied = trio.Event()

    def confirm(self, entry_id: int) -> None:
        """All entries up to this one are durable."""
        self.lac = entry_id
        self._callback(entry_id, None)

    def fail(self, error: LedgerError) -> None:
        """End the handle with an error."""
        self.has_ended = True
        self.reply(self.bytes_in_flight)
        self._callback(self.lac, error)

    def abandon(self) -> None:
        self.has_ended = True
        self.reply(self.bytes_in_flight)


class ScriptedSegments:
    """Stands in for ``SegmentLifecycle``; the test lets a roll, a close or a recovery continue."""

    compression = Compression.NONE
    operation = Recorder().operation

    def __init__(self) -> None:
        self.ledgers: list[ScriptedLedger] = []
        self.visible_at_start: list[int] = []  # of the ledger before, when the next segment was started
        self.may_roll, self.may_close, self.may_recover = trio.Event(), trio.Event(), trio.Event()
        self.recovery_error: DLogError | None = None
        self.recoveries = 0

    async def begin(self, first_txid: int) -> tuple[ScriptedLedger, LogSegment]:
        handle = await self.allocate()
        return handle, await self.start(handle, first_txid)

    async def allocate(self) -> ScriptedLedger:
        if self.ledgers:
            await self.may_roll.wait()
        self.ledgers.append(ScriptedLedger(len(self.ledgers)))
        return self.ledgers[-1]

    async def start(self, handle: ScriptedLedger, first_txid: int) -> LogSegment:
        await trio.lowlevel.checkpoint()
        if handle.ledger_id:
            self.visible_at_start.append(self.ledgers[handle.ledger_id - 1].visible)
        return LogSegment(
            segment_seqno=1 + handle.ledger_id, ledger_id=handle.ledger_id, first_txid=first_txid
        )

    async def close(self, handle: ScriptedLedger, segment: LogSegment) -> None:
        await self.may_close.wait()

    async def complete(self, segment: LogSegment, **_: object) -> None:
        await trio.lowlevel.checkpoint()

    async def recovered_end(self, segment: LogSegment) -> int:
        await self.may_recover.wait()
        self.recoveries += 1
        if self.recovery_error is not None:
            raise self.recovery_error
        return self.ledgers[segment.ledger_id].lac

    async def settle_own(self, segment: LogSegment) -> None:
        await trio.lowlevel.checkpoint()


@asynccontextmanager
async def running(**config: Any) -> AsyncIterator[tuple[WriterShell, Any, trio.Nursery]]:
    """A shell with this configuration, over segments that the test drives."""
    segments: Any = ScriptedSegments()
    lock: Any = Lock()
    shell = WriterShell("log", segments, lock, WriterConfig(**config), last_txid=-1, timers=Timers())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shell.run)
        yield shell, segments, nursery
        nursery.cancel_scope.cancel()


def submitted(shell: WriterShell, payload: bytes) -> Batch:
    """The batch of one record, which is sent at once also beside batches in flight."""
    batch, _ = shell.machine.batcher.add(payload, 1)
    shell.machine.batcher.cut()
    shell.machine.pump()
    return batch


async def test_a_batch_is_visible_only_after_a_later_entry_with_its_lac_is_durable() -> None:
    async with running() as (shell, segments, nursery):
        mine = submitted(shell, b"mine")
        await trio.testing.wait_all_tasks_blocked()
        (ledger,) = segments.ledgers
        submitted(shell, b"in flight together")  # carries a LAC before mine
        ledger.confirm(0)
        assert mine.outcome is RecordOutcome.DURABLE
        visible = [trio.Event(), trio.Event()]

        async def flush(event: trio.Event) -> None:
            await shell.make_visible(mine)
            event.set()

        for event in visible:
            nursery.start_soon(flush, event)
        await trio.testing.wait_all_tasks_blocked()
        assert ledger.carried == [-1, -1, 0], "one control record serves both"
        ledger.confirm(1)
        await trio.testing.wait_all_tasks_blocked()
        assert ledger.visible == -1
        assert not visible[0].is_set()
        ledger.confirm(2)
        await trio.testing.wait_all_tasks_blocked()
        assert ledger.visible == 0
        assert visible[0].is_set()
        assert visible[1].is_set()
        submitted(shell, b"later")
        await shell.make_visible(mine)
        assert len(ledger.carried) == 4, "a visible batch needs no control record"


async def test_the_next_segment_starts_only_when_the_one_before_is_visible() -> None:
    async with running(segment_bytes_max=100) as (shell, segments, _):
        submitted(shell, bytes(100))
        await trio.testing.wait_all_tasks_blocked()
        (old,) = segments.ledgers
        old.confirm(0)
        await trio.testing.wait_all_tasks_blocked()
        for number in range(3):
            submitted(shell, b"during the roll %d" % number)
        segments.may_roll.set()
        await trio.testing.wait_all_tasks_blocked()
        next_batch = submitted(shell, b"for the next segment")
        for entry_id in (1, 3):
            old.confirm(entry_id)
            await trio.testing.wait_all_tasks_blocked()
        assert segments.visible_at_start == []
        assert old.carried == [-1, 0, 0, 0, 3], "the last one is a control record"
        old.confirm(4)
        await trio.testing.wait_all_tasks_blocked()
        assert segments.visible_at_start == [3]
        assert (next_batch.segment_seqno, next_batch.entry_id) == (2, 0)


async def test_during_closing_a_batch_is_visible_only_after_its_segment_is_closed() -> None:
    async with running() as (shell, segments, nursery):
        mine = submitted(shell, b"mine")
        await trio.testing.wait_all_tasks_blocked()
        segments.ledgers[0].confirm(0)
        nursery.start_soon(shell.aclose)
        await trio.testing.wait_all_tasks_blocked()
        visible = trio.Event()

        async def flush() -> None:
            await shell.make_visible(mine)
            visible.set()

        nursery.start_soon(flush)
        await trio.testing.wait_all_tasks_blocked()
        assert not visible.is_set()
        segments.may_close.set()
        await visible.wait()
        assert shell.machine.stopped is None


async def test_a_recovery_that_no_retry_mends_stops_the_writer_with_an_unknown_outcome() -> None:
    async with running() as (shell, segments, _):
        batch = submitted(shell, b"in flight")
        await trio.testing.wait_all_tasks_blocked()
        segments.recovery_error = LogMetadataError("the ledger's metadata does not parse")
        segments.may_recover.set()
        segments.ledgers[0].fail(LedgerWriteError(0, "no ack quorum"))
        with trio.fail_after(60):
            await wait_settled(batch)
        assert batch.outcome is RecordOutcome.UNKNOWN
        assert isinstance(shell.machine.stopped, LogWriteError)
        assert segments.recoveries == 1


async def test_waiting_for_capacity_ends_in_the_smallest_window() -> None:
    async with running(bytes_in_flight_max=1) as (shell, segments, nursery):
        submitted(shell, b"")
        has_capacity = trio.Event()

        async def wait() -> None:
            await shell.capacity.wait()
            has_capacity.set()

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        assert not has_capacity.is_set()
        segments.ledgers[0].confirm(0)
        await trio.testing.wait_all_tasks_blocked()
        assert has_capacity.is_set()


@asynccontextmanager
async def waiting_for_a_slow_replica() -> AsyncIterator[tuple[WriterShell, Any, trio.Event, list[Exception]]]:
    """A task waits for capacity: nothing waits to become durable, but the ledger holds too many bytes."""
    async with running(bytes_in_flight_max=100) as (shell, segments, nursery):
        submitted(shell, b"confirmed")
        await trio.testing.wait_all_tasks_blocked()
        (ledger,) = segments.ledgers
        ledger.confirm(0)
        ledger.bytes_in_flight = 200
        assert shell.machine.waiting_bytes == 0
        assert shell.machine.is_over_limit
        returned, raised = trio.Event(), list[Exception]()

        async def wait() -> None:
            try:
                await shell.capacity.wait()
            except WriteError as exc:
                raised.append(exc)
            returned.set()

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        assert not returned.is_set()
        yield shell, segments, returned, raised


async def test_waiting_for_a_slow_replica_ends_with_its_answer_and_without_polling(
    mock_clock: trio.testing.MockClock,
) -> None:
    # The clock stands still: a task that sleeps between two looks never wakes.
    async with waiting_for_a_slow_replica() as (_, segments, returned, raised):
        (ledger,) = segments.ledgers
        ledger.reply(200)
        await trio.testing.wait_all_tasks_blocked()
        assert not returned.is_set()
        ledger.reply(199)
        await trio.testing.wait_all_tasks_blocked()
        assert returned.is_set()
        assert raised == []
        assert ledger.waits == 1


async def test_waiting_for_a_slow_replica_outlasts_its_ledger_until_the_recovery(
    mock_clock: trio.testing.MockClock,
) -> None:
    async with waiting_for_a_slow_replica() as (shell, segments, returned, raised):
        segments.ledgers[0].fail(LedgerWriteError(0, "no ack quorum"))
        await trio.testing.wait_all_tasks_blocked()
        assert not returned.is_set()
        segments.may_recover.set()
        await trio.testing.wait_all_tasks_blocked()
        assert returned.is_set()
        assert raised == []
        assert not shell.machine.is_over_limit


async def test_waiting_for_a_slow_replica_ends_when_the_writer_stops(
    mock_clock: trio.testing.MockClock,
) -> None:
    async with waiting_for_a_slow_replica() as (shell, segments, returned, raised):
        submitted(shell, b"not confirmed")
        shell.lock.lost.set()  # type: ignore[attr-defined]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shell.watch_lock)
        await trio.testing.wait_all_tasks_blocked()
        assert returned.is_set()
        assert [type(exc) for exc in raised] == [LogLockLostError]
        assert segments.ledgers[0].waits == 1
