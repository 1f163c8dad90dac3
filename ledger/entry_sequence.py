"""Putting entries that come with ids, in any order, into the order in which they are written.

Inside: what waits behind a gap, which ids are taken. Not inside: writing (``write_handle``).
Always: entries leave in the order of their ids without a gap; no id leaves twice.

Apache's client sends an entry at once and only holds back its acknowledgement until the gap in front of it
is filled. Here the entry itself is held back. Callers cannot tell the difference, since nothing is promised
before the acknowledgement; but no entry lies on bookies behind a gap that a recovery would cut it off at, and
the lengths in entries grow with their ids.

Source: LedgerHandleAdv.java; reference section 5.10.
"""

from __future__ import annotations


class EntrySequence:
    """Entries of one ledger, from entry 0 on."""

    def __init__(self) -> None:
        self.next_id = 0  # the oldest entry that has not come
        self.waiting_bytes = 0
        self._waiting: dict[int, bytes] = {}

    @property
    def waiting_count(self) -> int:
        """Entries behind the gap."""
        return len(self._waiting)

    def is_taken(self, entry_id: int) -> bool:
        """Whether an entry with this id has come already."""
        return entry_id < self.next_id or entry_id in self._waiting

    def take(self, entry_id: int, payload: bytes) -> list[bytes]:
        """Take an entry; return the payloads without a gap now, from the ``next_id`` before the call on."""
        assert not self.is_taken(entry_id)
        if entry_id != self.next_id:
            self._waiting[entry_id] = payload
            self.waiting_bytes += len(payload)
            return []
        run = [payload]
        self.next_id += 1
        while (following := self._waiting.pop(self.next_id, None)) is not None:
            self.waiting_bytes -= len(following)
            run.append(following)
            self.next_id += 1
        return run
