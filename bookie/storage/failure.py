"""The first failed write or sync of a storage. After it nothing is acknowledged any more.

Inside: keeping and logging the first error, waking the tasks that wait for something that can no longer
happen. Not inside: stopping the bookie (``bookie.main``).
Always: the first error stays; later ones are ignored.

Source: BookieCriticalThread.java, BookieImpl.java (shutdown after an I/O error) for the purpose.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from bookie.errors import StorageFailedError

log = logging.getLogger(__name__)


class Failure:
    """See the module. On the loop."""

    def __init__(self) -> None:
        self.error: StorageFailedError | None = None
        self._has_failed = trio.Event()
        self._callbacks: list[Callable[[], None]] = []

    def call_back(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` after each reported failure, so that it can wake waiting tasks."""
        self._callbacks.append(callback)

    def report(self, error: BaseException, doing: str) -> None:
        """``doing`` has failed: the storage acknowledges nothing from now on."""
        if self.error is None:
            log.error("%s failed: %s", doing, error)
            if not isinstance(error, StorageFailedError):
                failure = StorageFailedError(f"{doing} failed: {error}")
                failure.__cause__ = error
                error = failure
            self.error = error
            self._has_failed.set()
        for callback in self._callbacks:
            callback()

    def check(self) -> None:
        """Raise ``StorageFailedError`` if the storage has failed."""
        if self.error is not None:
            raise StorageFailedError(f"the storage has failed: {self.error}") from self.error

    async def wait(self) -> StorageFailedError:
        """Wait for the failure and return its error."""
        await self._has_failed.wait()
        assert self.error is not None
        return self.error
