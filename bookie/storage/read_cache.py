"""Entries that were read from the entry logs, cached in bounded memory.

Inside: bodies by ledger and location, and their eviction. Not inside: reading ahead (``read_ahead``), the
location of an entry (``index``).
Always: the cache never takes more than its limit. No cached body is stale: a look-up uses the location that
the index names now, and the bytes at a location never change.

The cache has two halves. New entries go into the new half. When it is full it becomes the old half, and the
previous old half is dropped. A hit in the old half moves the entry to the new half, so that frequently read
entries stay. That costs one or two dictionary look-ups for each entry, and no ordered list.

Source: ReadCache.java for the purpose (a ring of segments, forgotten one at a time).
"""

from __future__ import annotations

ENTRY_OVERHEAD_BYTES = 160  # of a bytes object, its key and its slot in a dictionary

_Half = dict[int, dict[int, bytes]]  # ledger -> location -> body


class ReadCache:
    """The read cache of one ledger directory. On the loop."""

    def __init__(self, bytes_max: int) -> None:
        """``bytes_max`` counts bodies and ``ENTRY_OVERHEAD_BYTES`` for each; with 0 nothing is cached."""
        assert bytes_max >= 0  # a validator of ``ReadConfig``
        self.hits = 0
        self.misses = 0
        self._half_bytes_max = bytes_max // 2
        self._new: _Half = {}
        self._old: _Half = {}
        self._new_bytes = 0
        self._old_bytes = 0

    def __repr__(self) -> str:
        return f"<ReadCache of {self.size_bytes} bytes, {self.hits} hits, {self.misses} misses>"

    @property
    def size_bytes(self) -> int:
        return self._new_bytes + self._old_bytes

    @property
    def count(self) -> int:
        return sum(map(len, self._new.values())) + sum(map(len, self._old.values()))

    def holds(self, ledger_id: int) -> bool:
        """True if an entry of the ledger is cached."""
        return ledger_id in self._new or ledger_id in self._old

    def get(self, ledger_id: int, location: int) -> bytes | None:
        """The entry at the location, if it is cached."""
        entries = self._new.get(ledger_id)
        if entries is not None and (body := entries.get(location)) is not None:
            self.hits += 1
            return body
        entries = self._old.get(ledger_id)
        if entries is None or (body := entries.pop(location, None)) is None:
            self.misses += 1
            return None
        self.hits += 1
        if not entries:
            del self._old[ledger_id]
        self._old_bytes -= len(body) + ENTRY_OVERHEAD_BYTES
        self.put(ledger_id, location, body)
        return body

    def put(self, ledger_id: int, location: int, body: bytes) -> None:
        """Cache an entry, unless it is larger than half of the cache."""
        size_bytes = len(body) + ENTRY_OVERHEAD_BYTES
        if size_bytes > self._half_bytes_max:
            return
        if self._new_bytes + size_bytes > self._half_bytes_max:
            self._old, self._old_bytes = self._new, self._new_bytes
            self._new, self._new_bytes = {}, 0
        entries = self._new.get(ledger_id)
        if entries is None:
            entries = self._new[ledger_id] = {}
        if location not in entries:  # two concurrent reads may both have missed it
            entries[location] = body
            self._new_bytes += size_bytes

    def drop_ledger(self, ledger_id: int) -> None:
        """Drop a deleted ledger's entries."""
        self._new_bytes -= _size_bytes(self._new.pop(ledger_id, {}))
        self._old_bytes -= _size_bytes(self._old.pop(ledger_id, {}))


def _size_bytes(entries: dict[int, bytes]) -> int:
    return sum(map(len, entries.values())) + ENTRY_OVERHEAD_BYTES * len(entries)
