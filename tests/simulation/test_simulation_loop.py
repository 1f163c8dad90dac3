"""The loop of a world: tasks see trio's behaviour with another clock, and runs are repeatable."""

from __future__ import annotations

import gc
import math
import signal
from collections.abc import Awaitable, Callable

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from bookie.requests.turns import Turns
from tests.effort import examples
from tests.simulation.clockwork import GRID_S, StuckError, Timeline, run_repeatably
from tests.simulation.loop import OWNER

Main = Callable[[], Awaitable[None]]


def in_a_world(main: Main, seed: int = 1) -> Timeline:
    timeline = Timeline(seed)
    run_repeatably(timeline, main)
    if timeline.failure is not None:
        raise timeline.failure
    return timeline


# --- as trio's loop -----------------------------------------------------------------------------------------

STEPS = ["checkpoint", "sleep", "child", "shielded", "cancel me", "past deadline", "raise"]
step = st.sampled_from([*STEPS, "later deadline", "sooner deadline", "event"])
programs = st.recursive(st.lists(step, max_size=4), lambda inner: st.lists(step | inner, max_size=4))


class PlannedError(Exception):
    pass


async def perform(program: list[object], log: list[object], name: str) -> None:
    """Run a program whose log does not depend on the order of tasks; its times are on the grid of a world."""
    for number, what in enumerate(program):
        child = f"{name}.{number}"
        if isinstance(what, list):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(perform, what, log, child)
                await trio.sleep(GRID_S)
        elif what == "checkpoint":
            await trio.lowlevel.checkpoint()
        elif what == "sleep":
            await trio.sleep(2 * GRID_S)
        elif what == "child":
            with trio.move_on_after(25 * GRID_S) as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(trio.sleep_forever)
                    nursery.start_soon(trio.sleep, 50 * GRID_S)
            log.append((child, scope.cancelled_caught))
        elif what == "shielded":
            with trio.move_on_after(GRID_S), trio.CancelScope(shield=True):
                await trio.sleep(3 * GRID_S)
                log.append((child, "not cancelled"))
        elif what == "cancel me":
            with trio.CancelScope() as scope:
                scope.cancel()
                await trio.sleep_forever()
            log.append((child, scope.cancelled_caught))
        elif what == "past deadline":
            with trio.move_on_after(0):
                await trio.sleep_forever()
        elif what == "later deadline":
            with trio.move_on_after(GRID_S) as scope:
                scope.deadline += 3 * GRID_S
                await trio.sleep(2 * GRID_S)
            log.append((child, scope.cancelled_caught))
        elif what == "sooner deadline":
            with trio.CancelScope() as scope:
                scope.deadline = trio.current_time() + 2 * GRID_S
                await trio.sleep_forever()
            log.append((child, scope.cancelled_caught))
        elif what == "event":
            event = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(event.wait)
                nursery.start_soon(event.wait)
                await trio.sleep(GRID_S)
                event.set()
        elif what == "raise":
            raise PlannedError(child)
        log.append((child, trio.current_time()))


@given(programs)
@settings(deadline=None, max_examples=examples(200))
def test_tasks_see_the_same_as_in_trios_loop(program: list[object]) -> None:
    def outcome_of(run: Callable[[Main], object]) -> tuple[list[object], str]:
        log: list[object] = []

        async def main() -> None:
            begun = trio.current_time()
            await perform(program, log, "")
            log.append(("took", trio.current_time() - begun))

        try:
            run(main)
        except (PlannedError, BaseExceptionGroup) as exc:
            return sorted(log, key=repr), repr(exc)
        return sorted(log, key=repr), ""

    def plain(main: Main) -> None:
        trio.run(main, clock=MockClock(autojump_threshold=0))

    assert outcome_of(in_a_world) == outcome_of(plain)


def test_each_ready_task_is_stepped_once_in_a_round() -> None:
    steps: list[str] = []

    async def count(name: str) -> None:
        for _ in range(5):
            steps.append(name)
            await trio.lowlevel.checkpoint()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for name in "abc":
                nursery.start_soon(count, name)

    in_a_world(main)
    assert [sorted(steps[at : at + 3]) for at in range(0, 15, 3)] == [["a", "b", "c"]] * 5


