"""The lock that a writer holds now, which a promotion replaces by that of the target.

Inside: waiting for the loss of the present one. Not inside: acquiring and releasing locks.
Always: a lock that was replaced before it was lost is no loss.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from dlog.errors import LogLockLostError, LogUnavailableError, NamespaceLostError, WriteError
from dlog.write.segment_lifecycle import SegmentLifecycle
from ledger.metadata_store.lock import DistributedLock
from ledger.metadata_store.store import SessionState

# The log's segments and its lock in the namespace that it was promoted to; None if it was not.
Follow = Callable[[], Awaitable[tuple[SegmentLifecycle, DistributedLock] | None]]


class WriterNamespaceLostError(WriteError, NamespaceLostError):
    """The namespace of a writer is lost: its directory was moved, removed or replaced. Open it again."""


class LockWatch:
    """Holds the writer's present lock."""

    def __init__(self, lock: DistributedLock) -> None:
        self.lock = lock
        self._replaced = trio.Event()
        self._is_over = False

    def replace(self, lock: DistributedLock) -> DistributedLock:
        """Put another lock, which is held, in the place of the present one; return that one."""
        before, self.lock = self.lock, lock
        self._replaced.set()
        self._replaced = trio.Event()
        return before

    async def release(self) -> None:
        """Release the present lock."""
        self._is_over = True
        await self.lock.release()

    @property
    def is_session_over(self) -> bool:
        """True if the session that holds the lock has expired."""
        return self.lock.session.state is SessionState.EXPIRED

    def loss(self, log: str) -> WriteError:
        """The error of a writer that has lost the lock."""
        replaced = self.lock.session.replaced
        if replaced is not None:
            return WriterNamespaceLostError(f"log {log!r}: {replaced}; the writer has stopped")
        if self.is_session_over:
            return LogLockLostError(log, "the session with the metadata store expired")
        return LogLockLostError(log, "the lock's node was deleted")

    async def check_held(self, log: str) -> None:
        """Raise ``LogUnavailableError`` while it is not known whether the lock is held."""
        if not self.lock.held:
            raise LogUnavailableError(f"log {log!r}: out of touch with the metadata store")

    async def watch(self, on_lost: Callable[[], None]) -> None:
        """Call ``on_lost`` when the present lock is lost, in that moment; not if the writer releases it."""
        while not await self._is_lost(self.lock, on_lost):
            pass

    async def _is_lost(self, lock: DistributedLock, on_lost: Callable[[], None]) -> bool:
        """Wait until the lock is lost, or another one is in its place."""
        is_lost = False

        async def watch(scope: trio.CancelScope) -> None:
            nonlocal is_lost
            if self._is_over:
                await trio.sleep_forever()
            await lock.wait_lost()
            is_lost = True
            on_lost()
            scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, nursery.cancel_scope)
            while lock is self.lock:
                await self._replaced.wait()
            nursery.cancel_scope.cancel()
        return is_lost
