"""The number of adds and reads in progress, of all connections together.

Inside: the counts and their limits. Not inside: bytes (``shared_memory``), waiting (``connection``).
Always: a limit refuses no request. The bookie receives nothing more from a connection while its next request
would exceed a limit.

Source: BookieRequestProcessor.java (``maxAddsInProgressLimit``, ``maxReadsInProgressLimit``).
"""

from __future__ import annotations

from collections.abc import Callable


class InProgress:
    """See the module. On the loop."""

    def __init__(
        self, adds_max: int = 0, reads_max: int = 0, *, on_less: Callable[[], None] = lambda: None
    ) -> None:
        """A limit of 0 is none. ``on_less`` is called whenever a count decreases."""
        self._adds_max = adds_max
        self._reads_max = reads_max
        self._on_less = on_less
        self.adds = 0
        self.reads = 0

    def __repr__(self) -> str:
        return f"<InProgress, {self.adds} adds, {self.reads} reads>"

    def is_full(self, *, adds: bool, reads: bool) -> bool:
        """True if one more request of one of these kinds would exceed its limit."""
        return (adds and 0 < self._adds_max <= self.adds) or (reads and 0 < self._reads_max <= self.reads)

    def count_adds(self, change: int) -> None:
        self.adds += change
        if change < 0:
            self._on_less()

    def count_reads(self, change: int) -> None:
        self.reads += change
        if change < 0:
            self._on_less()
