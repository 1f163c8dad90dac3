"""Reading entries wherever they are: write cache, then index and entry log.

Inside: the order of looking, runs of neighbours. Not inside: the places themselves.
Always: an entry is looked for in the caches and then in the index without a pause between, since a flush
moves it from here to there; "no such entry" is said only if both know nothing of it.

Source: SingleDirectoryDbLedgerStorage.java (doGetEntry, read-ahead); reference on bookie storage 8.7.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from bookie.disk import Disk
from bookie.entry_log_reader import EntryLogReader
from bookie.errors import EntryUnreadableError, FormatError, NoEntryError, NoLedgerError
from bookie.index import EntryIndex
from bookie.ledgers import LedgerRecord
from bookie.write_cache import WriteCache


class EntryReads:
    """Reads of one ledger directory. On the loop."""

    def __init__(
        self,
        disk: Disk,
        ledgers: Mapping[int, LedgerRecord],
        deleting: Collection[int],
        cache: WriteCache,
        index: EntryIndex,
        reader: EntryLogReader,
    ) -> None:
        self._disk = disk
        self._ledgers = ledgers
        self._deleting = deleting  # ledgers whose old index records are still to be deleted
        self._cache = cache
        self._index = index
        self._reader = reader

    async def read(self, ledger_id: int, entry_id: int) -> bytes:
        """See ``Storage.read``."""
        record = self._known(ledger_id)
        if (body := self._cache.get(record, entry_id)) is not None:
            return body
        found = self._locate(record, entry_id, 1)
        if not found:
            raise NoEntryError(ledger_id, entry_id)
        try:
            return await self._reader.read(ledger_id, entry_id, found[0])
        except EntryUnreadableError:
            # It may have been moved or deleted meanwhile; only what the index says now counts.
            self._index.forget_cached()
            moved_to = self._locate(self._known(ledger_id), entry_id, 1)
            if not moved_to or moved_to[0] == found[0]:
                raise
            return await self._reader.read(ledger_id, entry_id, moved_to[0])

    async def read_run(self, ledger_id: int, first: int, count_max: int, size_bytes_max: int) -> list[bytes]:
        """See ``Storage.read_run``."""
        record = self._known(ledger_id)
        bodies: list[bytes] = []
        used = 0
        while len(bodies) < count_max:
            entry_id = first + len(bodies)
            body = self._cache.get(record, entry_id)
            if body is not None:
                used += len(body) + 4
                if used > size_bytes_max and bodies:
                    break
                bodies.append(body)
                continue
            try:
                found = self._locate(record, entry_id, count_max - len(bodies))
                left = size_bytes_max - used
                if not found or (left <= 0 and bodies):
                    break
                more = await self._reader.read_run(ledger_id, entry_id, found, left)
            except EntryUnreadableError:
                if bodies:
                    break
                return [await self.read(ledger_id, first)]
            more_bytes = sum(map(len, more)) + 4 * len(more)
            if bodies and used + more_bytes > size_bytes_max:  # the first of a run may be too large
                break
            used += more_bytes
            bodies += more
            if used >= size_bytes_max:
                break
        if not bodies:
            raise NoEntryError(ledger_id, first)
        return bodies

    async def entry_ids(self, ledger_id: int) -> list[int]:
        """See ``Storage.entry_ids``."""
        record = self._known(ledger_id)
        ids = self._cache.entry_ids(record)  # before the index: an entry goes from here to there
        if ledger_id not in self._deleting:
            ids.update(await self._disk.run(self._index.entry_ids, ledger_id))
        return sorted(ids)

    def _known(self, ledger_id: int) -> LedgerRecord:
        record = self._ledgers.get(ledger_id)
        if record is None:
            raise NoLedgerError(ledger_id)
        return record

    def _locate(self, record: LedgerRecord, entry_id: int, count_max: int) -> Sequence[int]:
        if record.ledger_id in self._deleting:
            return ()
        try:
            return self._index.locate(record.ledger_id, entry_id, count_max)
        except (OSError, FormatError) as exc:
            raise EntryUnreadableError(record.ledger_id, entry_id, f"the index fails: {exc}") from exc
