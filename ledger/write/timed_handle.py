"""A handle that measures how long its entries take to be confirmed.

Inside: the times at which entries were sent. Not inside: writing (``handle``).
Always: one clock reading for all entries that are sent together, and one for those confirmed together. The
client uses this class only with the setting ``statistics``, so that the other handles do nothing for it.
"""

from __future__ import annotations

from collections import deque

import trio

from ledger.runtime.statistics.histogram import Timing
from ledger.write.handle import WriteHandle


class TimedWriteHandle(WriteHandle):
    """See ``WriteHandle``. ``measure`` comes before the first entry."""

    def measure(self, timing: Timing) -> None:
        """Add the times of entries, from their sending to their confirmation, to this histogram."""
        self._timing = timing
        self._sent: deque[tuple[int, float]] = deque()  # the last entry sent at a time
        self._timed = -1  # the last entry that was measured

    def send_now(self) -> None:
        """See ``WriteHandle.send_now``."""
        if self._writer.unsent_count and self._make_error is None:
            self._sent.append((self._writer.last_pushed, trio.current_time()))
        super().send_now()

    def _confirm(self, entry_ids: range) -> None:
        lac, now_s, sent = entry_ids.stop - 1, trio.current_time(), self._sent
        while sent and self._timed < lac:
            last, sent_s = sent[0]
            self._timing.add(now_s - sent_s, min(last, lac) - self._timed)
            self._timed = min(last, lac)
            if last <= lac:
                sent.popleft()
        super()._confirm(entry_ids)
