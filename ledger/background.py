"""Tasks that serve the block of an ``async with`` and end with it.

Always: what the block raised comes out as it is; a nursery would wrap it into a group.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def open_background() -> AsyncIterator[trio.Nursery]:
    """Yield a nursery whose tasks are cancelled when the block is left.

    A task that fails cancels the block, and its error comes out in a group.
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
