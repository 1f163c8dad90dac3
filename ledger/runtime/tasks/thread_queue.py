"""What threads give to a loop without waiting, in order.

Inside: the queue, what its items hold until they are done, asking the loop to take it. Not inside: what is
done with an item.
Always: items are taken in the order in which they were put, before anything that the same thread calls
afterwards; the loop waits for no lock of a caller, so a signal handler may put an item while it interrupts
``put``. In a forked child nothing is queued, and each ``put`` raises.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import trio

from ledger.runtime.tasks.forks import call_in_child
from ledger.runtime.tasks.loop_thread import LoopThread

ITEM_BYTES = 1024  # what an item counts at least: its future and the loop's callback take as much

T = TypeVar("T")


class ThreadQueue(Generic[T]):
    """Items on their way to a loop."""

    def __init__(
        self, loop: LoopThread, take: Callable[[ThreadQueue[T], T], object], item_bytes: int = ITEM_BYTES
    ) -> None:
        """``take`` is called in the loop with the queue and each item; it must neither wait nor raise.

        It must not refer to the object that callers have, which is closed when nothing refers to it.
        ``item_bytes``: what an item counts at least.
        """
        self._loop, self._take, self._item_bytes = loop, take, item_bytes
        self._empty()
        call_in_child(self, ThreadQueue._empty)  # what is queued would keep the next call from the loop

    def _empty(self) -> None:
        self._items: deque[T] = deque()
        self._round, self._asked = 0, -1  # see ``ThreadCalls``
        self._counting = threading.RLock()  # of callers; the loop never takes it
        self._put_bytes = self._done_bytes = 0
        self._room = trio.Event()  # the loop's

    @property
    def held_bytes(self) -> int:
        """Bytes of items that are not done; in memory they take at most about twice as many."""
        return self._put_bytes - self._done_bytes

    def put(self, item: T, size_bytes: int) -> None:
        """Add an item. Raises what ``LoopThread.call_soon`` raises; then nothing will be taken any more.

        Args:
            size_bytes: Of its payload.
        """
        with self._counting:
            self._put_bytes += max(size_bytes, self._item_bytes)
        self._items.append(item)
        current = self._round  # read after the item is there, as in ``ThreadCalls.call_soon``
        if self._asked != current:
            self._loop.call_soon(self._drain)
            self._asked = current  # not before: a signal handler that comes in between must ask itself

    def _drain(self) -> None:
        self._round += 1
        for _ in range(len(self._items)):
            self._take(self, self._items.popleft())

    def done(self, size_bytes: int) -> None:
        """In the loop: an item with a payload of this size is no longer in memory."""
        self._done_bytes += max(size_bytes, self._item_bytes)
        self._room.set()

    async def wait_held_below(self, bytes_max: int) -> None:
        """In the loop: return when items hold fewer bytes than this."""
        while self.held_bytes >= bytes_max:
            if self._room.is_set():
                self._room = trio.Event()
            await self._room.wait()
