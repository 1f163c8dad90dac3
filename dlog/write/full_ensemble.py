"""A segment that began on fewer bookies than asked: its report, and when a full ensemble can replace it.

Inside: the report, the wait for enough bookies. Not inside: the roll (``writer_shell``).
Always: only bookies that have been there for ``STEADY_S`` without a break count, so a bookie that comes and
goes makes no segments; what is known about one segment is forgotten with the next one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

import trio

from dlog.statistics_names import SEGMENTS_DEGRADED
from ledger.replication_asked import AskedReplication
from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger

if TYPE_CHECKING:
    from ledger.client import LedgerClient
    from ledger.handle import WriteHandle

STEADY_S = 5.0

logger = get_logger(__name__)


def report_degraded(
    log: str,
    handle: WriteHandle,
    asked: AskedReplication,
    *,
    number: int | None = None,
    remedy: str = "the next segment gets all once they are there",
) -> None:
    """A segment is in use on fewer bookies than the namespace's settings ask for.

    Args:
        number: Of the segment; None if it gets one only when it is attached to the log.
        remedy: How it ends.
    """
    bookies = handle.metadata.last_ensemble.bookies
    logger.warning(
        "log %s: segment %s has only %d of %d bookies (%s); %s",
        log,
        f"in ledger {handle.ledger_id}" if number is None else number,
        len(bookies),
        asked.ensemble_size,
        ", ".join(bookies),
        remedy,
        extra=event(
            "segment.degraded",
            log=log,
            segment=number,
            ledger=handle.ledger_id,
            bookies=list(bookies),
            asked=asked.ensemble_size,
        ),
    )


def count_degraded(client: LedgerClient, log: str, handle: WriteHandle, number: int | None = None) -> None:
    """Count and report a segment that no writer of the log makes, if it has fewer bookies than asked."""
    asked = AskedReplication.of(handle.metadata.custom)
    if asked is not None:
        client.recorder.counts[SEGMENTS_DEGRADED] += 1
        remedy = "`dlog log heal` gives the log the other copies once they are there"
        report_degraded(log, handle, asked, number=number, remedy=remedy)


class FullEnsembleWatch:
    """Says when the segment in use can be replaced by one on all bookies.

    It has a task only while a segment lacks bookies.

    Args:
        on_full: Called when it can.
    """

    def __init__(self, on_full: Callable[[], None]) -> None:
        self._on_full = on_full
        self._start: Callable[[Callable[[], Awaitable[None]]], object] | None = None
        self._wait: Callable[[float], Awaitable[None]] | None = None
        self._pause_s = 0.0
        self._watching: trio.CancelScope | None = None

    def start_with(self, start: Callable[[Callable[[], Awaitable[None]]], object]) -> None:
        """From now on tasks can be started."""
        self._start = start
        self._begin()

    def end(self) -> None:
        """No task can be started any more."""
        self._start = None

    def begin(self, wait: Callable[[float], Awaitable[None]] | None, *, pause_s: float = 0.0) -> None:
        """Another segment is in use.

        Args:
            wait: Returns once enough bookies have been writable for this many seconds. None: the segment has
                all its bookies.
            pause_s: Look only after this long.
        """
        self._wait, self._pause_s = wait, pause_s
        self._begin()

    def again(self, pause_s: float) -> None:
        """The roll failed: wait for the bookies once more, after a pause."""
        self.begin(self._wait, pause_s=pause_s)

    def _begin(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None
        if self._wait is not None and self._start is not None:
            self._watching = trio.CancelScope()
            self._start(partial(self._watch, self._watching, self._wait, self._pause_s))

    async def _watch(
        self, scope: trio.CancelScope, wait: Callable[[float], Awaitable[None]], pause_s: float
    ) -> None:
        with scope:
            await trio.sleep(pause_s)
            await wait(STEADY_S)
            if self._watching is scope:  # else another segment is in use since a moment ago
                self._on_full()
