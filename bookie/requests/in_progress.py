"""The adds, reads and lists of entries in progress, of all connections together, and their latencies.

Inside: the counts and their limits, the latencies. Not inside: bytes (``shared_memory``), waiting
(``connection``).
Always: a limit on adds or reads refuses no request. The bookie receives nothing more from a connection while
its next request would exceed a limit.

Source: BookieRequestProcessor.java (``maxAddsInProgressLimit``, ``maxReadsInProgressLimit``).
"""

from __future__ import annotations

from collections.abc import Callable

from bookie.latency import Latency

BatchBegun = tuple[int, int, float]  # how many adds and fencing reads of one chunk, and when they began

LISTS_MAX = 64  # of all connections; they are made one after the other
SHARE_MIN = 64  # requests of each kind that each connection may have waiting


def share_of(requests_max: int, others: int) -> int:
    """How many requests one connection may have waiting, if the others have this many of the most allowed.

    As ``SharedMemory.share_bytes``: half of what is left, so that a place stays free for a newcomer.
    """
    return max((requests_max - others) // 2, SHARE_MIN)


class DeferredLatencies:
    """Of requests that wait for the disk, from their queue to their reply.

    Each pair has the requests that got what they asked for, and the others.
    """

    def __init__(self) -> None:
        self.reads = Latency(), Latency()
        self.fencing_reads = Latency(), Latency()  # the read itself, once the fence is durable
        self.long_polls = Latency(), Latency()  # the read itself, once the wait is over


class InProgress:
    """See the module. On the loop."""

    def __init__(
        self,
        adds_max: int = 0,
        reads_max: int = 0,
        *,
        on_less: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """A limit of 0 is none. With any limit, ``on_less`` is called whenever a count decreases."""
        self.has_limits = adds_max > 0 or reads_max > 0
        self._adds_max = adds_max
        self._reads_max = reads_max
        self._on_less = on_less
        self._clock = clock
        self.added = Latency()  # from the chunk of an add to its acknowledgement
        self.not_added = Latency()  # adds whose batch has failed
        self.fenced = Latency()  # from the chunk of a fencing read until the fence is durable
        self.not_fenced = Latency()
        self.deferred = DeferredLatencies()
        self.refused_adds = self.refused_reads = 0  # because too many waited
        self.unknown_replies = 0  # replies that neither have nor deny an entry of a ledger in limbo
        self.adds = 0
        self.reads = 0
        self.lists = 0  # lists of entries, waiting or being made

    def __repr__(self) -> str:
        return f"<InProgress, {self.adds} adds, {self.reads} reads>"

    def is_full(self, *, adds: bool, reads: bool) -> bool:
        """True if one more request of one of these kinds would exceed its limit."""
        return (adds and 0 < self._adds_max <= self.adds) or (reads and 0 < self._reads_max <= self.reads)

    @property
    def has_all_lists(self) -> bool:
        return self.lists >= LISTS_MAX

    def count_lists(self, change: int) -> None:
        self.lists += change

    def now_s(self) -> float:
        """The clock of the latencies."""
        return self._clock()

    def begin_batch(self, adds: int, fences: int) -> BatchBegun:
        """Adds and fencing reads of one chunk begin; pass the result to ``end_batch``."""
        self.adds += adds
        return adds, fences, self._clock()

    def end_batch(self, begun: BatchBegun, error: BaseException | None) -> None:
        """They are durable, or have failed."""
        adds, fences, began_s = begun
        self.adds -= adds
        if self.has_limits:
            self._on_less()
        now_s = self._clock()
        if adds:
            latency = self.added if error is None else self.not_added
            latency.add(now_s - began_s, now_s, adds)
        if fences:
            latency = self.fenced if error is None else self.not_fenced
            latency.add(now_s - began_s, now_s, fences)

    def count_reads(self, change: int) -> None:
        self.reads += change
        if change < 0 and self.has_limits:
            self._on_less()
