"""A nursery for the tasks behind an object that a caller holds in ``async with``.

Always: leaving the block ends the tasks; what the caller's block raised comes out as it is, not wrapped in a
group together with the cancellation of tasks the caller knows nothing about.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def open_service_nursery() -> AsyncIterator[trio.Nursery]:
    """Yield a nursery that is cancelled when the block ends.

    A task that fails cancels the block; then its error is what comes out. One error comes out alone, several
    as a group.
    """
    raised: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            try:
                yield nursery
            except BaseException as exc:
                raised = exc
                raise
            finally:
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        errors = _errors_in(group)
        if raised is not None and (not errors or errors == [raised]):
            the_one: BaseException = raised
        elif len(errors) == 1:
            the_one = errors[0]
        else:
            raise
    else:
        return
    # Outside the handler, so that the error does not get the group as its context.
    raise the_one


def _errors_in(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """All that is no cancellation, flat."""
    errors: list[BaseException] = []
    for exc in group.exceptions:
        if isinstance(exc, BaseExceptionGroup):
            # A group that the caller itself raised stays whole only if it is the only thing; flat is fine
            # otherwise.
            errors += _errors_in(exc)
        elif not isinstance(exc, trio.Cancelled):
            errors.append(exc)
    return errors
