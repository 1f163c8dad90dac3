"""Turns for work that is cheap once and expensive in masses, such as waking long polls.

A connection does such work in slices. A slice has a place, and keeps it until the next step of the loop. So
one step of the loop runs a bounded number of slices, however many connections have work.

Inside: the places, and the order of waiting connections. Not inside: the work (``long_polls``,
``connection``).
Always: connections get places in the order in which they ask; a place is given back, also if its task is
cancelled.
"""

from __future__ import annotations

import trio

SLICES_MAX = 4  # in one step of the loop


class Turns:
    """See the module. On the loop."""

    def __init__(self, slices_max: int = SLICES_MAX) -> None:
        self._places = trio.Semaphore(slices_max)
        self.lists = trio.Semaphore(1)  # lists of entries are made one after the other, in a thread

    async def begin(self) -> None:
        """Take a place, at once if one is free. Call ``end`` after the slice."""
        try:
            self._places.acquire_nowait()
        except trio.WouldBlock:
            await self._places.acquire()

    async def end(self) -> None:
        """Let the loop go on, and give the place back in its next step. It is given back if cancelled."""
        try:
            await trio.lowlevel.checkpoint()
        finally:
            self._places.release()

    async def pause(self) -> None:
        """Between two slices of work that has waits of its own: let the loop go on."""
        await self.begin()
        await self.end()
