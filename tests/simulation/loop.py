"""trio's loop for a world: virtual time, no I/O, a repeatable order of tasks.

Inside: ``playing_in``, which replaces trio's loop during a run, and shortens a few of trio's slow functions;
stepping tasks; the hook before the n-th step of a process's tasks. Not inside: the passing of time while no
task is ready (``clockwork``).
Always: tasks cannot tell this loop from trio's. Each ready task is stepped once in a round, in any order;
scopes whose deadline has passed are cancelled between rounds; a cancelled task that waits is cancelled at
once. Tasks, scopes, nurseries and the delivery of cancellation are trio's own.

trio's own loop costs an eighth of a world: it polls I/O, instruments and signals in every round, sorts and
shuffles batches of mostly one task, and starts again after each jump of the clock.

Source: trio._core._run; ``test_simulation_loop`` compares the two loops.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf
from operator import attrgetter
from types import coroutine
from typing import Any, Protocol
from unittest.mock import patch

import trio
from outcome import Error, Outcome, Value
from trio import _core
from trio._core import _run
from trio._core._run import _NO_SEND, GLOBAL_RUN_CONTEXT, Runner
from trio._core._traps import CancelShieldedCheckpoint

OWNER: ContextVar[str] = ContextVar("owner")  # the name of the process that a task belongs to
_ROUNDS_PER_POLL = 1000
_POLL_S_MAX = 1.0
_age = attrgetter("_counter")
Abort = Callable[[Any], trio.lowlevel.Abort]


class Time(Protocol):
    """The time of a world, in seconds."""

    time_s: float

    def advance(self, runner: Runner) -> None:
        """Let time pass until a task is ready or a deadline is reached."""


class Loop:
    """Steps the tasks of one run.

    Args:
        seed: Seed of the order of tasks.
    """

    def __init__(self, seed: int, time: Time) -> None:
        self._rng = random.Random(seed)
        self._time = time
        self._counters: list[_StepCounter] = []

    def before_step(self, steps: int, owner: str, act: Callable[[], None]) -> None:
        """Call ``act()`` before the n-th step from now of the owner's tasks, counted together."""
        self._counters.append(_StepCounter(steps, owner, act))

    def run(
        self,
        runner: Runner,
        main: Callable[..., Awaitable[object]],
        args: tuple[Any, ...],
        host_uses_signal_set_wakeup_fd: bool = False,
    ) -> Generator[float, Any, None]:
        """Replaces ``trio._core._run.unrolled_run``. The generator yields nothing, since it never waits."""
        try:
            runner.clock.start_clock()
            runner.init_task = runner.spawn_impl(runner.init, (main, args), None, "<init>", system_task=True)
            self._play(runner)
        finally:
            runner.close()
            GLOBAL_RUN_CONTEXT.__dict__.clear()
            if runner.ki_pending:
                runner.main_task_outcome = Error(KeyboardInterrupt())
        yield from ()

    def _play(self, runner: Runner) -> None:
        time, ready, deadlines, tasks = self._time, runner.runq, runner.deadlines, runner.tasks
        counters, rng, instruments = self._counters, self._rng, runner.instruments
        rounds = 0
        while tasks:
            rounds += 1
            if "after_io_wait" in instruments:
                instruments.call("after_io_wait", 0.0)  # ``bookie.requests.turns`` gives turns there
            if rounds % _ROUNDS_PER_POLL == 0:
                _poll_io(runner, 0)  # lets Ctrl-C through
            if not ready:
                if runner.main_task_outcome is None:
                    time.advance(runner)
                else:
                    _poll_io(runner, _POLL_S_MAX)  # for trio's own tasks at the end of a run
            if deadlines._heap and deadlines._heap[0][0] <= time.time_s:
                deadlines.expire(time.time_s)
            batch = list(ready)
            ready.clear()
            if len(batch) > 1:
                # The order of ``ready`` may depend on sets. Sort by age first, so that the seed alone
                # decides.
                batch.sort(key=_age)
                if len(batch) > 2:
                    rng.shuffle(batch)
                elif rng.random() < 0.5:
                    batch.reverse()
            for task in batch:
                if counters:
                    self._count_step(task)
                GLOBAL_RUN_CONTEXT.task = task
                send, sent = task._next_send_fn, task._next_send
                task._next_send_fn = task._next_send = None
                try:
                    trap = task.context.run(send, sent)  # type: ignore[arg-type]  # trio's field is Any | None
                except BaseException as exc:
                    _ended(runner, task, exc)
                    continue
                task._schedule_points += 1
                if trap is CancelShieldedCheckpoint:
                    runner.reschedule(task)
                else:
                    assert callable(trap), f"a task yields {trap!r}, which this loop does not support"
                    task._cancel_points += 1
                    task._abort_func = trap
                    if runner.ki_pending and task is runner.main_task:
                        task._attempt_delivery_of_pending_ki()
                    if task._cancel_status.effectively_cancelled:
                        task._attempt_delivery_of_any_pending_cancel()
            if batch:
                del GLOBAL_RUN_CONTEXT.task

    def _count_step(self, task: trio.lowlevel.Task) -> None:
        owner = task.context.get(OWNER)
        for counter in self._counters[:]:
            if counter.owner == owner:
                counter.left -= 1
                if counter.left <= 0:
                    self._counters.remove(counter)
                    counter.act()


