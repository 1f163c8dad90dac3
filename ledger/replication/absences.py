"""Which bookies came back, and of which ledgers an absence cannot have kept an entry from a bookie.

A writer that lives marks by itself what it could not store on a bookie. One that died does not. So when a
bookie is back, the auditor looks at the ledgers that may have been written while it was away: all but those
that were seen closed while every bookie was there.

Inside: the bookies known and away, the ledgers that were closed before, as a machine. Not inside: reading,
marking, time (``auditor``).
Always: a ledger counts as untouched only if it was seen closed ``SETTLE_S`` before the next absence was
noticed: the node of a dead bookie stays until its session ends. A bookie with another session than before
was away, also if its node was never seen missing.

Source: our own; docs/autorecovery.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

SETTLE_S = 120.0  # longer than the sessions of bookies


class Absences:
    """The absences that one auditor has seen."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        """``known``: the bookies with a cookie."""
        self._known = set(known)
        self._away: set[str] = set()
        self._sessions: dict[str, int] = {}  # in which each bookie was last seen registered
        self._left_s = float("-inf")  # when an absence was last noticed
        self._untouched: set[int] = set()
        self._fresh: set[int] = set()  # seen closed since the last absence, for the next one
        self._fresh_s = float("-inf")  # when the last of them was seen

    def on_bookies(self, sessions: Mapping[str, int], now_s: float) -> set[str]:
        """The registered bookies, with their sessions, are these now; return those that were away before."""
        available = set(sessions)
        restarted = {
            bookie
            for bookie, session in sessions.items()
            if bookie not in self._away and self._sessions.get(bookie, session) != session
        }
        returned, gone = (self._away & available) | restarted, self._known - available - self._away
        if gone or restarted:
            self._left_s = now_s
            if now_s - self._fresh_s >= SETTLE_S:
                self._untouched |= self._fresh
            self._fresh = set()
        self._away = (self._away | gone) - available
        self._known |= available
        self._sessions |= sessions
        return returned

    def on_closed(self, ledger_ids: Iterable[int], began_s: float, now_s: float) -> None:
        """A look at all ledgers that began then found these closed, or restored."""
        if self._away or began_s <= self._left_s:
            return
        if now_s - self._fresh_s >= SETTLE_S:
            self._untouched |= self._fresh
            self._fresh = set()
        self._fresh.update(ledger_ids)
        self._fresh_s = now_s

    def touched(self, ledger_ids: Iterable[int]) -> list[int]:
        """Those of all ledgers that may have been written while a bookie was away."""
        every = set(ledger_ids)
        self._untouched &= every  # the others were deleted
        return sorted(every - self._untouched)
