"""The tasks behind an object that a caller holds in ``async with``.

Always: cancelling the caller's block does not cancel these tasks; they close things in order and end when the
block has ended; an exception of the block is raised unchanged, not in a group with cancellations of these
tasks; a task that fails cancels the block, and its error is raised. Ctrl-C never comes out of the midst of a
step of ours, where it would end a task or leave a change half done.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import FrameType
from typing import Any

import trio

from ledger.runtime.tasks.task_errors import errors_in

PASSES_CALLS_ON = True  # for ``shorten``

_OURS = {"bookie", "dlog", "ledger", "namespace"}
_interrupts: trio.lowlevel.RunVar[int] = trio.lowlevel.RunVar("blocks that hold interrupts back", 0)


class ServiceTasks:
    """Starts tasks that a cancellation of the surrounding block does not reach."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._scopes: set[trio.CancelScope] = set()
        self._is_cancelled = False

    def start_soon(self, function: Callable[..., Awaitable[None]], *args: object) -> None:
        """Start a task."""
        self._nursery.start_soon(self._run, function, args)

    async def start(self, function: Callable[..., Awaitable[None]], *args: object) -> Any:
        """Start a task; wait for its ``task_status.started`` and return the value.

        A cancellation of the caller cancels the task until then.
        """
        return await self._nursery.start(self._run_starting, function, args)

    def cancel(self) -> None:
        """End all tasks."""
        self._is_cancelled = True
        for scope in self._scopes:
            scope.cancel()

    async def _run(self, function: Callable[..., Awaitable[None]], args: tuple[object, ...]) -> None:
        with trio.CancelScope(shield=True) as scope:
            await self._supervised(scope, function(*args))

    async def _run_starting(
        self,
        function: Callable[..., Awaitable[None]],
        args: tuple[object, ...],
        *,
        task_status: trio.TaskStatus[Any],
    ) -> None:
        with trio.CancelScope() as scope:
            await self._supervised(scope, function(*args, task_status=_Shielding(scope, task_status)))

    async def _supervised(self, scope: trio.CancelScope, work: Awaitable[None]) -> None:
        self._scopes.add(scope)
        if self._is_cancelled:
            scope.cancel()
        try:
            await work
        except BaseException:
            # The nursery cancels the block, but not the shielded tasks.
            self.cancel()
            raise
        finally:
            self._scopes.discard(scope)


class _Shielding:
    """Shields the task from cancellation once it has started."""

    def __init__(self, scope: trio.CancelScope, status: trio.TaskStatus[Any]) -> None:
        self._scope, self._status = scope, status

    def started(self, value: object = None) -> None:
        self._scope.shield = True
        self._status.started(value)


@asynccontextmanager
async def open_service_tasks() -> AsyncIterator[ServiceTasks]:
    """Yield an object that starts tasks; they end when the block ends.

    A single error of a task is raised unchanged, several errors as a group.
    """
    raised: BaseException | None = None
    try:
        with _interrupts_between_steps():
            async with trio.open_nursery() as nursery:
                tasks = ServiceTasks(nursery)
                try:
                    yield tasks
                except BaseException as exc:
                    raised = exc
                    raise
                finally:
                    tasks.cancel()
                    nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        errors = errors_in(group)
        if raised is not None and (not errors or errors == [raised]):
            single: BaseException = raised
        elif len(errors) == 1:
            single = errors[0]
        else:
            raise
    else:
        return
    # Outside the handler: otherwise the group would become the context of the error.
    raise single


@contextmanager
def _interrupts_between_steps() -> Iterator[None]:
    """Let Ctrl-C wait for the next checkpoint of the main task while code of ours runs.

    So does trio for its own code. It raises the interrupt in whichever task it finds, also in one that the
    program does not know. A handler of the program's own stays. Blocks may overlap; the last one gives trio
    its handler back.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # no signals come here
        return
    if not _interrupts.get():
        _wrap_handler()
    _interrupts.set(_interrupts.get() + 1)
    try:
        yield
    finally:
        _interrupts.set(_interrupts.get() - 1)
        if not _interrupts.get():
            handler = signal.getsignal(signal.SIGINT)
            if isinstance(handler, _BetweenSteps):
                signal.signal(signal.SIGINT, handler.of_trio)


def _wrap_handler() -> None:
    handler: Any = signal.getsignal(signal.SIGINT)
    if getattr(handler, "__module__", "") == "trio._core._ki":
        signal.signal(signal.SIGINT, _BetweenSteps(handler))


class _BetweenSteps:
    """The handler of SIGINT around that of trio."""

    def __init__(self, of_trio: Callable[[int, FrameType | None], object]) -> None:
        self.of_trio = of_trio

    def __call__(self, number: int, frame: FrameType | None) -> None:
        # Without a frame trio takes it for its own, and raises in the main task at its next checkpoint.
        self.of_trio(number, None if _is_ours(frame) else frame)


def _is_ours(frame: FrameType | None) -> bool:
    """True if a function of ours is under way in the running task."""
    try:
        first = trio.lowlevel.current_task().coro.cr_frame
    except RuntimeError:  # trio itself is running
        return False
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] in _OURS:
            return True
        if frame is first:
            return False
        frame = frame.f_back
    return False
