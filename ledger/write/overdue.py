"""Noticing an entry that is not confirmed in time, without a timer for each entry.

Inside: marks at regular times, waiting for the next one. Not inside: the consequence (``write.handle``).
Always: an entry is overdue at the earliest after ``TICKS`` whole ticks, at the latest one tick later.

Source: PendingAddOp.java (addEntryQuorumTimeout); docs/protocol.md 5.13.
"""

from __future__ import annotations

from collections import deque

import trio

from ledger.write.writer import LedgerWriter

TICKS = 4


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
