"""The tasks behind an object that a caller holds in ``async with``.

Always: cancelling the caller's block does not cancel these tasks; they close things in order and end when the
block has ended; an exception of the block is raised unchanged, not in a group with cancellations of these
tasks; a task that fails cancels the block, and its error is raised.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from ledger.runtime.tasks.task_errors import errors_in

PASSES_CALLS_ON = True  # for ``shorten``


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
