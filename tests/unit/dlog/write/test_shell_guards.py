"""Conditions of the writer's shell that nothing else needs: what changes while a step waits.

Each test fails if its condition is taken out.
"""

# covers: dlog/write/writer_shell.py

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from dlog.errors import (
    DiskFullError,
    LogLockLostError,
    LogMetadataError,
    LogUnavailableError,
    LogWriteError,
    RecordOutcome,
    WriterDiskFullError,
)
from dlog.write.full_ensemble import FullEnsembleWatch
from dlog.write.pending import wait_settled
from dlog.write.writer_shell import WriterShell
from dlog.write.writer_state import Phase
from ledger.errors import DirectoryFullError, LedgerWriteError
from ledger.runtime.tasks.failure_domain import contained_failures
from ledger.runtime.tasks.timers import Timers
from namespace.segments.segment import LogSegment
from tests.unit.dlog.write.test_writer_shell import running, submitted

FAILED = LedgerWriteError(0, "no ack quorum")


def unforeseen() -> int:
    """Errors in the tasks of writers that nobody has thought of."""
    return contained_failures["writer of a log"]


async def lose_lock(shell: WriterShell) -> None:
    lock: Any = shell.lock
    lock.lost.set()
    await shell.watch_lock()


async def rolled(shell: WriterShell, segments: Any) -> None:
    """Bring the first segment to its limit and begin the second one."""
    segments.may_roll.set()
    submitted(shell, bytes(100))
    await trio.testing.wait_all_tasks_blocked()
    for entry_id in (0, 1):  # the record, and the control record that makes it visible
        segments.ledgers[0].confirm(entry_id)
        await trio.testing.wait_all_tasks_blocked()
    assert len(segments.ledgers) == 2


async def test_a_segment_that_is_begun_while_the_writer_stops_is_not_used() -> None:
    before = unforeseen()
    async with running() as (shell, segments, _):
        may_start = trio.Event()

        async def start(handle: Any, first_txid: int) -> LogSegment:
            await may_start.wait()
            return LogSegment(segment_seqno=1, ledger_id=handle.ledger_id, first_txid=first_txid)

        segments.start = start
        batch = submitted(shell, b"never sent")
        await trio.testing.wait_all_tasks_blocked()
        await lose_lock(shell)
        may_start.set()
        await shell.finished.wait()
        assert segments.ledgers[0].has_ended
        assert segments.ledgers[0].carried == []
        assert batch.outcome is RecordOutcome.NOT_WRITTEN
    assert unforeseen() == before


async def test_a_recovery_whose_end_stays_unknown_goes_no_further() -> None:
    before = unforeseen()
    async with running() as (shell, segments, _):
        batch = submitted(shell, b"in flight")
        await trio.testing.wait_all_tasks_blocked()
        segments.recovery_error = LogMetadataError("the ledger's metadata does not parse")
        segments.may_recover.set()
        segments.ledgers[0].fail(FAILED)
        await shell.finished.wait()
        assert batch.outcome is RecordOutcome.UNKNOWN
    assert unforeseen() == before


async def test_a_recovery_goes_no_further_once_the_writer_has_stopped() -> None:
    async with running() as (shell, segments, _):
        steps: list[str] = []

        async def settle_own(segment: LogSegment) -> None:
            steps.append("settle")

        segments.settle_own = settle_own
        batch = submitted(shell, b"in flight")
        await trio.testing.wait_all_tasks_blocked()
        segments.ledgers[0].fail(FAILED)
        await trio.testing.wait_all_tasks_blocked()
        await lose_lock(shell)
        segments.may_recover.set()
        await shell.finished.wait()
        assert batch.outcome is RecordOutcome.NOT_WRITTEN
        assert isinstance(shell.machine.stopped, LogLockLostError)
        assert steps == [], "a writer without the lock changes no segment"


