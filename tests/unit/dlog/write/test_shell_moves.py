"""A writer whose log moves to another namespace, or whose log another writer took: what its shell does then.

Each test fails if its condition is taken out.
"""

# covers: dlog/write/writer_shell.py

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from dlog.config import WriterConfig
from dlog.errors import (
    LogFencedError,
    LogLockLostError,
    LogMovedError,
    RecordOutcome,
    WriterClosedError,
)
from dlog.write.writer_shell import WriterShell
from ledger.runtime.tasks.timers import Timers
from namespace.dlsn import DLSN
from tests.unit.dlog.write.test_shell_guards import FAILED, lose_lock, rolled, unforeseen
from tests.unit.dlog.write.test_writer_shell import Lock, ScriptedSegments, submitted

FENCED = LogFencedError("log", "its segments changed")
FIRST = DLSN(1, 0, 0)


class Elsewhere:
    """The place that a log is moved to, once ``follow`` may return; ``found`` is None if it was not moved."""

    def __init__(self) -> None:
        self.segments: Any = ScriptedSegments()
        self.lock: Any = Lock()
        self.found: Any = (self.segments, self.lock)
        self.may_return = trio.Event()
        self.error: Exception | None = None

    async def follow(self) -> Any:
        await self.may_return.wait()
        if self.error is not None:
            raise self.error
        return self.found


@asynccontextmanager
async def following(**config: Any) -> AsyncIterator[tuple[WriterShell, Any, Elsewhere, trio.Nursery]]:
    """A shell of a log that can move, over segments that the test drives."""
    segments: Any = ScriptedSegments()
    lock: Any = Lock()
    elsewhere = Elsewhere()
    shell = WriterShell(
        "log", segments, lock, WriterConfig(**config), last_txid=-1, timers=Timers(), follow=elsewhere.follow
    )
    before = unforeseen()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shell.run)
        yield shell, segments, elsewhere, nursery
        nursery.cancel_scope.cancel()
    assert unforeseen() == before


async def test_a_writer_whose_log_another_writer_took_stops_with_what_fenced_it() -> None:
    async with following() as (shell, _, elsewhere, _nursery):
        elsewhere.found = None
        elsewhere.may_return.set()
        shell.machine.overtaken(FENCED)
        await trio.testing.wait_all_tasks_blocked()
        assert shell.machine.stopped is FENCED


async def test_an_error_of_the_other_place_is_the_writers_own() -> None:
    async with following() as (shell, _, elsewhere, _nursery):
        elsewhere.error = LogLockLostError("log", "the session there expired")
        elsewhere.may_return.set()
        shell.machine.overtaken(FENCED)
        await trio.testing.wait_all_tasks_blocked()
        assert shell.machine.stopped is elsewhere.error


async def test_what_was_in_flight_at_a_move_is_settled_where_the_log_was() -> None:
    async with following() as (shell, segments, elsewhere, _nursery):
        held, lost = (submitted(shell, payload) for payload in (b"held", b"lost"))
        await trio.testing.wait_all_tasks_blocked()
        shell.machine.overtaken(FENCED)
        segments.ledgers[0].lac = 0  # it holds the first one, and nobody has confirmed that
        segments.may_recover.set()
        elsewhere.may_return.set()
        await trio.testing.wait_all_tasks_blocked()
        assert (segments.recoveries, elsewhere.segments.recoveries) == (1, 0)
        assert [held.outcome, lost.outcome] == [RecordOutcome.DURABLE, RecordOutcome.PENDING]
        (ledger,) = elsewhere.segments.ledgers
        ledger.confirm(0)
        assert [held.outcome, lost.outcome] == [RecordOutcome.DURABLE, RecordOutcome.DURABLE]


async def test_segments_that_the_move_completes_are_abandoned() -> None:
    async with following(segment_bytes_max=100) as (shell, segments, elsewhere, _nursery):
        await rolled(shell, segments)
        shell.machine.overtaken(FENCED)
        segments.may_close.set()  # ends the completion under way, and then the writer looks
        elsewhere.may_return.set()
        segments.may_recover.set()

        async def complete(segment: object, **_: object) -> None:
            raise FENCED

        segments.complete = complete
        await trio.testing.wait_all_tasks_blocked()
        assert [each.has_ended for each in segments.ledgers] == [True, True]
        assert shell.machine.stopped is None


