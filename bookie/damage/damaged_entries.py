"""The list of damaged entries. Reads refuse them.

Inside: a bounded list of locations with evidence. Not inside: finding damage (``scrubber``), reading
(``entry_reads``).
Always: an entry is identified by its location, so an entry that was written again is not refused.
"""

from __future__ import annotations

from collections.abc import Container

COUNT_MAX = 100_000


class DamagedEntries:
    """The damaged entries of one ledger directory. Used on the loop. Falsy if empty."""

    def __init__(self, count_max: int = COUNT_MAX) -> None:
        self.count_max = count_max
        self._evidence: dict[int, tuple[int, str]] = {}  # location -> ledger, evidence

    def __repr__(self) -> str:
        return f"<DamagedEntries, {len(self._evidence)}>"

    def __len__(self) -> int:
        return len(self._evidence)

    def add(self, ledger_id: int, location: int, evidence: str) -> None:
        """Add an entry. Beyond the bound the oldest is dropped; the next round finds it again."""
        self._evidence.pop(location, None)
        if len(self._evidence) >= self.count_max:
            del self._evidence[next(iter(self._evidence))]
        self._evidence[location] = ledger_id, evidence

    def evidence(self, location: int) -> str | None:
        """The evidence of damage at this location; None if none is known."""
        found = self._evidence.get(location)
        return None if found is None else found[1]

    def keep_only(self, locations: Container[int], ledger_ids: Container[int] = ()) -> None:
        """Keep only these locations and these ledgers; the others were repaired, moved or deleted."""
        self._evidence = {
            at: known for at, known in self._evidence.items() if at in locations or known[0] in ledger_ids
        }

    def drop_ledger(self, ledger_id: int) -> None:
        if any(of == ledger_id for of, _ in self._evidence.values()):
            self._evidence = {at: known for at, known in self._evidence.items() if known[0] != ledger_id}
