"""Whether the loop writes and syncs the next group itself, instead of handing it to the journal's thread.

Inside: the rule, and what it knows of earlier groups. Not inside: threads, files, clocks (``journal``).

A lone add waits for nothing but its sync. Handing it to a thread and back takes two switches of threads and
one more turn of the loop, about as long as the sync of a good SSD. But while the loop syncs, it serves no
peer. So it does so only for a group that would be alone in the thread too, and only while syncs are fast:

- the group is one small batch, and so was the group before. Batches that come together share one write in the
  thread, and the loop takes more of them meanwhile;
- groups were fast of late, in the thread too: a disk is known before the loop waits for it, and one that
  stalls holds the loop once (``ledger.runtime.loop_calls``).

Source: our own.
"""

from __future__ import annotations

from ledger.runtime.loop_calls import LoopCalls

LONE_BYTES_MAX = 32 << 10


class LoopSyncs:
    """See the module. Asked by the loop for each group; told of each group that was synced."""

    def __init__(self) -> None:
        self._calls = LoopCalls()
        self._was_lone = True

    def __repr__(self) -> str:
        return f"<LoopSyncs: {self._calls!r}, lone {self._was_lone}>"

    @property
    def may_sync(self) -> bool:
        """True if the loop may sync a lone group now."""
        return self._was_lone and self._calls.may_call

    @staticmethod
    def is_lone(batch_count: int, size_bytes: int) -> bool:
        """True if these batches are a group that gains nothing in the thread."""
        return batch_count == 1 and size_bytes <= LONE_BYTES_MAX

    def synced(self, batch_count: int, size_bytes: int, took_s: float) -> None:
        """A group was written and synced, by the loop or by the thread."""
        self._was_lone = self.is_lone(batch_count, size_bytes)
        self._calls.called(took_s)