async def test_a_fault_when_the_delay_of_visibility_is_over_ends_the_writer_and_no_other(
    autojump_clock: trio.testing.MockClock,
) -> None:
    before, timers = unforeseen(), Timers()
    async with running() as (shell, segments, nursery):
        segments.may_recover.set()
        nursery.start_soon(timers.run)
        shell.timers._timers = timers

        def broken(_seen: int | None) -> bool:
            raise ValueError("in the step that makes records visible")

        shell.machine.send_if_last = broken  # type: ignore[assignment]
        batch = submitted(shell, b"durable")
        await trio.testing.wait_all_tasks_blocked()
        segments.ledgers[0].confirm(0)
        await shell.finished.wait()
        assert batch.outcome is RecordOutcome.DURABLE
        assert isinstance(shell.machine.stopped, LogWriteError)
        assert "in the step that makes records visible" in str(shell.machine.stopped)
    assert unforeseen() == before + 1


async def test_a_recovery_does_not_settle_what_an_error_has_given_up() -> None:
    before = unforeseen()
    async with running() as (shell, segments, _):
        batch = submitted(shell, b"in flight")
        await trio.testing.wait_all_tasks_blocked()
        segments.ledgers[0].fail(FAILED)
        await trio.testing.wait_all_tasks_blocked()

        async def broken() -> None:
            raise ValueError("in the task that keeps the time")

        await shell._guarded(broken)
        segments.may_recover.set()
        await shell.finished.wait()
        assert batch.outcome is RecordOutcome.UNKNOWN
        assert isinstance(shell.machine.stopped, LogWriteError)
    assert unforeseen() == before + 1, "that error, and none of the recovery"


