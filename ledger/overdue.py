"""Noticing an entry that is not confirmed in time, without a timer for each.

Inside: marks at regular times. Not inside: the clock; what then happens (``write_handle``).
Always: an entry is overdue at the earliest after ``ticks`` whole ticks, at the latest one tick later.

Source: PendingAddOp.java (addEntryQuorumTimeout); reference section 5.13.
"""

from __future__ import annotations

from collections import deque

TICKS = 4


class Overdue:
    """Watches one writer's LAC. Call ``tick`` every ``timeout / TICKS``."""

    def __init__(self) -> None:
        self._marks: deque[int] = deque()  # last entry pushed at the latest ticks

    def tick(self, lac: int, last_pushed: int) -> int | None:
        """The oldest entry that was pushed ``TICKS`` ticks ago and is still not confirmed; None: none is."""
        self._marks.append(last_pushed)
        if len(self._marks) <= TICKS:
            return None
        return lac + 1 if self._marks.popleft() > lac else None
