"""The tasks that wait until an entry is confirmed, and the callbacks for every confirmation.

Inside: the entry that each task waits for, waking tasks, calling callbacks. Not inside: which entries are
confirmed (``writer``), the error of a wait that fails (``write.handle``).
Always: tasks are woken in the order of entries; a cancelled task is not woken.

Source: docs/known-bugs.md 52 (one queue, one waker).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import trio

SWEEP_MIN = 32

Confirmed = Callable[[int, BaseException | None], None]
"""Called with the LAC, and at the end also with the error that ended the handle."""


class Confirmations:
    """A heap of waiting tasks, and a list of callbacks."""

    def __init__(self) -> None:
        self.callbacks: list[Confirmed] = []
        self._waiters: list[tuple[int, int, list[trio.lowlevel.Task]]] = []  # an empty list: cancelled
        self._count = 0
        self._cancelled = 0  # waiters with an empty list

    def __len__(self) -> int:
        """Waiters held, including cancelled ones."""
        return len(self._waiters)

    async def wait(self, entry_id: int) -> None:
        """Return after ``confirm`` of this entry or a later one, or after ``wake_all``."""
        slot = [trio.lowlevel.current_task()]
        self._count += 1
        heapq.heappush(self._waiters, (entry_id, self._count, slot))

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            slot.clear()
            self._cancelled += 1
            self._sweep()
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def confirm(self, lac: int) -> None:
        """Wake the tasks that wait for entries up to this one."""
        waiters = self._waiters
        while waiters and waiters[0][0] <= lac:
            slot = heapq.heappop(waiters)[2]
            if not slot:
                self._cancelled -= 1
            for task in slot:
                trio.lowlevel.reschedule(task)

    def report(self, lac: int, error: BaseException | None) -> None:
        """Call all callbacks."""
        for callback in self.callbacks:
            callback(lac, error)

    def wake_all(self) -> None:
        """Wake every task: nothing more is confirmed."""
        waiters, self._waiters = self._waiters, []
        self._cancelled = 0
        for _, _, slot in waiters:
            for task in slot:
                trio.lowlevel.reschedule(task)

    def _sweep(self) -> None:
        # A caller that polls with a timeout must not leave a waiter behind each time.
        if self._cancelled > SWEEP_MIN and self._cancelled * 2 > len(self._waiters):
            self._waiters = [waiter for waiter in self._waiters if waiter[2]]
            heapq.heapify(self._waiters)
            self._cancelled = 0
