"""The connections of one writer whose acknowledgements count at once.

A bookie that was replaced at its address knows of no fence and accepts every add. As long as a connection
lasts, the process behind it is the same; after a new connection there may be another process. A connection
may also break while no reply is due, and then the transport reports no loss. Therefore the writer compares
connections whenever a reply comes.

Inside: the trusted connection of each bookie. Not inside: holding back acknowledgements (``writer``), reading
the metadata again (``repair``, ``repair_steps``), connections (``transport``).
Always: a bookie is trusted only over a connection that still stands, and that is older than the last moment
at which the metadata said that the ledger is this writer's.

Source: apache/bookkeeper#4812 (open there); docs/known-bugs.md 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

ConnectionTo = Callable[[str], int | None]
"""The number of the present connection to a bookie; None while there is none."""


class ConnectionTrust:
    """Numbers of connections. Before replies are counted, call ``take_lost`` and ``is_first_reply``.

    Neither is needed, as usual, if ``losses`` is what the transport has lost so far, so that nothing changed
    since the last look, and the bookie of the replies is in ``trusted``.
    """

    def __init__(self, connection_to: ConnectionTo) -> None:
        self._connection_to = connection_to
        self.trusted: dict[str, int] = {}  # connections whose acknowledgements count
        self._untrusted: dict[str, int] = {}  # connections whose acknowledgements wait for the metadata
        self.losses = -1  # what the transport had lost at the last look

    def snapshot(self, bookies: Iterable[str]) -> dict[str, int | None]:
        """The present connections of these bookies, before a write to the metadata; for ``trust_since``."""
        return {bookie: self._connection_to(bookie) for bookie in bookies}

    def trust_since(self, connections: Mapping[str, int | None]) -> None:
        """Trust the connections of a ``snapshot``: since then the metadata were written, as this writer's."""
        for bookie, number in connections.items():
            self._untrusted.pop(bookie, None)
            if number is None or self._connection_to(bookie) != number:
                # Lost since then. ``take_lost`` may have run in between, when this bookie was not known here,
                # and would never return this loss again.
                self.trusted.pop(bookie, None)
            else:
                self.trusted[bookie] = number

    def take_lost(self, losses: int) -> list[str]:
        """The bookies whose connection was lost since the last look, each once for each connection.

        Args:
            losses: How many connections the transport has lost so far.
        """
        if losses == self.losses:
            return []
        self.losses = losses
        lost: list[str] = []
        for known in (self.trusted, self._untrusted):
            for bookie, number in list(known.items()):
                if self._connection_to(bookie) != number:
                    del known[bookie]
                    lost.append(bookie)
        return lost

    def is_first_reply(self, bookie: str) -> bool:
        """A reply came: True if it is the first one over a connection that is not trusted."""
        number = self._connection_to(bookie)
        if number is None or self.trusted.get(bookie) == number or self._untrusted.get(bookie) == number:
            return False
        self._untrusted[bookie] = number
        return True

    def trust(self, bookie: str) -> None:
        """Trust the present connection: the metadata, read after a reply came over it, are this writer's."""
        number = self._untrusted.pop(bookie, None)
        if number is not None:
            self.trusted[bookie] = number
