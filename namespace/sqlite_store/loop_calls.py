"""Whether the loop makes the next call of SQLite itself, instead of handing it to the store's thread.

Inside: the rule, and what it knows of earlier calls. Not inside: threads, SQLite (``store``, ``database``).

Most calls read or write a few pages that are in memory, and a write syncs once. Handing such a call to a
thread and back takes two switches of threads and a turn of the loop, often more than the call itself. But
meanwhile the loop serves no peer. So it writes only if no other call waits, and it makes calls only while
they are fast: for each millisecond that a slow call took, ``FAST_CALLS_PER_MS`` fast ones must follow in the
thread. So a disk that stalls holds the loop once, and the longer it did, the longer the loop leaves calls to
the thread. Reads and writes have a rule each: a disk may be slow to sync and have everything in memory.

The journal has the same rule for its syncs (``bookie.journal.loop_syncs``).

Source: our own.
"""

from __future__ import annotations

import math

FAST_S = 0.001  # a call that takes longer is slow
FAST_CALLS_FIRST = 16  # wanted before the first call of the loop
FAST_CALLS_PER_MS = 2
FAST_CALLS_MAX = 512  # wanted after the slowest calls: a disk that stalled once becomes trusted again


class LoopCalls:
    """See the module. Asked by the loop before each call; told of each call that was made."""

    def __init__(self) -> None:
        self._fast_calls_wanted = FAST_CALLS_FIRST

    def __repr__(self) -> str:
        return f"<LoopCalls: {self._fast_calls_wanted} more fast calls wanted>"

    @property
    def may_call(self) -> bool:
        """True if the loop may make a call now."""
        return not self._fast_calls_wanted

    def called(self, took_s: float) -> None:
        """A call was made, by the loop or by the thread."""
        if took_s > FAST_S:
            wanted = FAST_CALLS_PER_MS * math.ceil(took_s * 1000)
            self._fast_calls_wanted = min(max(wanted, self._fast_calls_wanted), FAST_CALLS_MAX)
        elif self._fast_calls_wanted:
            self._fast_calls_wanted -= 1
