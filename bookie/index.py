"""Where each entry lies: the interface of a ledger directory's index.

Inside: the methods the engine calls, the values they take. Not inside: how it is stored (``chunk_index``),
entry logs, caches of entries.
Always: an index says "no such entry" only of what was never put, or was deleted; what it cannot read is an
error. ``is_complete`` tells whether it was complete when it was made: until then nobody may ask it. All of
it can be derived from the entry logs, but for keys, fences and explicit LACs.

One thread at a time writes, which is the directory's storage thread; any thread may read meanwhile. A read
sees a state between two atomic steps of a write, and what a write adds is in the write cache until the loop
has been told of it.

Source: LedgerCache.java, EntryLocationIndex.java; reference on bookie storage 7.2, 8.2, 8.8.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator, Sequence

import attrs

from bookie.ledgers import LedgerData


@attrs.frozen
class LedgerRun:
    """Entries of one ledger that were appended to one log: ascending ids and their locations."""

    ledger_id: int
    entry_ids: Sequence[int]
    locations: Sequence[int]


@attrs.frozen
class LedgerMove:
    """Entries of one ledger that were copied elsewhere: ascending ids, where from, where to."""

    ledger_id: int
    entry_ids: Sequence[int]
    old_locations: Sequence[int]
    new_locations: Sequence[int]


class EntryIndex(abc.ABC):
    """The index of one ledger directory.

    ``OSError`` when its disk fails, ``FormatError`` for stored data that cannot be what was written; after
    either the index is as it was, and says nothing about the entry that was asked for.
    """

    # --- reading; any thread. Behind the greatest id an entry can have, 2**63 - 1, there is nothing. ---

    @abc.abstractmethod
    def locate(self, ledger_id: int, entry_id: int, count_max: int = 1) -> Sequence[int]:
        """Locations of consecutive entries from ``entry_id``; empty: no such entry.

        At least one if the entry exists, at most ``count_max``; perhaps fewer than exist, never one behind
        a gap.
        """

    def following(self, ledger_id: int, entry_id: int, count_max: int) -> LedgerRun:
        """Entries from this one on, those behind a gap too; empty if this one does not exist.

        For reading ahead: perhaps fewer than exist. A striped ledger has a gap at every few entries.
        """
        locations = self.locate(ledger_id, entry_id, count_max)
        return LedgerRun(ledger_id, range(entry_id, entry_id + len(locations)), locations)

    @abc.abstractmethod
    def last_entry_id(self, ledger_id: int) -> int:
        """The greatest indexed entry id; -1: none."""

    @abc.abstractmethod
    def runs(self, ledger_id: int, first_entry_id: int = 0) -> Iterator[LedgerRun]:
        """All indexed entries, ascending, in pieces of at most some thousand.

        ``first_entry_id``: from the piece on that this entry is in or would be in.
        """

    def entry_ids(self, ledger_id: int) -> list[int]:
        """All indexed entry ids, ascending."""
        ids: list[int] = []
        for run in self.runs(ledger_id):
            ids += run.entry_ids
        return ids

    @abc.abstractmethod
    def ledgers(self) -> Iterator[tuple[int, LedgerData]]:
        """The stored data of all ledgers, in order of their ids."""

    @property
    @abc.abstractmethod
    def is_complete(self) -> bool:
        """False for an index just created: then either the bookie is new or its index was lost."""

    @abc.abstractmethod
    def forget_cached(self) -> None:
        """Drop what lookups have cached. Writes do it by themselves."""

    # --- writing; in the storage thread ---

    @abc.abstractmethod
    def put(self, runs: Iterable[LedgerRun], ledgers: Iterable[tuple[int, LedgerData]] = ()) -> None:
        """Add entries, the new location winning; then ledger data. Durable after ``sync``.

        Not atomic: a crash leaves some of it, which replay puts again.
        """

    @abc.abstractmethod
    def relocate(self, moves: Iterable[LedgerMove]) -> list[list[int]]:
        """Compare and set: an entry moves only if it still lies at its old location. Durable after ``sync``.

        Returns, for each move, the ids that moved. The others were added again, moved or deleted meanwhile,
        and their copies are dead. Each entry has its old location or its new one at every moment, also
        after a crash.
        """

    @abc.abstractmethod
    def delete_ledger(self, ledger_id: int) -> None:
        """Forget a ledger's entries and data. Durable after ``sync``."""

    @abc.abstractmethod
    def mark_complete(self) -> None:
        """Say that everything in the entry logs is indexed. Durable after ``sync``."""

    @abc.abstractmethod
    def sync(self) -> None:
        """Return once everything written so far is on stable storage."""

    @abc.abstractmethod
    def close(self) -> None: ...
