"""Taking the errors of concurrent tasks out of the groups in which a nursery raises them.

A caller that handles an error class can then catch the error itself, not a group of one.

Source: trio's strict exception groups.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import trio

T = TypeVar("T")


async def for_each(function: Callable[[T], Awaitable[object]], items: Iterable[T]) -> None:
    """Call the function for each item in its own task; return when all calls have returned.

    If a call fails, the others are cancelled and its error is raised unchanged. If cancelled, all calls are
    cancelled.
    """
    failures: list[Exception] = []

    async def call(item: T, scope: trio.CancelScope) -> None:
        try:
            await function(item)
        except Exception as exc:  # raised below; the nursery would wrap it in a group
            failures.append(exc)
            scope.cancel()

    async with trio.open_nursery() as nursery:
        for item in items:
            nursery.start_soon(call, item, nursery.cancel_scope)
    if failures:
        raise failures[0]


def errors_in(error: BaseException) -> list[BaseException]:
    """The errors in a group, flattened and in order, without cancellations; for another error, that error."""
    if not isinstance(error, BaseExceptionGroup):
        return [] if isinstance(error, trio.Cancelled) else [error]
    return [inner for outer in error.exceptions for inner in errors_in(outer)]


def first_error(error: BaseException) -> BaseException:
    """The first of ``errors_in``."""
    return next(iter(errors_in(error)), error)


def only_error(error: BaseException) -> BaseException:
    """The one error of ``errors_in``; the group itself if there are several."""
    errors = errors_in(error)
    return errors[0] if len(errors) == 1 else error
