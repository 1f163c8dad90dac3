"""The list of damaged entries. Reads refuse them.

Inside: a bounded list of locations with evidence. Not inside: finding damage (``scrubber``), reading
(``entry_reads``).
Always: an entry is identified by its location, so an entry that was written again is not refused.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

import attrs

COUNT_MAX = 100_000


@attrs.frozen
class DamagedEntry:
    """One damaged entry, and the place where its bytes should be."""

    ledger_id: int
    entry_id: int
    location: int
    evidence: str


class DamagedEntries:
    """The damaged entries of one ledger directory. Used on the loop. Falsy if empty."""

    def __init__(self, count_max: int = COUNT_MAX) -> None:
        self.count_max = count_max
        self._entries: dict[int, DamagedEntry] = {}  # by location

    def __repr__(self) -> str:
        return f"<DamagedEntries, {len(self._entries)}>"

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: DamagedEntry) -> None:
        """Add an entry. Beyond the bound the oldest is dropped; the next round finds it again."""
        self._entries.pop(entry.location, None)
        if len(self._entries) >= self.count_max:
            del self._entries[next(iter(self._entries))]
        self._entries[entry.location] = entry

    def known(self) -> Iterator[DamagedEntry]:
        """All of the list. It may change meanwhile."""
        return iter(list(self._entries.values()))

    def drop(self, location: int) -> None:
        """Forget the damage at a location, because the entry was stored at another one."""
        self._entries.pop(location, None)

    def evidence(self, location: int) -> str | None:
        """The evidence of damage at this location; None if none is known."""
        found = self._entries.get(location)
        return None if found is None else found.evidence

    def keep_only(self, locations: Container[int], ledger_ids: Container[int] = ()) -> None:
        """Keep only these locations and these ledgers; the others were repaired, moved or deleted."""
        self._entries = {
            at: known
            for at, known in self._entries.items()
            if at in locations or known.ledger_id in ledger_ids
        }

    def drop_ledger(self, ledger_id: int) -> None:
        if any(known.ledger_id == ledger_id for known in self._entries.values()):
            self._entries = {at: known for at, known in self._entries.items() if known.ledger_id != ledger_id}
