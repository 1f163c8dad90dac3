"""Virtual time and a scheduler that repeats itself: what makes one seed one run.

Inside: ``Timeline``, the things that will happen and when; ``run_repeatably``, trio with a mock clock and its
scheduler's private generator seeded. Not inside: what happens (everything else here).
Always: callbacks run when no task can, in the order of their times and then of their making; time passes
only when nothing else can happen. Nothing here or in the world may depend on the order of a set of objects,
on ``id``, ``hash`` of a string, or the machine's clock.

trio shuffles the tasks that are ready, by a generator of its own; a mock clock does not touch that. Its
internal switch for Hypothesis sorts them first, so that a seeded generator gives one order. Both are set for
the time of one run and put back. Each step of a task can be counted: that is "any await".

Source: trio._core._run; FoundationDB's simulator for the idea.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import trio
from trio._core._run import GLOBAL_RUN_CONTEXT
from trio.testing import MockClock

OWNER: ContextVar[str] = ContextVar("owner")  # the process, by name, that a task belongs to
GRID_S = 0.004  # times are rounded up to this, so that some things happen at the same time
_SLACK_S = 1e-9
_FOREVER_S = 999_999_999.0
_ROUNDS_PER_LOOK = 1000


class StuckError(Exception):
    """No task can run, nothing will happen, and nobody waits for a time: the world has stopped."""


class _NoSockets:
    """Stands before trio's I/O manager: a world has no sockets, and asking for news each round costs a tenth.

    Now and then it does ask, so that Ctrl-C ends a run.
    """

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._rounds = 0

    def get_events(self, _timeout: float) -> Any:
        self._rounds += 1
        return () if self._rounds % _ROUNDS_PER_LOOK else self._manager.get_events(0)

    def process_events(self, events: Any) -> None:
        if events:
            self._manager.process_events(events)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)


class Timeline:
    """Virtual time, and what will happen in it."""

    def __init__(self) -> None:
        self.time_s = 0.0
        self.clock = clock = MockClock(autojump_threshold=0)
        # Its own ways of telling the time, three calls deep, were a twentieth of a world.
        clock.current_time = self.now  # type: ignore[method-assign]
        clock.deadline_to_sleep_time = self._seconds_to_sleep  # type: ignore[method-assign]
        # Instead of a task that sleeps from event to event: half of the world's CPU time.
        clock._autojump = self._jump  # type: ignore[method-assign]
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self.hooks = _Hooks()
        self.failure: BaseException | None = None
        self.on_failure: Callable[[], None] = lambda: None

    def now(self) -> float:
        """Seconds since the world began."""
        return self.time_s

    def _seconds_to_sleep(self, deadline: float) -> float:
        return 0.0 if deadline <= self.time_s else _FOREVER_S

    def at(self, when: float, call: Callable[..., None], *args: Any) -> None:
        """Have ``call(*args)`` run at this time, rounded up, or as soon as no task can run."""
        self._count += 1
        heapq.heappush(self._heap, (math.ceil(when / GRID_S) * GRID_S, self._count, call, args))

    def after(self, delay_s: float, call: Callable[..., None], *args: Any) -> None:
        """The same, from now."""
        self.at(self.time_s + delay_s, call, *args)

    async def sleep(self, seconds: float) -> None:
        """As ``trio.sleep``, at a third of its cost: a world sleeps a lot."""
        slot = [trio.lowlevel.current_task()]

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            slot.clear()
            return trio.lowlevel.Abort.SUCCEEDED

        self.at(self.time_s + seconds, _wake, slot)
        await trio.lowlevel.wait_task_rescheduled(abort)

    def before_step(self, steps: int, owner: str, act: Callable[[], None]) -> None:
        """Have ``act()`` run before the n-th step, from now on, of any task of this owner (see ``OWNER``)."""
        self.hooks.add(_StepCounter(steps, owner, act))

    def _jump(self) -> None:
        """Called by trio when no task can run: go to the next time anything happens."""
        heap = self._heap
        target = GLOBAL_RUN_CONTEXT.runner.deadlines.next_deadline()
        if heap and heap[0][0] < target:
            target = heap[0][0]
        if target == math.inf:
            self._fail(StuckError("nothing can happen any more"))
            return
        # Up to the grid, so that deadlines and events close to each other come together.
        target = max(target, math.ceil(target / GRID_S) * GRID_S)
        self.time_s = max(self.time_s, target)
        limit = self.time_s + _SLACK_S
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


def _wake(slot: list[trio.lowlevel.Task]) -> None:
    for task in slot:
        trio.lowlevel.reschedule(task)


class _Hooks(dict[str, bool]):
    """Stands in for trio's instruments, which it asks for at every step: a plain dict answers sooner.

    A world uses one hook: what must happen before the n-th step of somebody's tasks.
    """

    def __init__(self) -> None:
        super().__init__()
        self._counters: list[_StepCounter] = []

    def add(self, counter: _StepCounter) -> None:
        self._counters.append(counter)
        self["before_task_step"] = True

    def call(self, hook: str, task: trio.lowlevel.Task) -> None:
        assert hook == "before_task_step", f"a hook that no world uses: {hook}"
        owner = task.context.get(OWNER)
        for counter in self._counters[:]:
            if counter.owner == owner:
                counter.left -= 1
                if counter.left <= 0:
                    self._counters.remove(counter)
                    if not self._counters:
                        del self["before_task_step"]
                    counter.act()


class _StepCounter:
    def __init__(self, steps: int, owner: str, act: Callable[[], None]) -> None:
        self.left, self.owner, self.act = steps, owner, act


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

    async def without_sockets() -> None:
        runner = GLOBAL_RUN_CONTEXT.runner
        real = runner.io_manager
        runner.io_manager = _NoSockets(real)  # type: ignore[assignment]
        runner.instruments = timeline.hooks  # type: ignore[assignment]
        try:
            await main()
        finally:
            runner.io_manager = real

    with _repeatable_scheduler(seed):
        trio.run(without_sockets, clock=timeline.clock)
