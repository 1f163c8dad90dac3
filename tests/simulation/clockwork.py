"""Virtual time and a scheduler that repeats itself: what makes one seed one run.

Inside: ``Timeline``, the things that will happen and when; ``run_repeatably``, trio with a mock clock and its
scheduler's private generator seeded. Not inside: what happens (everything else here).
Always: callbacks run when no task can, in the order of their times and then of their making; time passes
only when nothing else can happen. Nothing here or in the world may depend on the order of a set of objects,
on ``id``, ``hash`` of a string, or the machine's clock.

trio shuffles the tasks that are ready, by a generator of its own; a mock clock does not touch that. Its
internal switch for Hypothesis sorts them first, so that a seeded generator gives one order. Both are set for
the time of one run and put back. Instruments see each step of a task: that is "any await".

Source: trio._core._run; FoundationDB's simulator for the idea.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import trio
from trio._core._run import GLOBAL_RUN_CONTEXT
from trio.testing import MockClock

GRID_S = 0.002  # times are rounded up to this, so that some things happen at the same time
_SLACK_S = 1e-9
_ROUNDING_S = 1e-10  # a jump must not end just before what it goes to


class StuckError(Exception):
    """No task can run, nothing will happen, and nobody waits for a time: the world has stopped."""


class Timeline:
    """Virtual time, and what will happen in it."""

    def __init__(self) -> None:
        self.clock = MockClock(autojump_threshold=0)
        # Instead of a task that sleeps from event to event: half of the world's CPU time.
        self.clock._autojump = self._jump  # type: ignore[method-assign]
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self.failure: BaseException | None = None
        self.on_failure: Callable[[], None] = lambda: None

    def now(self) -> float:
        """Seconds since the world began."""
        return self.clock.current_time()

    def at(self, when: float, call: Callable[..., None], *args: Any) -> None:
        """Have ``call(*args)`` run at this time, rounded up, or as soon as no task can run."""
        self._count += 1
        heapq.heappush(self._heap, (math.ceil(when / GRID_S) * GRID_S, self._count, call, args))

    def after(self, delay_s: float, call: Callable[..., None], *args: Any) -> None:
        """The same, from now."""
        self.at(self.clock.current_time() + delay_s, call, *args)

    async def sleep(self, seconds: float) -> None:
        """As ``trio.sleep``, at a third of its cost: a world sleeps a lot."""
        slot = [trio.lowlevel.current_task()]

        def wake() -> None:
            for task in slot:
                trio.lowlevel.reschedule(task)

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            slot.clear()
            return trio.lowlevel.Abort.SUCCEEDED

        self.at(self.clock.current_time() + seconds, wake)
        await trio.lowlevel.wait_task_rescheduled(abort)

    def _jump(self) -> None:
        """Called by trio when no task can run: go to the next time anything happens."""
        clock, heap = self.clock, self._heap
        now = clock.current_time()
        target = GLOBAL_RUN_CONTEXT.runner.deadlines.next_deadline()
        if heap and heap[0][0] < target:
            target = heap[0][0]
        if target == math.inf:
            self._fail(StuckError("nothing can happen any more"))
            return
        # Up to the grid, so that deadlines and events close to each other come together.
        target = max(target, math.ceil(target / GRID_S) * GRID_S)
        if target > now:
            clock.jump(target - now + _ROUNDING_S)
        limit = clock.current_time() + _SLACK_S
        while heap and heap[0][0] <= limit:
            _, _, call, args = heapq.heappop(heap)
            try:
                call(*args)
            except (
                BaseException
            ) as exc:  # told to the world: inside trio's loop it would be an internal error
                self._fail(exc)
                return

    def _fail(self, exc: BaseException) -> None:
        if self.failure is None:
            self.failure = exc
        self._heap.clear()
        self.on_failure()


class StepCounter(trio.abc.Instrument):
    """Does something before the n-th step that any task takes from now on."""

    def __init__(self, steps: int, act: Callable[[], None]) -> None:
        self._left = steps
        self._act = act

    def arm(self) -> None:
        """Begin to count."""
        trio.lowlevel.add_instrument(self)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._left -= 1
        if self._left <= 0:
            trio.lowlevel.remove_instrument(self)
            self._act()


@contextmanager
def _repeatable_scheduler(seed: int) -> Iterator[None]:
    run = trio._core._run
    switch, state = run._ALLOW_DETERMINISTIC_SCHEDULING, run._r.getstate()
    run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    run._r.seed(seed)
    try:
        yield
    finally:
        run._ALLOW_DETERMINISTIC_SCHEDULING = switch  # type: ignore[misc]
        run._r.setstate(state)


def run_repeatably(seed: int, timeline: Timeline, main: Callable[[], Awaitable[None]]) -> None:
    """``trio.run`` in virtual time, with an order of tasks that depends on ``seed`` alone."""
    with _repeatable_scheduler(seed):
        trio.run(main, clock=timeline.clock)
