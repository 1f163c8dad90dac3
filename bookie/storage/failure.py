"""The first failed write or sync of a storage. After it nothing is acknowledged any more.

Also an unexpected error in the middle of a change of several steps: an entry may then be in the cache and not
in the journal, or a cache sealed and not flushed. A later acknowledgement would rest on it, so the bookie
stops, and the next start replays the journal.

Inside: keeping and logging the first error, waking the tasks that wait for something that can no longer
happen. Not inside: stopping the bookie (``bookie.bookie``), errors that end one connection or one round
(``ledger.runtime.tasks.failure_domain``).
Always: the first error stays; later ones are ignored. A lack of space while the storage starts is no failure:
it stays open for reads, with what it could not flush in memory and in the journal.

Source: BookieCriticalThread.java, BookieImpl.java (shutdown after an I/O error) for the purpose.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ParamSpec

import trio

from bookie.disk.disk import no_space
from bookie.errors import StorageFailedError
from ledger.runtime.log_lines import get_logger

P = ParamSpec("P")
log = get_logger(__name__)


class Failure:
    """See the module. On the loop."""

    def __init__(self) -> None:
        self.error: StorageFailedError | None = None
        self.is_starting = True
        self.full: OSError | None = None  # the start found no space for what it had to write
        self._has_failed = trio.Event()
        self._callbacks: list[Callable[[], None]] = []

    def call_back(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` after each reported failure, so that it can wake waiting tasks."""
        self._callbacks.append(callback)

    def report(self, error: BaseException, doing: str) -> None:
        """``doing`` has failed: the storage acknowledges nothing from now on."""
        if self.error is None:
            trace = None if isinstance(error, (StorageFailedError, OSError)) else error
            log.error("%s failed: %s", doing, str(error) or repr(error), exc_info=trace)
            if not isinstance(error, StorageFailedError):
                failure = StorageFailedError(f"{doing} failed: {str(error) or repr(error)}")
                failure.__cause__ = error
                error = failure
            self.error = error
            self._has_failed.set()
        for callback in self._callbacks:
            callback()

    def hold(self, error: BaseException) -> bool:
        """Note a lack of space while the storage starts, and continue; False for any other error."""
        full = no_space(error)
        if full is None or not self.is_starting or self.error is not None:
            return False
        if self.full is None:
            log.warning("the disk is full: %s. Stored entries are served, and none is added", full)
            self.full = full
        for callback in self._callbacks:
            callback()
        return True

    def half_made(self, error: Exception, doing: str) -> StorageFailedError:
        """Report an error out of a change of several steps; return the one to raise in its place."""
        self.report(error, doing)
        return StorageFailedError(f"the storage has failed: {self.error}")

    def guard(self, call: Callable[P, None], doing: str) -> Callable[P, None]:
        """``call``, for a loop whose callbacks must not raise: an error is reported instead."""

        def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                call(*args, **kwargs)
            except Exception as exc:
                self.report(exc, doing)

        return guarded

    async def watch(self, work: Callable[[], Awaitable[None]], doing: str) -> None:
        """Do work of the storage in the background; an unexpected error in it is reported."""
        try:
            await work()
        except Exception as exc:
            self.report(exc, doing)

    def check(self) -> None:
        """Raise ``StorageFailedError`` if the storage has failed."""
        if self.error is not None:
            raise StorageFailedError(f"the storage has failed: {self.error}") from self.error

    async def wait(self) -> StorageFailedError:
        """Wait for the failure and return its error."""
        await self._has_failed.wait()
        assert self.error is not None  # ``report`` sets it before it sets the event
        return self.error