async def test_no_segment_begins_after_a_recovery_before_the_lock_is_known_to_be_held(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running() as (shell, segments, _):
        segments.may_roll.set()
        segments.may_recover.set()
        batch = submitted(shell, b"in flight")
        await trio.testing.wait_all_tasks_blocked()
        lock: Any = shell.lock
        lock.is_away = True
        segments.ledgers[0].fail(FAILED)
        await trio.sleep(1)
        assert len(segments.ledgers) == 1
        lock.is_away = False
        await trio.sleep(5)
        assert len(segments.ledgers) == 2
        segments.ledgers[1].confirm(0)
        await wait_settled(batch)
        assert batch.outcome is RecordOutcome.DURABLE


@pytest.fixture
def steps() -> list[str]:
    return []


def record_steps(segments: Any, steps: list[str]) -> None:
    """Note completions and settlements; a completion fails while ``segments.is_away``."""
    segments.is_away = True
    segments.may_close.set()

    async def complete(segment: LogSegment, **_: object) -> None:
        if segments.is_away:
            raise LogUnavailableError("the metadata store is away")
        steps.append(f"complete {segment.segment_seqno}")

    async def settle_own(segment: LogSegment) -> None:
        steps.append(f"settle {segment.segment_seqno}")

    segments.complete, segments.settle_own = complete, settle_own


async def test_segments_before_a_failed_one_are_completed_first(steps: list[str]) -> None:
    async with running(segment_bytes_max=100) as (shell, segments, _):
        record_steps(segments, steps)
        await rolled(shell, segments)
        submitted(shell, b"in flight")
        segments.is_away = False
        segments.may_recover.set()
        segments.ledgers[1].fail(FAILED)
        await trio.testing.wait_all_tasks_blocked()
        assert steps == ["complete 1", "settle 2"]
        assert len(segments.ledgers) == 3


async def test_no_third_segment_begins_before_the_first_one_is_complete(steps: list[str]) -> None:
    async with running(segment_bytes_max=100) as (shell, segments, _):
        record_steps(segments, steps)
        await rolled(shell, segments)
        submitted(shell, bytes(100))
        segments.ledgers[1].confirm(0)
        await trio.testing.wait_all_tasks_blocked()
        assert len(segments.ledgers) == 2
        assert shell.machine.phase is Phase.RUNNING, "it only grows beyond its limit"


async def test_a_roll_waits_until_the_lock_is_known_to_be_held_and_keeps_its_ledger(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running(segment_bytes_max=100) as (shell, segments, _):
        lock: Any = shell.lock
        lock.is_away = True
        segments.may_roll.set()
        submitted(shell, bytes(100))
        await trio.testing.wait_all_tasks_blocked()
        first = segments.ledgers[0]
        first.confirm(0)
        await trio.testing.wait_all_tasks_blocked()
        assert first.carried == [-1], "no control record: the roll has not begun"
        lock.is_away = False
        await trio.sleep(60)
        submitted(shell, b"next")
        for entry_id in (1, 2):
            first.confirm(entry_id)
            await trio.testing.wait_all_tasks_blocked()
        assert segments.visible_at_start == [1], "the second segment has begun"
        assert len(segments.ledgers) == 2, "in the ledger that was made for the first try"


async def test_a_flush_ends_when_the_writer_stops_with_records_in_flight(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running() as (shell, segments, _):
        mine = submitted(shell, b"mine")
        await trio.testing.wait_all_tasks_blocked()
        segments.ledgers[0].confirm(0)
        submitted(shell, b"in flight")
        await lose_lock(shell)
        assert shell.machine.phase is Phase.DRAINING
        with trio.fail_after(60), pytest.raises(LogLockLostError) as raised:
            await shell.make_visible(mine)
        assert raised.value.outcome is RecordOutcome.DURABLE


async def test_a_lock_that_the_writer_has_released_is_not_lost() -> None:
    async with running() as (shell, _, nursery):
        await shell.aclose()
        nursery.start_soon(shell.watch_lock)
        lock: Any = shell.lock
        lock.lost.set()
        await trio.testing.wait_all_tasks_blocked()
        assert shell.machine.stopped is None


async def test_a_full_disk_stops_the_writer_before_it_begins_another_segment() -> None:
    async with running() as (shell, segments, _):
        segments.may_roll.set()
        segments.may_recover.set()
        batch = submitted(shell, b"in flight")
        await trio.testing.wait_all_tasks_blocked()
        segments.ledgers[0].fail(DirectoryFullError("no space left"))
        await trio.testing.wait_all_tasks_blocked()
        assert isinstance(shell.machine.stopped, WriterDiskFullError)
        assert batch.outcome is RecordOutcome.NOT_WRITTEN
        assert len(segments.ledgers) == 1


async def test_a_writer_that_gives_up_for_a_full_disk_says_so() -> None:
    async with running() as (shell, segments, _):
        submitted(shell, b"in flight")
        await trio.testing.wait_all_tasks_blocked()
        segments.recovery_error = DiskFullError("no space left")
        segments.may_recover.set()
        segments.ledgers[0].fail(FAILED)
        await trio.testing.wait_all_tasks_blocked()
        assert isinstance(shell.machine.stopped, WriterDiskFullError)


async def test_a_recovery_that_cannot_complete_the_segment_before_ends_with_its_limit(
    autojump_clock: trio.testing.MockClock, steps: list[str]
) -> None:
    async with running(segment_bytes_max=100) as (shell, segments, _):
        record_steps(segments, steps)
        await rolled(shell, segments)
        submitted(shell, b"in flight")
        segments.may_recover.set()
        segments.ledgers[1].fail(FAILED)
        with trio.fail_after(3600):
            await shell.finished.wait()
        assert isinstance(shell.machine.stopped, LogWriteError)
        assert steps == [], "nothing is settled before the segment before it is complete"


async def test_a_completion_that_failed_is_tried_again_with_nothing_else_to_do(
    autojump_clock: trio.testing.MockClock, steps: list[str]
) -> None:
    async with running(segment_bytes_max=100) as (shell, segments, _):
        record_steps(segments, steps)
        await rolled(shell, segments)
        await trio.sleep(60)
        assert steps == []
        segments.is_away = False
        await trio.sleep(60)
        assert steps == ["complete 1"]


async def test_a_completed_segment_lets_others_be_deleted_unless_the_writer_closes(steps: list[str]) -> None:
    async with running(segment_bytes_max=100) as (shell, segments, _):
        shell.purger.request = lambda: steps.append("purge")  # type: ignore[method-assign]
        segments.may_close.set()
        await rolled(shell, segments)
        await trio.testing.wait_all_tasks_blocked()
        assert steps == ["purge"]
        await shell.aclose()
        assert steps == ["purge"]


async def test_a_writer_that_gives_up_frees_the_callers_that_wait_for_capacity() -> None:
    async with running(bytes_in_flight_max=1) as (shell, segments, nursery):
        submitted(shell, b"in flight")
        await trio.testing.wait_all_tasks_blocked()
        raised: list[Exception] = []

        async def wait() -> None:
            try:
                await shell.capacity.wait()
            except LogWriteError as exc:
                raised.append(exc)

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        segments.recovery_error = LogMetadataError("the ledger's metadata does not parse")
        segments.may_recover.set()
        segments.ledgers[0].fail(FAILED)
        await trio.testing.wait_all_tasks_blocked()
        assert [type(each) for each in raised] == [LogWriteError]


@pytest.mark.parametrize("purge", [False, True])
async def test_only_a_writer_that_purges_runs_the_task_for_it(purge: bool, steps: list[str]) -> None:
    async with running() as (shell, _, nursery):

        async def serve() -> None:
            await shell.serve(purge=purge)

        shell.purger.begin = lambda start: steps.append("purger")  # type: ignore[method-assign]
        nursery.start_soon(serve)
        await trio.testing.wait_all_tasks_blocked()
        assert steps == ["purger"] * purge


async def test_an_error_while_it_waits_for_a_full_ensemble_ends_the_writer() -> None:
    before = unforeseen()
    async with running() as (shell, segments, nursery):
        segments.may_recover.set()
        submitted(shell, b"durable")
        await trio.testing.wait_all_tasks_blocked()
        segments.ledgers[0].confirm(0)

        async def broken(_steady_s: float) -> None:
            raise ValueError("in the wait for bookies")

        async def serve() -> None:
            await shell.serve(purge=False)

        nursery.start_soon(serve)
        shell._full_ensemble.begin(broken)
        await shell.finished.wait()
        assert "in the wait for bookies" in str(shell.machine.stopped)
    assert unforeseen() == before + 1


async def test_what_was_known_of_a_segment_is_forgotten_with_the_next_one() -> None:
    full: list[str] = []
    watch, may_return = FullEnsembleWatch(lambda: full.append("full")), trio.Event()

    async def wait(_steady_s: float) -> None:
        await may_return.wait()

    async with trio.open_nursery() as nursery:
        watch.begin(wait)
        watch.start_with(nursery.start_soon)
        await trio.testing.wait_all_tasks_blocked()
        may_return.set()
        watch.begin(None)
        await trio.testing.wait_all_tasks_blocked()
        assert full == []
        watch.begin(wait)
        await trio.testing.wait_all_tasks_blocked()
        assert full == ["full"]


async def test_a_ledger_made_for_a_roll_is_used_once(autojump_clock: trio.testing.MockClock) -> None:
    async with running(segment_bytes_max=100) as (shell, segments, _):
        lock: Any = shell.lock
        lock.is_away = True
        segments.may_roll.set()
        segments.may_close.set()
        submitted(shell, bytes(100))
        await trio.testing.wait_all_tasks_blocked()
        segments.ledgers[0].confirm(0)
        await trio.testing.wait_all_tasks_blocked()
        lock.is_away = False
        await trio.sleep(60)
        submitted(shell, b"next")
        for entry_id in (1, 2):
            segments.ledgers[0].confirm(entry_id)
            await trio.testing.wait_all_tasks_blocked()
        submitted(shell, bytes(100))
        for entry_id in (0, 1):
            segments.ledgers[1].confirm(entry_id)
            await trio.testing.wait_all_tasks_blocked()
        assert len(segments.ledgers) == 3
        batch = submitted(shell, b"in the third one")
        assert batch.segment_seqno == 3