def test_a_scope_keeps_its_deadline_until_it_is_cancelled_or_closed() -> None:
    left: list[float] = []

    def look() -> None:
        left.append(trio.lowlevel.current_statistics().seconds_to_next_deadline)

    async def main() -> None:
        with trio.CancelScope(deadline=5) as scope:
            look()
            await trio.lowlevel.cancel_shielded_checkpoint()
            scope.deadline = 3
            look()
            scope.deadline = 7
            look()
            scope.cancel()
            look()
        with trio.CancelScope(deadline=2):
            await trio.lowlevel.checkpoint()
            look()
        look()

    in_a_world(main)
    assert left == [5, 3, 7, math.inf, 2, math.inf]


def test_a_task_that_is_woken_and_then_cancelled_was_woken() -> None:
    async def main() -> None:
        event = trio.Event()

        async def wait(task_status: trio.TaskStatus[trio.CancelScope]) -> None:
            with trio.CancelScope() as scope:
                task_status.started(scope)
                await event.wait()
            assert not scope.cancelled_caught

        async with trio.open_nursery() as nursery:
            scope = await nursery.start(wait)
            await trio.lowlevel.checkpoint()
            event.set()
            scope.cancel()

    in_a_world(main)


@pytest.mark.slow
def test_cancelled_tasks_leave_no_garbage() -> None:
    def count() -> int:
        return sum(isinstance(one, trio.Cancelled) for one in gc.get_objects())

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(trio.sleep_forever)
            await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()

    gc.collect()
    gc.disable()
    try:
        before = count()
        in_a_world(main)
        assert count() == before
    finally:
        gc.enable()


def test_ctrl_c_ends_a_world_that_would_not_end() -> None:
    async def main() -> None:
        signal.raise_signal(signal.SIGINT)
        while True:
            await trio.lowlevel.checkpoint()

    with pytest.raises(KeyboardInterrupt):
        in_a_world(main)


# --- beyond trio's loop -------------------------------------------------------------------------------------


def order_of(seed: int) -> list[int]:
    order: list[int] = []

    async def note(number: int) -> None:
        order.append(number)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(note, number)

    in_a_world(main, seed)
    return order


def test_the_seed_decides_the_order_of_tasks() -> None:
    assert order_of(1) == order_of(1)
    assert len({tuple(order_of(seed)) for seed in range(10)}) > 5
    assert sorted(order_of(3)) == list(range(8))


def test_time_passes_only_while_no_task_is_ready() -> None:
    times: list[float] = []

    async def main() -> None:
        for _ in range(100):
            await trio.lowlevel.checkpoint()
        times.append(trio.current_time())
        await trio.sleep(1000)
        times.append(trio.current_time())

    assert in_a_world(main).now() == pytest.approx(1000)
    assert times == [0.0, pytest.approx(1000)]


def test_a_callback_due_on_the_grid_runs_at_that_time() -> None:
    timeline = Timeline(1)
    late: list[int] = []

    def note(step: int) -> None:
        if timeline.now() != step * GRID_S:
            late.append(step)

    async def main() -> None:
        for step in range(1, 5000):
            timeline.at(step * GRID_S, note, step)
        await trio.sleep(5000 * GRID_S)

    run_repeatably(timeline, main)
    assert late == []


def test_a_hook_runs_before_the_given_step_of_an_owners_tasks() -> None:
    timeline = Timeline(1)
    steps: list[str] = []

    async def work(owner: str) -> None:
        OWNER.set(owner)
        await trio.lowlevel.checkpoint()
        timeline.loop.before_step(3, owner, lambda: steps.append("struck"))
        for _ in range(5):
            await trio.lowlevel.checkpoint()
            steps.append(owner)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work, "me")

    run_repeatably(timeline, main)
    assert steps == ["me", "me", "struck", "me", "me", "me"]


def test_a_stuck_world_reports_it() -> None:
    timeline = Timeline(1)

    async def main() -> None:
        with trio.CancelScope() as scope:
            timeline.on_failure = scope.cancel
            await trio.sleep_forever()

    run_repeatably(timeline, main)
    assert isinstance(timeline.failure, StuckError)


# The tasks of the world stay suspended: no loop is left that could end them.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_failed_world_that_does_not_end_raises() -> None:
    async def main() -> None:
        await trio.sleep_forever()

    with pytest.raises(StuckError):
        in_a_world(main)
    gc.collect()


def test_tasks_that_wait_for_a_turn_of_the_bookie_get_it_before_time_passes() -> None:
    order: list[int] = []

    async def main() -> None:
        turns, started_s = Turns(10), trio.current_time()

        async def take(number: int) -> None:
            await turns.wait(10)
            order.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(take, number)
        assert trio.current_time() == started_s

    in_a_world(main)
    assert sorted(order) == list(range(5))