async def test_a_ledger_made_for_a_roll_is_not_used_after_a_move(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with following(segment_bytes_max=100) as (shell, segments, elsewhere, _nursery):
        lock: Any = shell.lock
        lock.is_away = True
        segments.may_roll.set()
        segments.may_recover.set()
        submitted(shell, bytes(100))
        await trio.testing.wait_all_tasks_blocked()
        segments.ledgers[0].confirm(0)
        await trio.testing.wait_all_tasks_blocked()
        assert len(segments.ledgers) == 2
        shell.machine.overtaken(FENCED)
        elsewhere.may_return.set()
        await trio.testing.wait_all_tasks_blocked()
        submitted(shell, b"after the move")
        await trio.testing.wait_all_tasks_blocked()
        assert segments.ledgers[1].has_ended
        assert segments.ledgers[1].carried == []
        (ledger,) = elsewhere.segments.ledgers
        assert ledger.carried == [-1]


async def test_a_flush_that_waits_for_a_move_ends_with_it() -> None:
    async with following() as (shell, segments, elsewhere, nursery):
        mine = submitted(shell, b"mine")
        await trio.testing.wait_all_tasks_blocked()
        segments.ledgers[0].confirm(0)
        shell.machine.overtaken(FENCED)
        await trio.testing.wait_all_tasks_blocked()
        flushed = trio.Event()

        async def flush() -> None:
            await shell.make_visible(mine)
            flushed.set()

        nursery.start_soon(flush)
        await trio.testing.wait_all_tasks_blocked()
        assert not flushed.is_set()
        segments.may_recover.set()
        elsewhere.may_return.set()
        await trio.testing.wait_all_tasks_blocked()
        assert flushed.is_set()


async def test_the_tasks_beside_it_follow_a_log_that_is_handed_over() -> None:
    async with following() as (shell, _segments, elsewhere, nursery):
        is_moved = trio.Event()

        async def serve() -> None:
            await shell.serve(purge=False, wait_moved=is_moved.wait)

        nursery.start_soon(serve)
        elsewhere.may_return.set()
        await trio.testing.wait_all_tasks_blocked()
        assert shell.lock is not elsewhere.lock
        is_moved.set()
        await trio.testing.wait_all_tasks_blocked()
        assert shell.lock is elsewhere.lock, "at once, also with nothing to write"


def truncating(segments: Any, outcomes: list[DLSN | Exception]) -> list[DLSN]:
    """Let truncations of these segments end in this order; return the list of calls."""
    calls: list[DLSN] = []

    async def truncate(first_kept: DLSN) -> DLSN:
        calls.append(first_kept)
        await trio.lowlevel.checkpoint()
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    segments.truncate = truncate
    return calls


async def test_a_truncation_that_finds_the_log_moved_waits_and_continues_there() -> None:
    async with following() as (shell, segments, elsewhere, nursery):
        here = truncating(segments, [LogMovedError("log", "file:elsewhere")] * 2)
        there = truncating(elsewhere.segments, [FIRST])
        returned: list[DLSN | None] = []

        async def truncate() -> None:
            returned.append(await shell.truncate(FIRST))

        nursery.start_soon(truncate)
        await trio.testing.wait_all_tasks_blocked()
        assert len(here) == 1, "it asks once, and waits for the move"
        elsewhere.may_return.set()
        await trio.testing.wait_all_tasks_blocked()
        assert (returned, there) == ([FIRST], [FIRST])


async def test_a_truncation_that_a_move_overtakes_moves_the_log_no_second_time() -> None:
    async with following() as (shell, segments, elsewhere, _nursery):
        truncating(elsewhere.segments, [FIRST])
        elsewhere.may_return.set()

        async def truncate(first_kept: DLSN) -> DLSN:
            shell.machine.overtaken(FENCED)
            await trio.testing.wait_all_tasks_blocked()  # the move ends while this call is on its way
            elsewhere.may_return = trio.Event()
            raise LogMovedError("log", "file:elsewhere")

        segments.truncate = truncate
        with trio.fail_after(60):
            assert await shell.truncate(FIRST) == FIRST


@pytest.mark.parametrize(
    ("end", "error"),
    [(lose_lock, LogLockLostError), (WriterShell.aclose, WriterClosedError)],
    ids=["stopped", "closed"],
)
async def test_a_writer_that_has_ended_truncates_nothing(
    end: Callable[[WriterShell], Awaitable[None]], error: type[Exception]
) -> None:
    async with following() as (shell, segments, _elsewhere, _nursery):
        calls = truncating(segments, [FIRST])
        await end(shell)
        with pytest.raises(error):
            await shell.truncate(FIRST)
        assert calls == []


async def test_a_truncation_lets_segments_be_deleted_if_the_writer_purges() -> None:
    async with following() as (shell, segments, _elsewhere, _nursery):
        truncating(segments, [FIRST, FIRST])
        requests: list[str] = []
        shell.purger.request = lambda: requests.append("purge")  # type: ignore[method-assign]
        await shell.truncate(FIRST)
        assert requests == ["purge"]
    async with following(purge=False) as (shell, segments, _elsewhere, _nursery):
        truncating(segments, [FIRST])
        shell.purger.request = lambda: requests.append("purge")  # type: ignore[method-assign]
        await shell.truncate(FIRST)
        assert requests == ["purge"]


async def test_a_move_does_not_outlive_an_end_that_stays_unknown() -> None:
    async with following() as (shell, segments, elsewhere, _nursery):
        batch = submitted(shell, b"in flight")
        await trio.testing.wait_all_tasks_blocked()
        segments.recovery_error = FENCED
        segments.may_recover.set()
        elsewhere.may_return.set()
        segments.ledgers[0].fail(FAILED)
        await trio.testing.wait_all_tasks_blocked()
        assert batch.outcome is RecordOutcome.UNKNOWN
        assert shell.machine.stopped is not None


async def test_after_a_move_the_lock_of_the_other_place_is_watched() -> None:
    async with following() as (shell, _segments, elsewhere, nursery):
        new: Any = elsewhere.lock
        nursery.start_soon(shell.watch_lock)
        elsewhere.may_return.set()
        await trio.testing.wait_all_tasks_blocked()
        shell.machine.overtaken(FENCED)
        await trio.testing.wait_all_tasks_blocked()
        assert shell.lock is elsewhere.lock
        assert shell.machine.stopped is None
        new.lost.set()
        await trio.testing.wait_all_tasks_blocked()
        assert isinstance(shell.machine.stopped, LogLockLostError)


async def test_a_lock_that_is_lost_in_the_moment_of_a_move_stops_no_writer() -> None:
    async with following() as (shell, _segments, elsewhere, nursery):
        nursery.start_soon(shell.watch_lock)
        await trio.testing.wait_all_tasks_blocked()
        former: Any = shell.lock
        former.lost.set()  # its watch wakes after the other lock has come
        shell.lock = elsewhere.lock
        shell._lock_watch.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert shell.machine.stopped is None
        elsewhere.lock.lost.set()
        await trio.testing.wait_all_tasks_blocked()
        assert isinstance(shell.machine.stopped, LogLockLostError)
