"""Repeating a call to the metadata store after its connection was lost.

Inside: the loop. Not inside: whether the call may be repeated. Reads may; a write may if the call recognises
its own earlier success (``metadata_update``).

Source: ZooKeeperClient.java, ZooWorker.java.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from ledger.metadata_store.errors import ConnectionLostError

PASSES_CALLS_ON = True  # for ``shorten``
RETRY_PAUSE_S = 0.2  # while the store is out of reach each call fails at once, without a request

T = TypeVar("T")


async def retry_lost_connection(call: Callable[[], Awaitable[T]], *, timeout_s: float) -> T:
    """Await ``call()`` until it does not raise ``ConnectionLostError``; return its result.

    If cancelled, the last call may or may not have been applied.

    Args:
        timeout_s: How long to repeat it.

    Raises:
        ledger.metadata_store.errors.ConnectionLostError: The store stayed out of reach.
        Exception: Any other error of the call, at once.
    """
    deadline = trio.current_time() + timeout_s
    while True:
        try:
            return await call()
        except ConnectionLostError:
            if trio.current_time() >= deadline:
                raise
        await trio.sleep(RETRY_PAUSE_S)
