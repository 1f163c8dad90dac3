"""Entries that are not in the entry logs yet.

Inside: the active cache, the sealed caches, look-ups. Not inside: when to seal and flush, and how much memory
all caches together may take (``storage``).
Always: an entry stays in a cache from the moment it is staged until the index that names it is durable; a
sealed cache never changes while it may be flushed; the oldest cache is flushed first and stays if its flush
fails.

Bodies are the immutable ``bytes`` cut out of the frames. The journal shares them: one copy of each entry.

Source: WriteCache.java for the purpose; docs/storage-format.md 8.2.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import attrs

from bookie.ledger_record import LedgerData, LedgerRecord

ENTRY_OVERHEAD_BYTES = 128  # of a bytes object, its dictionary slot and its key


@attrs.frozen(eq=False)
class SealedCache:
    """All that was staged between two checkpoints, and the ledger data to be stored with it."""

    checkpoint_id: int
    entries: dict[int, dict[int, bytes]]  # ledger -> entry -> body
    ledgers: Sequence[tuple[int, LedgerData]]  # ledger data changed since the checkpoint before


class WriteCache:
    """The caches of one ledger directory. Used on the loop only."""

    def __init__(self) -> None:
        self.sealed: deque[SealedCache] = deque()  # oldest first
        self._active: dict[int, dict[int, bytes]] = {}
        self._records: list[LedgerRecord] = []  # of the ledgers that have entries in the active cache

    @property
    def is_empty(self) -> bool:
        """True if the active cache has no entry."""
        return not self._active

    def begin(self, record: LedgerRecord) -> dict[int, bytes]:
        """Create the dictionary that takes the ledger's entries until the next seal."""
        # Only ``Storage.stage_entry`` calls, and only without it; ``seal`` and ``drop_ledger`` clear both.
        assert record.active is None and record.ledger_id not in self._active  # noqa: PT018
        entries: dict[int, bytes] = {}
        record.active = self._active[record.ledger_id] = entries
        self._records.append(record)
        return entries

    def records(self) -> Sequence[LedgerRecord]:
        """The ledgers that have entries in the active cache."""
        return self._records

    def seal(self, checkpoint_id: int, ledgers: Sequence[tuple[int, LedgerData]]) -> SealedCache:
        """Seal the active cache and start another."""
        for record in self._records:
            record.active = None
        sealed = SealedCache(checkpoint_id, self._active, ledgers)
        self.sealed.append(sealed)
        self._active, self._records = {}, []
        return sealed

    def remove_flushed(self, checkpoint_id: int) -> None:
        """Remove the oldest sealed cache: it is durable in the entry logs and the index."""
        # One storage thread flushes in the order of ``seal``.
        if (oldest := self.sealed[0].checkpoint_id) != checkpoint_id:
            raise AssertionError(f"checkpoint {checkpoint_id} was flushed before {oldest}")
        self.sealed.popleft()

    def get(self, record: LedgerRecord, entry_id: int) -> bytes | None:
        """The entry's body; the newest one if the entry was added twice."""
        active = record.active
        if active is not None and (body := active.get(entry_id)) is not None:
            return body
        for sealed in reversed(self.sealed):
            if sealed.checkpoint_id < record.first_checkpoint_id:
                break  # of a deleted ledger that had this id
            entries = sealed.entries.get(record.ledger_id)
            if entries is not None and (body := entries.get(entry_id)) is not None:
                return body
        return None

    def entry_ids(self, record: LedgerRecord) -> set[int]:
        """Ids of the ledger's entries in all caches."""
        ids = set(record.active or ())
        for sealed in self.sealed:
            if sealed.checkpoint_id >= record.first_checkpoint_id:
                ids.update(sealed.entries.get(record.ledger_id, ()))
        return ids

    def drop_ledger(self, record: LedgerRecord) -> int:
        """Forget a deleted ledger's entries in the active cache. Return about how many bytes that frees.

        Entries in sealed caches are flushed first and deleted after that.
        """
        freed_bytes = 0
        if record.active is not None:
            freed_bytes = sum(map(len, record.active.values())) + ENTRY_OVERHEAD_BYTES * len(record.active)
            del self._active[record.ledger_id]
            self._records.remove(record)
            record.active = None
        return freed_bytes

    def drop_sealed(self, ledger_id: int) -> int:
        """Forget a ledger's entries in sealed caches, of which none will be flushed; as ``drop_ledger``."""
        freed_bytes = 0
        for sealed in self.sealed:
            entries = sealed.entries.pop(ledger_id, {})
            freed_bytes += sum(map(len, entries.values())) + ENTRY_OVERHEAD_BYTES * len(entries)
        return freed_bytes
