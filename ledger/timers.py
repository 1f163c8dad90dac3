"""Being called when time is up: one task for all who wait, however many there are.

Inside: ``Timers`` and the ``Timer`` that takes one back. Not inside: what happens then.
Always: a timer calls once, never early, never after it was taken back; while nobody waits no clock runs.

A cancel scope for each request costs more than sending it. Nearly all requests have one of a few time limits,
and nearly all are answered: so timers of one length stand in one row, the oldest first, and are taken out of
its middle for next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

_Row = dict["Timer", None]  # ordered: the oldest first


class Timer:
    """Made by ``Timers.after``."""

    __slots__ = ("_call", "_due", "_row")

    def __init__(self, row: _Row, due: float, call: Callable[[], None]) -> None:
        self._row, self._due, self._call = row, due, call

    def cancel(self) -> None:
        """Do not call, if that has not happened yet."""
        self._row.pop(self, None)


class Timers:
    """``run`` has to be running for anybody to be called."""

    def __init__(self) -> None:
        self._rows: dict[float, _Row] = {}  # by how long they wait
        self._nap = trio.CancelScope()

    def __repr__(self) -> str:
        return f"<Timers, {sum(map(len, self._rows.values()))} running>"

    def after(self, seconds: float, call: Callable[[], None]) -> Timer:
        """Have ``call()`` run after so many seconds, on the loop; it must not raise."""
        row = self._rows.get(seconds)
        if row is None:
            row = self._rows[seconds] = {}
        due = trio.current_time() + seconds
        timer = Timer(row, due, call)
        row[timer] = None
        if due < self._nap.deadline:
            self._nap.deadline = due
        return timer

    async def run(self) -> None:
        """Call whoever's time is up, until cancelled."""
        while True:
            # Between this line and the sleep nothing else runs, so no timer is overlooked.
            with trio.CancelScope(deadline=self._next_due()) as self._nap:
                await trio.sleep_forever()
            self._ring(trio.current_time())

    def _next_due(self) -> float:
        due = float("inf")
        for seconds, row in list(self._rows.items()):
            first = next(iter(row), None)
            if first is None:
                del self._rows[seconds]
            else:
                due = min(due, first._due)
        return due

    def _ring(self, now: float) -> None:
        for row in list(self._rows.values()):
            for timer in [timer for timer in row if timer._due <= now]:
                if timer in row:  # not taken back by one that was called before it
                    del row[timer]
                    timer._call()
