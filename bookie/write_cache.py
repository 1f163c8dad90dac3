"""Entries that are not in the entry logs yet.

Inside: the active cache, the sealed ones, lookups. Not inside: when to seal and flush, and how much memory
all caches together may take (``storage``).
Always: an entry is in here from the moment it is staged until the index that names it is durable; a
sealed cache never changes; the oldest is flushed first, and one that could not be flushed stays.

Bodies are the immutable ``bytes`` cut out of the frames, shared with the journal: one copy of each entry.

Source: WriteCache.java for the purpose; reference on bookie storage 8.1 (G) and 8.5 for the shape.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import attrs

from bookie.ledgers import LedgerData, LedgerRecord

ENTRY_OVERHEAD_BYTES = 128  # of a bytes object, its dictionary slot and its key


@attrs.frozen(eq=False)
class SealedCache:
    """One epoch: all that was staged between two seals, and what becomes forgettable with it."""

    epoch: int
    entries: dict[int, dict[int, bytes]]  # ledger -> entry -> body
    ledgers: Sequence[tuple[int, LedgerData]]  # ledger data changed since the epoch before


class WriteCache:
    """The caches of one ledger directory. On the loop, all of it."""

    def __init__(self) -> None:
        self.sealed: deque[SealedCache] = deque()  # oldest first
        self._active: dict[int, dict[int, bytes]] = {}
        self._records: list[LedgerRecord] = []  # those that have entries in the active cache

    @property
    def is_empty(self) -> bool:
        return not self._active

    def begin(self, record: LedgerRecord) -> dict[int, bytes]:
        """The dictionary that takes the ledger's entries until the next seal."""
        assert record.active is None
        assert record.ledger_id not in self._active
        entries: dict[int, bytes] = {}
        record.active = self._active[record.ledger_id] = entries
        self._records.append(record)
        return entries

    def records(self) -> Sequence[LedgerRecord]:
        """The ledgers that have entries in the active cache."""
        return self._records

    def seal(self, epoch: int, ledgers: Sequence[tuple[int, LedgerData]]) -> SealedCache:
        """Close the active cache and start another."""
        for record in self._records:
            record.active = None
        sealed = SealedCache(epoch, self._active, ledgers)
        self.sealed.append(sealed)
        self._active, self._records = {}, []
        return sealed

    def remove_flushed(self, epoch: int) -> None:
        """The oldest sealed cache is durable in the entry logs and the index."""
        flushed = self.sealed.popleft()
        assert flushed.epoch == epoch

    def get(self, record: LedgerRecord, entry_id: int) -> bytes | None:
        """The entry's body, the newest if it was added twice."""
        active = record.active
        if active is not None and (body := active.get(entry_id)) is not None:
            return body
        for sealed in reversed(self.sealed):
            if sealed.epoch < record.first_epoch:
                break  # of a ledger with this id that was deleted
            entries = sealed.entries.get(record.ledger_id)
            if entries is not None and (body := entries.get(entry_id)) is not None:
                return body
        return None

    def entry_ids(self, record: LedgerRecord) -> set[int]:
        """Ids of the ledger's entries in all caches."""
        ids = set(record.active or ())
        for sealed in self.sealed:
            if sealed.epoch >= record.first_epoch:
                ids.update(sealed.entries.get(record.ledger_id, ()))
        return ids

    def drop_ledger(self, record: LedgerRecord) -> int:
        """Forget a deleted ledger's unflushed entries; sealed ones are flushed and deleted after that.

        Returns how much memory that gives back, about.
        """
        freed = 0
        if record.active is not None:
            freed = sum(map(len, record.active.values())) + ENTRY_OVERHEAD_BYTES * len(record.active)
            del self._active[record.ledger_id]
            self._records.remove(record)
            record.active = None
        return freed
