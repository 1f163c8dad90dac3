"""What waits for the entries of one writer: tasks for a confirmation or for capacity, and the look for a late
entry.

Inside: the entry that each task waits for, waking tasks, calling callbacks; the limits of what is in flight;
marks at regular times instead of a timer for each entry. Not inside: which entries are confirmed and counting
what is in flight (``writer``), the error of a wait that fails, and what follows from a late entry
(``handle``).
Always: tasks are woken in the order of entries; a cancelled task is not woken; a task that waits for capacity
is woken by an event, never by a clock: replies, failures and the end of the handle all lead to ``released``
or ``end``. An entry is overdue at the earliest after ``TICKS`` whole ticks, at the latest one tick later.

Source: LedgerHandle.java, PendingAddOp.java (addEntryQuorumTimeout); docs/protocol.md 5.13;
docs/known-bugs.md 48, 52 (one queue, one waker).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable

import trio

from ledger.write.writer import LedgerWriter

SWEEP_MIN = 32
TICKS = 4

Confirmed = Callable[[int, BaseException | None], None]
"""Called with the LAC, and at the end also with the error that ended the handle."""


class Confirmations:
    """A heap of waiting tasks, and a list of callbacks."""

    def __init__(self) -> None:
        self.callbacks: list[Confirmed] = []
        self.waiters: list[tuple[int, int, list[trio.lowlevel.Task]]] = []  # an empty list: cancelled
        self._count = 0
        self._cancelled = 0  # waiters with an empty list

    def __len__(self) -> int:
        """Waiters held, including cancelled ones."""
        return len(self.waiters)

    async def wait(self, entry_id: int) -> None:
        """Return after ``confirm`` of this entry or a later one, or after ``wake_all``."""
        slot = [trio.lowlevel.current_task()]
        self._count += 1
        heapq.heappush(self.waiters, (entry_id, self._count, slot))

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            slot.clear()
            self._cancelled += 1
            self._sweep()
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def confirm(self, lac: int) -> None:
        """Wake the tasks that wait for entries up to this one."""
        waiters = self.waiters
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
        waiters, self.waiters = self.waiters, []
        self._cancelled = 0
        for _, _, slot in waiters:
            for task in slot:
                trio.lowlevel.reschedule(task)

    def _sweep(self) -> None:
        # A caller that polls with a timeout must not leave a waiter behind each time.
        if self._cancelled > SWEEP_MIN and self._cancelled * 2 > len(self.waiters):
            self.waiters = [waiter for waiter in self.waiters if waiter[2]]
            heapq.heapify(self.waiters)
            self._cancelled = 0


class Window:
    """Compares a writer's entries in flight with their limits."""

    def __init__(self, writer: LedgerWriter, *, bytes_max: int, entries_max: int) -> None:
        self._writer, self._bytes_max, self._entries_max = writer, bytes_max, entries_max
        self.waiting = trio.lowlevel.ParkingLot()
        self._is_over = False
        self.waits = 0  # calls that had to wait

    def has_capacity(self) -> bool:
        """True if less than the limit is in flight, in bytes and in entries."""
        writer = self._writer
        return writer.bytes_in_flight < self._bytes_max and writer.entries_in_flight < self._entries_max

    async def wait(self, below_bytes: int | None = None) -> None:
        """Return when there is capacity, or after ``end``.

        Args:
            below_bytes: Also wait until fewer bytes than this are in flight.
        """
        bytes_max = self._bytes_max if below_bytes is None else below_bytes
        waits = False
        while not self._is_over:
            if self.has_capacity() and self._writer.bytes_in_flight < bytes_max:
                return
            if not waits:
                waits = True
                self.waits += 1
            await self.waiting.park()

    def released(self) -> None:
        """Less may be in flight now: wake the waiting tasks, if there is capacity."""
        if self.waiting and self.has_capacity():
            self.waiting.unpark_all()

    def end(self) -> None:
        """Nothing more is sent: no task waits any more."""
        self._is_over = True
        self.waiting.unpark_all()


class Overdue:
    """Watches one writer's LAC. Call ``tick`` every ``timeout / TICKS``."""

    def __init__(self) -> None:
        self._marks: deque[int] = deque()  # the last entry pushed at each of the latest ticks

    def tick(self, lac: int, last_pushed: int) -> int | None:
        """The oldest entry that was pushed ``TICKS`` ticks ago and is not confirmed; None: there is none."""
        self._marks.append(last_pushed)
        if len(self._marks) <= TICKS:
            return None
        return lac + 1 if self._marks.popleft() > lac else None


async def wait_overdue(writer: LedgerWriter, timeout_s: float) -> int:
    """Return the oldest entry as soon as one is overdue; until then, wait."""
    overdue, entry_id = Overdue(), None
    while entry_id is None:
        await trio.sleep(timeout_s / TICKS)
        entry_id = overdue.tick(writer.lac, writer.last_pushed)
    return entry_id
