"""Background tasks that live as long as the block of an ``async with``.

Always: an exception of the block is raised unchanged; a plain nursery would wrap it into a group.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def open_background() -> AsyncIterator[trio.Nursery]:
    """Yield a nursery whose tasks are cancelled when the block ends.

    If a task fails, the block is cancelled and the error is raised in a group.
    """
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        try:
            yield nursery
        except Exception as exc:
            failure = exc  # raised outside the nursery
        finally:
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
