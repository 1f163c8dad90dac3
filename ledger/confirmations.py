"""Tasks that wait until an entry is confirmed.

Inside: who waits for which entry, waking them. Not inside: what is confirmed (``writer``), why a wait fails
(``write_handle``).
Always: waking is in the order of entries; a task that was cancelled is not woken.

Source: lessons row 52 (one queue, one waker).
"""

from __future__ import annotations

import heapq

import trio

SWEEP_MIN = 32


class Confirmations:
    """A heap of waiting tasks."""

    def __init__(self) -> None:
        self._waiters: list[tuple[int, int, list[trio.lowlevel.Task]]] = []  # an empty list: gone
        self._count = 0
        self._gone = 0  # of them, empty

    def __len__(self) -> int:
        """Slots held, those of cancelled waits included."""
        return len(self._waiters)

    async def wait(self, entry_id: int) -> None:
        """Return after ``confirm`` of this entry or a later one, or after ``wake_all``."""
        slot = [trio.lowlevel.current_task()]
        self._count += 1
        heapq.heappush(self._waiters, (entry_id, self._count, slot))

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            slot.clear()
            self._gone += 1
            self._sweep()
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def confirm(self, lac: int) -> None:
        """Wake those who wait for entries up to this one."""
        waiters = self._waiters
        while waiters and waiters[0][0] <= lac:
            slot = heapq.heappop(waiters)[2]
            if not slot:
                self._gone -= 1
            for task in slot:
                trio.lowlevel.reschedule(task)

    def wake_all(self) -> None:
        """Nothing more will be confirmed."""
        waiters, self._waiters = self._waiters, []
        self._gone = 0
        for _, _, slot in waiters:
            for task in slot:
                trio.lowlevel.reschedule(task)

    def _sweep(self) -> None:
        # Whoever waits again and again for an entry that does not come must not fill memory.
        if self._gone > SWEEP_MIN and self._gone * 2 > len(self._waiters):
            self._waiters = [waiter for waiter in self._waiters if waiter[2]]
            heapq.heapify(self._waiters)
            self._gone = 0
