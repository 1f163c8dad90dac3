"""Virtual time. Together with ``loop`` it makes the run of a seed repeatable.

Inside: ``Timeline``, a queue of callbacks by time; ``run_repeatably``, which runs trio in virtual time.
Not inside: stepping tasks (``loop``); the callbacks (all other modules).
Always: callbacks run while no task is ready, by time and then in the order in which they were scheduled. Time
passes only while no task is ready and no callback is due. Nothing here or in the world may depend on the
order of a set of objects, on ``id``, on the ``hash`` of a string, or on the machine's clock.

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

GRID_S = 2.0**-8  # times are rounded up to multiples of this, so that some callbacks share a time
_SLACK_S = 1e-9


class StuckError(Exception):
    """The world has stopped: no task is ready, no callback is scheduled, no deadline is pending."""


class Timeline:
    """Virtual time and its scheduled callbacks."""

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
        """Schedule ``call(*args)`` at this time, rounded up. A time in the past means as soon as possible."""
        self._count += 1
        heapq.heappush(self._heap, (math.ceil(when / GRID_S) * GRID_S, self._count, call, args))

    def after(self, delay_s: float, call: Callable[..., None], *args: Any) -> None:
        """As ``at``, with a time relative to now."""
        self._count += 1
        when = math.ceil((self.time_s + delay_s) / GRID_S) * GRID_S
        heapq.heappush(self._heap, (when, self._count, call, args))

    async def sleep(self, seconds: float) -> None:
        """As ``trio.sleep``, at a third of its cost; a world sleeps often. If cancelled, nothing remains."""
        slot = [trio.lowlevel.current_task()]

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            slot.clear()
            return trio.lowlevel.Abort.SUCCEEDED

        self.at(self.time_s + seconds, _wake, slot)
        await trio.lowlevel.wait_task_rescheduled(abort)

    def advance(self, runner: Runner) -> None:
        """Let time pass until a task is ready or a deadline is reached."""
        heap, ready, deadlines, pop = self._heap, runner.runq, runner.deadlines, heapq.heappop
        try:
            while not ready:
                target = deadline = deadlines.next_deadline()
                if heap and heap[0][0] < deadline:
                    target = heap[0][0]
                elif deadline == math.inf:
                    raise StuckError("no task is ready, no callback is scheduled, no deadline is pending")
                # Round up to the grid, so that deadlines and callbacks close to each other share a time.
                self.time_s = max(self.time_s, target, math.ceil(target / GRID_S) * GRID_S)
                limit = self.time_s + _SLACK_S
                while heap and heap[0][0] <= limit:
                    _, _, call, args = pop(heap)
                    call(*args)
                if deadline <= limit:
                    return
        except BaseException as exc:
            if self.failure is not None:
                raise  # on_failure has run already, and did not end the world
            self.failure = exc
            self._heap.clear()
            self.on_failure()


def _wake(slot: list[trio.lowlevel.Task]) -> None:
    for task in slot:
        task._runner.reschedule(task)


class _Clock(trio.abc.Clock):
    """trio's clock, which shows the time of a world."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline

    def start_clock(self) -> None:
        pass

    def current_time(self) -> float:
        return self._timeline.time_s

    def deadline_to_sleep_time(self, deadline: float) -> float:
        raise AssertionError("the loop of a world never sleeps")


def run_repeatably(timeline: Timeline, main: Callable[[], Awaitable[None]]) -> None:
    """Run ``main`` with trio in virtual time; the order of tasks depends on the timeline's seed alone."""
    with playing_in(timeline.loop):
        trio.run(main, clock=_Clock(timeline))
