"""The bound of one writer's bytes in flight, and the tasks that wait for capacity below it.

Inside: the limits, waiting. Not inside: counting (``writer``).
Always: a waiting task is woken by an event, never by a clock: replies, failures and the end of the handle all
lead to ``released`` or ``end``.

Source: LedgerHandle.java; docs/known-bugs.md 48.
"""

from __future__ import annotations

import trio

from ledger.write.writer import LedgerWriter


class Window:
    """Compares a writer's entries in flight with their limits."""

    def __init__(self, writer: LedgerWriter, *, bytes_max: int, entries_max: int) -> None:
        self._writer, self._bytes_max, self._entries_max = writer, bytes_max, entries_max
        self._waiting = trio.lowlevel.ParkingLot()
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
            await self._waiting.park()

    def released(self) -> None:
        """Less may be in flight now: wake the waiting tasks, if there is capacity."""
        if self._waiting and self.has_capacity():
            self._waiting.unpark_all()

    def end(self) -> None:
        """Nothing more is sent: no task waits any more."""
        self._is_over = True
        self._waiting.unpark_all()
