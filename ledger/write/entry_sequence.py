"""Putting entries that come with ids, in any order, into the order of their ids.

Inside: the entries after a gap, the ids that were submitted. Not inside: writing (``write.handle``).
Always: entries leave in the order of their ids without a gap; no id leaves twice.

Apache's client sends an entry at once and holds back only its acknowledgement until the gap before it is
filled. Here the entry itself is held back. Callers cannot see the difference, because nothing is promised
before the acknowledgement. But no entry lies on bookies after a gap, where a recovery would cut it off, and
the lengths in entries grow with their ids.

Source: LedgerHandleAdv.java; docs/protocol.md 5.10.
"""

from __future__ import annotations


class EntrySequence:
    """Entries of one ledger, from entry 0 on."""

    def __init__(self) -> None:
        self.next_id = 0  # the oldest entry that was not submitted
        self.waiting_bytes = 0
        self._waiting: dict[int, bytes] = {}

    @property
    def waiting_count(self) -> int:
        """Entries after the gap."""
        return len(self._waiting)

    def is_taken(self, entry_id: int) -> bool:
        """True if an entry with this id was submitted before."""
        return entry_id < self.next_id or entry_id in self._waiting

    def take(self, entry_id: int, payload: bytes) -> list[bytes]:
        """Take an entry; return the payloads that are ready now, from the old ``next_id`` on."""
        assert not self.is_taken(entry_id)  # the caller asks first
        if entry_id != self.next_id:
            self._waiting[entry_id] = payload
            self.waiting_bytes += len(payload)
            return []
        ready = [payload]
        self.next_id += 1
        while (following := self._waiting.pop(self.next_id, None)) is not None:
            self.waiting_bytes -= len(following)
            ready.append(following)
            self.next_id += 1
        return ready
