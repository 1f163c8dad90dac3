"""The writes of a session's tasks: those that wait for the same turn are made in one transaction.

Inside: which writes are made together, their outcomes, cancellation. Not inside: the transaction
(``database``), threads (``store``).
Always: writes are made in the order in which they came; a write that fails undoes itself and no other; the
caller of a write that has begun gets its outcome, also if it is cancelled meanwhile.

A transaction is synced to disk, whatever it has in it. When a thousand logs are opened or rolled at once,
nearly all of their writes wait for one before them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import trio

from ledger.metadata_store.errors import ConnectionLostError
from ledger.metadata_store.sessions.session import Watched

TOGETHER_MAX = 64  # writes of one transaction; reads wait for it
TOGETHER_BYTES_MAX = 256 << 10  # of their data, unless one write has more

T_co = TypeVar("T_co", covariant=True)


class Write(Generic[T_co]):
    """A write, and what became of it.

    Args:
        work: Makes it in the tree; returns its result and the watches to fire.
        size_bytes, count: Of its data, and of its operations.
    """

    __slots__ = ("_error", "_result", "count", "is_begun", "path", "size_bytes", "work")

    _result: T_co

    def __init__(
        self, path: str, work: Callable[[], tuple[T_co, list[Watched]]], *, size_bytes: int, count: int
    ) -> None:
        self.path, self.work, self.size_bytes, self.count = path, work, size_bytes, count
        self.is_begun = False
        self._error: Exception | None = None

    def begin(self) -> None:
        """From now on it may be applied."""
        self.is_begun = True
        self._error = ConnectionLostError(self.path, "the write was interrupted; it may be applied")

    def settle(self, made: tuple[object, list[Watched]] | Exception) -> list[Watched]:
        """Its outcome is known; return the watches to fire."""
        if isinstance(made, Exception):
            self._error = made
            return []
        self._error, (self._result, touched) = None, made  # type: ignore[assignment]  # what ``work`` returned
        return touched

    def result(self) -> T_co:
        """The result; or raise its error."""
        if self._error is not None:
            raise self._error
        return self._result


class WaitingWrites:
    """See the module.

    Args:
        turn: Held around each call of the store.
        make: Makes these writes, in this order, and settles each; called with the turn, and not cancelled.
    """

    def __init__(self, turn: trio.Lock, make: Callable[[list[Write[object]]], Awaitable[None]]) -> None:
        self._turn, self._make = turn, make
        self._waiting: deque[Write[object]] = deque()

    async def make(self, write: Write[T_co]) -> T_co:
        """Make a write, with others or alone; return its result or raise its error.

        If it is cancelled, the write was not begun.
        """
        self._waiting.append(write)
        try:
            await self._turn.acquire()
        except BaseException as exc:
            if not write.is_begun:
                self._waiting.remove(write)
                raise
            if not isinstance(exc, trio.Cancelled):
                raise
            with trio.CancelScope(shield=True):  # until it is made: at most the busy timeout
                await self._turn.acquire()
        try:
            if not write.is_begun:
                with trio.CancelScope(shield=True):
                    await self._make(self._begun())
        finally:
            self._turn.release()
        return write.result()

    def _begun(self) -> list[Write[object]]:
        """The writes of the next transaction; the first one is that of the task that asks."""
        begun: list[Write[object]] = []
        size_bytes = 0
        while self._waiting and len(begun) < TOGETHER_MAX:
            size_bytes += self._waiting[0].size_bytes
            if begun and size_bytes > TOGETHER_BYTES_MAX:
                break
            write = self._waiting.popleft()
            write.begin()
            begun.append(write)
        return begun
