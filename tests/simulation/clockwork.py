"""Virtual time: what makes one seed one run, together with ``loop``.

Inside: ``Timeline``, the things that will happen and when; ``run_repeatably``, trio in virtual time. Not
inside: stepping tasks (``loop``), what happens (everything else here).
Always: callbacks run when no task can, in the order of their times and then of their making; time passes
only when nothing else can happen. Nothing here or in the world may depend on the order of a set of objects,
on ``id``, ``hash`` of a string, or the machine's clock.

Source: FoundationDB's simulator for the idea.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Awaitable, Callable
from typing import Any

import trio
from trio._core._run import Runner

from tests.simulation.loop import Loop, playing_in

GRID_S = 2.0**-8  # times are rounded up to this, exactly, so that some things happen at the same time
_SLACK_S = 1e-9


class StuckError(Exception):
    """No task can run, nothing will happen, and nobody waits for a time: the world has stopped."""


class Timeline:
    """Virtual time, and what will happen in it."""

    def __init__(self, seed: int) -> None:
        self.time_s = 0.0
        self.loop = Loop(seed, self)
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self.failure: BaseException | None = None
        self.on_failure: Callable[[], None] = lambda: None

    def now(self) -> float:
        """Seconds since the world began."""
        return self.time_s

    def at(self, when: float, call: Callable[..., None], *args: Any) -> None:
        """Have ``call(*args)`` run at this time, rounded up, or as soon as no task can run."""
        self._count += 1
        heapq.heappush(self._heap, (math.ceil(when / GRID_S) * GRID_S, self._count, call, args))

    def after(self, delay_s: float, call: Callable[..., None], *args: Any) -> None:
        """The same, from now."""
        self._count += 1
        when = math.ceil((self.time_s + delay_s) / GRID_S) * GRID_S
        heapq.heappush(self._heap, (when, self._count, call, args))

    async def sleep(self, seconds: float) -> None:
        """As ``trio.sleep``, at a third of its cost: a world sleeps a lot."""
        slot = [trio.lowlevel.current_task()]

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            slot.clear()
            return trio.lowlevel.Abort.SUCCEEDED

        self.at(self.time_s + seconds, _wake, slot)
        await trio.lowlevel.wait_task_rescheduled(abort)

    def advance(self, runner: Runner) -> None:
        """No task can run: go on to a time at which one can, or may."""
        heap, ready, deadlines, pop = self._heap, runner.runq, runner.deadlines, heapq.heappop
        try:
            while not ready:
                target = deadline = deadlines.next_deadline()
                if heap and heap[0][0] < deadline:
                    target = heap[0][0]
                elif deadline == math.inf:
                    raise StuckError("nothing can happen any more")
                # Up to the grid, so that deadlines and events close to each other come together.
                self.time_s = max(self.time_s, target, math.ceil(target / GRID_S) * GRID_S)
                limit = self.time_s + _SLACK_S
                while heap and heap[0][0] <= limit:
                    _, _, call, args = pop(heap)
                    call(*args)
                if deadline <= limit:
                    return
        except BaseException as exc:
            if self.failure is not None:
                raise  # it was to end, and did not
            self.failure = exc
            self._heap.clear()
            self.on_failure()


def _wake(slot: list[trio.lowlevel.Task]) -> None:
    for task in slot:
        task._runner.reschedule(task)


class _Clock(trio.abc.Clock):
    """Tells trio the time of a world."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline

    def start_clock(self) -> None:
        pass

    def current_time(self) -> float:
        return self._timeline.time_s

    def deadline_to_sleep_time(self, deadline: float) -> float:
        raise AssertionError("the loop of a world never waits")


def run_repeatably(timeline: Timeline, main: Callable[[], Awaitable[None]]) -> None:
    """``trio.run`` in virtual time, with an order of tasks that depends on the timeline's seed alone."""
    with playing_in(timeline.loop):
        trio.run(main, clock=_Clock(timeline))
