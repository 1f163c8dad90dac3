"""The location of each entry: the interface of a ledger directory's index.

Inside: the methods that the engine calls, and their arguments. Not inside: the stored form (``chunk_index``,
``page_index``), entry logs, caches of entries.
Always: an index reports "no such entry" only for an entry that was never put, or that was deleted. Data that
it cannot read are an error. Lookups are valid only after ``mark_complete``; ``is_complete`` reports that. The
index can be rebuilt from the entry logs, except for keys, fences and explicit LACs.

Only the directory's storage thread writes; any thread may read at any time. A read sees a state between two
atomic steps of a write. New entries stay in the write cache until the loop has received the result of the
write.

Source: LedgerCache.java, EntryLocationIndex.java; docs/storage-format.md 5.1, 12.1.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs

from bookie.ledger_record import LedgerData


@attrs.frozen
class EntryRange:
    """Entries of one ledger: ascending ids and their locations."""

    ledger_id: int
    entry_ids: Sequence[int]
    locations: Sequence[int]


@attrs.frozen
class LedgerMove:
    """Entries of one ledger that compaction has copied: ascending ids, old and new locations."""

    ledger_id: int
    entry_ids: Sequence[int]
    old_locations: Sequence[int]
    new_locations: Sequence[int]


@attrs.frozen
class DamagedRange:
    """Consecutive entries whose locations cannot be read.

    ``remains``: what the damaged bytes name as locations. Any of them may be wrong.
    """

    ledger_id: int
    entry_ids: range
    remains: Mapping[int, int]


class EntryIndex(abc.ABC):
    """The index of one ledger directory.

    ``OSError`` if its disk fails; ``FormatError`` if its stored data are damaged. After either the index is
    unchanged, and the error does not mean that the entry is absent.
    """

    # --- reading; any thread. An id above the greatest possible one, 2**63 - 1, is never found. ---

    @abc.abstractmethod
    def locate(self, ledger_id: int, entry_id: int, count_max: int = 1) -> Sequence[int]:
        """Locations of consecutive entries from ``entry_id``; empty: no such entry.

        At least one location if the entry exists, at most ``count_max``. There may be fewer than exist; the
        result ends at a gap.
        """

    def following(self, ledger_id: int, entry_id: int, count_max: int) -> EntryRange:
        """Entries from this one on, also after gaps; empty if this one does not exist.

        For reading ahead; there may be fewer than exist. A striped ledger has a gap after every few entries.
        """
        locations = self.locate(ledger_id, entry_id, count_max)
        return EntryRange(ledger_id, range(entry_id, entry_id + len(locations)), locations)

    @abc.abstractmethod
    def last_entry_id(self, ledger_id: int) -> int:
        """The greatest indexed entry id; -1 if there is none."""

    @abc.abstractmethod
    def ranges(self, ledger_id: int, first_entry_id: int = 0) -> Iterator[EntryRange]:
        """All indexed entries, ascending, in ranges of at most a few thousand.

        ``first_entry_id``: begin with the range that contains or would contain this entry.
        """

    def entry_ids(self, ledger_id: int) -> list[int]:
        """All indexed entry ids, ascending."""
        ids: list[int] = []
        for entry_range in self.ranges(ledger_id):
            ids += entry_range.entry_ids
        return ids

    @abc.abstractmethod
    def ledgers(self) -> Iterator[tuple[int, LedgerData]]:
        """The stored data of all ledgers, in order of their ids."""

    def damaged_ranges(self, ledger_id: int) -> list[DamagedRange]:
        """The parts of a ledger's index that cannot be read and that ``replace`` can store again."""
        return []

    @property
    @abc.abstractmethod
    def is_complete(self) -> bool:
        """False for an index just created: the bookie is new, or its index was lost."""

    @abc.abstractmethod
    def forget_cached(self) -> None:
        """Drop the data cached by lookups. Each write does this itself."""

    # --- writing; in the storage thread ---

    @abc.abstractmethod
    def put(self, ranges: Iterable[EntryRange], ledgers: Iterable[tuple[int, LedgerData]] = ()) -> None:
        """Add entries, then ledger data. A new location replaces an old one. Durable after ``sync``.

        Not atomic: a crash leaves a part of the entries, and replay puts all of them again.
        """

    @abc.abstractmethod
    def relocate(self, moves: Iterable[LedgerMove]) -> list[list[int]]:
        """Compare and set: an entry moves only if its old location is still indexed. Durable after ``sync``.

        Returns, for each move, the ids that moved. The other entries were added again, moved or deleted
        meanwhile, so their copies are dead. At every moment, also after a crash, each entry has its old
        location or its new one.
        """

    @abc.abstractmethod
    def delete_ledger(self, ledger_id: int) -> None:
        """Delete a ledger's entries and data. Durable after ``sync``."""

    def replace(self, damaged: DamagedRange, locations: Mapping[int, int]) -> bool:
        """Store a damaged range again. From then on the other entries of the range do not exist.

        Durable on return. False if the range can be read by now, or never can be replaced: nothing has
        changed then.
        """
        return False

    @abc.abstractmethod
    def mark_complete(self) -> None:
        """Record that all entries of the entry logs are indexed. Durable after ``sync``."""

    @abc.abstractmethod
    def sync(self) -> None:
        """Return when all earlier writes are on stable storage."""

    @abc.abstractmethod
    def close(self) -> None: ...
