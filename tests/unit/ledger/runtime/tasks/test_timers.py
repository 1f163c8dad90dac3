"""Timers call their functions in time, from one task."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from ledger.runtime.tasks.failure_domain import contained_failures
from ledger.runtime.tasks.timers import Timer, Timers


@asynccontextmanager
async def running() -> AsyncIterator[Timers]:
    async with trio.open_nursery() as nursery:
        timers = Timers()
        nursery.start_soon(timers.run)
        yield timers
        nursery.cancel_scope.cancel()


async def test_each_timer_calls_once_at_its_time_also_if_added_later(autojump_clock: MockClock) -> None:
    called: list[tuple[str, float]] = []
    async with running() as timers:
        begun = trio.current_time()
        for name, seconds in [("long", 10.0), ("short", 1.0), ("long too", 10.0)]:
            timers.after(seconds, lambda name=name: called.append((name, trio.current_time() - begun)))  # type: ignore[misc]
        await trio.sleep(0.5)
        timers.after(0.25, lambda: called.append(("late", trio.current_time() - begun)))
        await trio.sleep(30)
    assert [name for name, _ in called] == ["late", "short", "long", "long too"]
    assert [at for _, at in called] == pytest.approx([0.75, 1.0, 10.0, 10.0])


async def test_a_cancelled_timer_does_not_call(autojump_clock: MockClock) -> None:
    called: list[str] = []
    async with running() as timers:
        others: list[Timer] = []

        def cancel_others() -> None:
            for other in others:
                other.cancel()

        timers.after(1.0, cancel_others)
        others.append(timers.after(1.0, lambda: called.append("in the same queue")))
        others.append(timers.after(1.0 + 1e-12, lambda: called.append("in another queue, at the same time")))
        gone = timers.after(2.0, lambda: called.append("cancelled"))
        gone.cancel()
        gone.cancel()
        await trio.sleep(5)
    assert called == []


async def test_a_timer_may_start_another_one(autojump_clock: MockClock) -> None:
    times: list[float] = []
    async with running() as timers:

        def again() -> None:
            times.append(trio.current_time())
            if len(times) < 4:
                timers.after(1.0, again)

        again()
        await trio.sleep(10)
    assert [later - sooner for sooner, later in itertools.pairwise(times)] == pytest.approx([1.0] * 3)


async def test_without_timers_no_deadline_is_set(autojump_clock: MockClock) -> None:
    async with running() as timers:
        for number in range(100):
            timers.after(1.0 + number, lambda: None).cancel()
        await trio.sleep(1000)
        assert repr(timers) == "<Timers, 0 running>"
        assert timers._queues == {}, "an empty queue is removed"
        assert trio.lowlevel.current_statistics().seconds_to_next_deadline == float("inf")


steps = st.tuples(
    st.sampled_from(["start", "cancel", "pass"]), st.integers(0, 5), st.sampled_from([0.5, 1.0, 2.0, 3.0])
)


@given(st.lists(steps, max_size=30))
def test_timers_call_like_a_list_that_is_searched(program: list[tuple[str, int, float]]) -> None:
    async def main() -> None:
        called: list[int] = []
        waiting: dict[int, float] = {}  # the simple twin
        made: list[Timer] = []
        async with running() as timers:
            for what, which, seconds in program:
                if what == "start":
                    number = len(made)
                    waiting[number] = trio.current_time() + seconds
                    made.append(timers.after(seconds, lambda number=number: called.append(number)))  # type: ignore[misc]
                elif what == "cancel" and which < len(made):
                    made[which].cancel()
                    waiting.pop(which, None)
                elif what == "pass":
                    await trio.sleep(seconds + 0.2501)  # never when a timer is due
                    due = {number for number, at in waiting.items() if at <= trio.current_time()}
                    assert set(called) == due
                    assert len(called) == len(due)
                    assert [waiting[number] for number in called] == sorted(waiting[n] for n in called)
                    for number in due:
                        del waiting[number]
                    called.clear()

    trio.run(main, clock=MockClock(autojump_threshold=0))


async def test_an_error_of_one_timer_keeps_no_other_from_its_call(autojump_clock: MockClock) -> None:
    called: list[float] = []

    def fail() -> None:
        raise RuntimeError("a bug")

    before = contained_failures["timer"]
    async with running() as timers:
        timers.after(1.0, fail)
        timers.after(1.0, lambda: called.append(1.0))
        await trio.sleep(2)
        timers.after(1.0, lambda: called.append(3.0))
        await trio.sleep(2)
    assert called == [1.0, 3.0]
    assert contained_failures["timer"] == before + 1