def _ended(runner: Runner, task: trio.lowlevel.Task, exc: BaseException) -> None:
    if isinstance(exc, StopIteration):
        runner.task_exited(task, Value(exc.value))
    else:
        # As in trio: the traceback begins with the task's own frame, so that it keeps no frame of the loop
        # alive.
        runner.task_exited(task, Error(exc.with_traceback(exc.__traceback__ and exc.__traceback__.tb_next)))


def _poll_io(runner: Runner, timeout_s: float) -> None:
    runner.io_manager.process_events(runner.io_manager.get_events(timeout_s))


class _StepCounter:
    def __init__(self, steps: int, owner: str, act: Callable[[], None]) -> None:
        self.left, self.owner, self.act = steps, owner, act


class _Nothing:
    """The outcome for a task that is woken without a value: one shared object in place of ``Value(None)``."""

    def unwrap(self) -> None:
        return


_NOTHING: Any = _Nothing()


@coroutine
def _wait_task_rescheduled(abort: Abort) -> Generator[Abort, Outcome[Any], Any]:
    """As trio's function, but one generator for two coroutines, and no wrapper of the trap."""
    # No local variable for the outcome: an error's traceback holds this frame, and the two would form a
    # cycle.
    return (yield abort).unwrap()


@coroutine
def _cancel_shielded_checkpoint() -> Generator[object, Outcome[Any], None]:
    (yield CancelShieldedCheckpoint).unwrap()


def _reschedule(runner: Runner, task: trio.lowlevel.Task, next_send: Outcome[Any] | None = _NO_SEND) -> None:
    """As ``Runner.reschedule``, without its checks for instruments and guest mode."""
    assert task._runner is runner
    assert task._next_send_fn is None, "a task was woken twice"
    task._next_send_fn = task.coro.send
    task._next_send = _NOTHING if next_send is _NO_SEND else next_send
    task._abort_func = None
    task.custom_sleep_data = None
    runner.runq.append(task)


class _DeadlineChange:
    """As ``CancelScope._might_change_registered_deadline``, without a generator for each use of a scope."""

    __slots__ = ("_scope",)

    def __init__(self, scope: trio.CancelScope) -> None:
        self._scope = scope

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        scope = self._scope
        old = scope._registered_deadline
        new = inf if scope._cancel_status is None or scope._cancel_called else scope._deadline
        if old != new:
            scope._registered_deadline = new
            deadlines = GLOBAL_RUN_CONTEXT.runner.deadlines
            if old != inf:
                deadlines.remove(old, scope)
            if new != inf:
                deadlines.add(new, scope)


@contextmanager
def playing_in(loop: Loop) -> Iterator[None]:
    """Make ``trio.run`` use this loop inside the block."""
    with (
        patch.object(_run, "unrolled_run", loop.run),
        patch.object(Runner, "reschedule", _reschedule),
        patch.object(trio.lowlevel, "wait_task_rescheduled", _wait_task_rescheduled),
        patch.object(_core, "wait_task_rescheduled", _wait_task_rescheduled),
        patch.object(_run, "wait_task_rescheduled", _wait_task_rescheduled),
        patch.object(_run, "cancel_shielded_checkpoint", _cancel_shielded_checkpoint),
        patch.object(
            trio.CancelScope, "_might_change_registered_deadline", lambda scope: _DeadlineChange(scope)
        ),
    ):
        yield
