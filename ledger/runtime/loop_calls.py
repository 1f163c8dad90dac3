"""Whether the loop makes a short call that blocks itself, instead of handing it to a thread.

Inside: the rule, and what it knows of earlier calls. Not inside: threads and the calls: those of SQLite
(``sqlite_store``), and the syncs of a bookie's journal (``bookie.journal.journal``).

Handing a call to a thread and back takes two switches of threads and a turn of the loop, often more than the
call itself. But the loop serves no peer during the call. So it makes only calls that are known to be fast:

- of late they took at most ``FAST_S`` on average, those of the thread included. One call that took two or
  three times as long does not send the next ones to the thread, where they would take longer still;
- a call that took more than ``STALL_S`` shows that the disk stalls. For each millisecond that it took,
  ``CALLS_PER_MS`` others must follow in the thread. So a disk that stalls holds the loop once, and the longer
  it did, the longer the loop leaves calls to the thread.

Source: our own.
"""

from __future__ import annotations

import math

FAST_S = 0.001  # on average
STALL_S = 0.003  # a call that takes longer is a stall
CALLS_FIRST = 16  # wanted before the first call of the loop
CALLS_PER_MS = 2
CALLS_MAX = 512  # wanted after the longest stalls: a disk that stalled once becomes trusted again
AVERAGE_CALLS = 16  # about this many calls make the average


class LoopCalls:
    """See the module. The loop asks it before each call, and reports each call that was made."""

    def __init__(self) -> None:
        self.may_call = False  # the loop may make a call now
        self._wanted = CALLS_FIRST
        self._average_s = 0.0

    def __repr__(self) -> str:
        return f"<LoopCalls: {self._average_s * 1000:.1f} ms on average, {self._wanted} more wanted>"

    def called(self, took_s: float) -> None:
        """A call was made, by the loop or by the thread."""
        self._average_s += (min(took_s, STALL_S) - self._average_s) / AVERAGE_CALLS
        if took_s > STALL_S:
            self._wanted = min(max(CALLS_PER_MS * math.ceil(took_s * 1000), self._wanted), CALLS_MAX)
        elif self._wanted:
            self._wanted -= 1
        self.may_call = not self._wanted and self._average_s <= FAST_S
