"""How far to read ahead, from the order in which a ledger's entries are read.

Inside: the rule, and its state for each ledger. Not inside: reading (``entrylog.reader``), caching
(``read_cache``).
Always: the state is bounded; a read that continues no other reads nothing ahead, so random reads cost nothing
extra.

A read continues an earlier one if its entry comes next after the entries already read, or a little later: a
bookie has only some entries of a striped ledger. Each continuation doubles the window, from 64 to 256 KiB.

Source: the read-ahead of Linux (mm/readahead.c) for the idea; docs/storage-format.md 8.6.
"""

from __future__ import annotations

WINDOW_BYTES_MIN = 64 << 10
WINDOW_BYTES_MAX = 256 << 10
GAP_MAX = 16  # ids that may be missing between the last entry read and the next
READERS_MAX = 4  # of one ledger that are distinguished
LEDGERS_MAX = 4096


class _Reader:
    """A sequential reader of a ledger: the last entry read for it, and its window."""

    __slots__ = ("last_entry_id", "window_bytes")

    def __init__(self, last_entry_id: int, window_bytes: int) -> None:
        self.last_entry_id = last_entry_id
        self.window_bytes = window_bytes


class EntryReadAhead:
    """The readers of one ledger directory. On the loop."""

    def __init__(self, *, window_bytes_max: int = WINDOW_BYTES_MAX) -> None:
        """``window_bytes_max`` 0: never read ahead."""
        self._window_bytes_max = window_bytes_max
        self._ledgers: dict[int, list[_Reader]] = {}  # least recently read first; the readers likewise

    def window_bytes(self, ledger_id: int, entry_id: int) -> int:
        """How many bytes to read for this entry, which no cache has; 0: the entry alone."""
        if not self._window_bytes_max:
            return 0
        readers = self._ledgers.pop(ledger_id, None)
        if readers is None:
            readers = []
            if len(self._ledgers) >= LEDGERS_MAX:
                del self._ledgers[next(iter(self._ledgers))]
        self._ledgers[ledger_id] = readers
        for at, reader in enumerate(readers):
            if reader.last_entry_id < entry_id <= reader.last_entry_id + 1 + GAP_MAX:
                readers.append(readers.pop(at))
                doubled = max(WINDOW_BYTES_MIN, 2 * reader.window_bytes)
                reader.window_bytes = min(doubled, self._window_bytes_max)
                reader.last_entry_id = entry_id
                return reader.window_bytes
        if len(readers) >= READERS_MAX:
            del readers[0]
        readers.append(_Reader(entry_id, 0))
        return 0

    def has_read(self, ledger_id: int, first_entry_id: int, last_entry_id: int) -> None:
        """A read has returned the entries from the first id to the last."""
        for reader in self._ledgers.get(ledger_id, ()):
            if reader.last_entry_id == first_entry_id:
                reader.last_entry_id = max(first_entry_id, last_entry_id)
                return

    def drop_ledger(self, ledger_id: int) -> None:
        self._ledgers.pop(ledger_id, None)
