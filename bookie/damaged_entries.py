"""Entries that are known to be damaged, so that nobody is given their bytes.

Inside: places and evidence, within a bound. Not inside: finding damage (``scrubber``), reading
(``entry_reads``).
Always: an entry is known by its location, so that one that was written anew is not taken for damaged.
"""

from __future__ import annotations

from collections.abc import Container

COUNT_MAX = 100_000


class DamagedEntries:
    """Of one ledger directory. On the loop. Falsy while there are none."""

    def __init__(self, count_max: int = COUNT_MAX) -> None:
        self.count_max = count_max
        self._evidence: dict[int, tuple[int, str]] = {}  # location -> ledger, evidence

    def __repr__(self) -> str:
        return f"<DamagedEntries, {len(self._evidence)}>"

    def __len__(self) -> int:
        return len(self._evidence)

    def add(self, ledger_id: int, location: int, evidence: str) -> None:
        """Beyond the bound the oldest are forgotten; they are found again."""
        self._evidence.pop(location, None)
        if len(self._evidence) >= self.count_max:
            del self._evidence[next(iter(self._evidence))]
        self._evidence[location] = ledger_id, evidence

    def evidence(self, location: int) -> str | None:
        """What is wrong there; None: nothing is known."""
        found = self._evidence.get(location)
        return None if found is None else found[1]

    def keep_only(self, locations: Container[int], ledger_ids: Container[int] = ()) -> None:
        """Forget all but these and what is known of these ledgers: they were repaired, moved or deleted."""
        self._evidence = {
            at: what for at, what in self._evidence.items() if at in locations or what[0] in ledger_ids
        }

    def drop_ledger(self, ledger_id: int) -> None:
        if any(of == ledger_id for of, _ in self._evidence.values()):
            self._evidence = {at: what for at, what in self._evidence.items() if what[0] != ledger_id}
