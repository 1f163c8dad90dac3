"""Whose acknowledgements count at once: bookies heard over one connection since the ledger was known ours.

A bookie that was replaced at its address knows of no fence and takes anything. As long as a connection lasts,
the process behind it is the same; over a new one it may be another. Connections also break while no answer is
due, and nobody is told of that, so they are looked at whenever an answer comes.

Inside: which connection of each bookie is trusted. Not inside: holding back what the others say (``writer``),
reading the metadata again (``repair``), connections (``transport``).
Always: a bookie is trusted only over a connection that is older than the last moment at which the metadata
was known to be ours, and that still stands.

Source: apache/bookkeeper#4812 (open there); lessons 1.1 row 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

ConnectionTo = Callable[[str], int | None]
"""The number of the present connection to a bookie; None while there is none."""


class Continuity:
    """Connections of one writer. Ask ``gone`` and ``is_new`` before a run of answers is counted."""

    def __init__(self, connection_to: ConnectionTo) -> None:
        self._connection_to = connection_to
        self._trusted: dict[str, int] = {}  # connections whose word counts
        self._doubted: dict[str, int] = {}  # connections whose word waits for a look at the metadata
        self._losses = -1

    def snapshot(self, bookies: Iterable[str]) -> dict[str, int | None]:
        """Their connections now, in front of a write to the metadata; for ``begin``."""
        return {bookie: self._connection_to(bookie) for bookie in bookies}

    def begin(self, connections: Mapping[str, int | None]) -> None:
        """The metadata was written, as ours, since ``snapshot`` told these connections."""
        for bookie, number in connections.items():
            self._doubted.pop(bookie, None)
            if number is None or self._connection_to(bookie) != number:
                # Lost since: ``gone`` may have been asked between, when nobody knew of this bookie, and would
                # never tell of that loss again.
                self._trusted.pop(bookie, None)
            else:
                self._trusted[bookie] = number

    def is_settled(self, bookie: str, losses: int) -> bool:
        """Nothing is new: an answer of this bookie counts. The usual case, and quick.

        Args:
            losses: How many connections the transport has lost so far.
        """
        return losses == self._losses and bookie in self._trusted

    def gone(self, losses: int) -> list[str]:
        """Bookies whose connection was lost since the last look; each is told once for each connection."""
        if losses == self._losses:
            return []
        self._losses = losses
        lost: list[str] = []
        for known in (self._trusted, self._doubted):
            for bookie, number in list(known.items()):
                if self._connection_to(bookie) != number:
                    del known[bookie]
                    lost.append(bookie)
        return lost

    def is_new(self, bookie: str) -> bool:
        """This bookie, which answers, is heard for the first time over its present connection."""
        number = self._connection_to(bookie)
        if number is None or self._trusted.get(bookie) == number or self._doubted.get(bookie) == number:
            return False
        self._doubted[bookie] = number
        return True

    def vouched(self, bookie: str) -> None:
        """The metadata, read after it spoke, is still ours: its present connection counts from now on."""
        number = self._doubted.pop(bookie, None)
        if number is not None:
            self._trusted[bookie] = number
