"""Which connections wait until a ledger's last add confirmed (LAC) grows, and for how many long polls.

Inside: for each ledger the connections that have long polls on it, the count of all long polls. Not inside:
the long polls of one connection (``long_polls``), the LAC itself (``storage``).
Always: an event costs one call for each connection that waits for the ledger, not one for each long poll.

Source: BookKeeper, WatchableImpl.java and LongPollReadEntryProcessorV3.java; docs/protocol.md 9.4.
"""

from __future__ import annotations

from typing import Protocol

from bookie.latency import Latency
from bookie.requests.in_progress import share_of

WATCHERS_AT_ONCE_MAX = 2  # of a ledger; this many are answered in the step of the event
LONG_POLLS_MAX = 100_000  # of one bookie; each is a client's open request


class LacWatcher(Protocol):
    """A connection with long polls. Its methods take no time: they mark what is to be done.

    ``now``: there are few watchers, and what fits may be done at once.
    """

    def lac_is(self, ledger_id: int, lac: int, *, now: bool = False) -> None: ...
    def ledger_changed(self, ledger_id: int) -> None: ...


class LacWatches:
    """The watchers of each ledger; true while there is any."""

    def __init__(self, long_polls_max: int = LONG_POLLS_MAX) -> None:
        self.watchers: dict[int, dict[LacWatcher, None]] = {}  # no ledger is in it without a watcher
        self.long_polls_max = long_polls_max
        self.long_polls = 0  # of all connections; each connection counts its own
        self.woken_waits = Latency()  # of long polls, until the LAC grew or the ledger changed
        self.ended_waits = Latency()  # whose time was over

    def __bool__(self) -> bool:
        return bool(self.watchers)

    def __repr__(self) -> str:
        return f"<LacWatches, {self.long_polls} long polls on {len(self.watchers)} ledgers>"

    def share(self, own: int) -> int:
        """How many long polls the connection that has ``own`` of them may have."""
        return share_of(self.long_polls_max, self.long_polls - own)

    def watch(self, ledger_id: int, watcher: LacWatcher) -> None:
        """From now on call the watcher for each event of the ledger."""
        self.watchers.setdefault(ledger_id, {})[watcher] = None

    def forget(self, ledger_id: int, watcher: LacWatcher) -> None:
        """No error if the watcher does not watch the ledger."""
        watchers = self.watchers.get(ledger_id)
        if watchers is not None and watcher in watchers:
            del watchers[watcher]
            if not watchers:
                del self.watchers[ledger_id]

    def lac_is(self, ledger_id: int, lac: int) -> None:
        """The ledger's LAC is at least ``lac`` now."""
        watchers = self.watchers.get(ledger_id)
        if not watchers:
            return
        if len(watchers) <= WATCHERS_AT_ONCE_MAX:
            for watcher in tuple(watchers):  # one that is answered leaves, and may come again
                watcher.lac_is(ledger_id, lac, now=True)
        else:
            for watcher in watchers:
                watcher.lac_is(ledger_id, lac)

    def ledger_changed(self, ledger_id: int) -> None:
        """The ledger was fenced or deleted."""
        for watcher in self.watchers.get(ledger_id, ()):
            watcher.ledger_changed(ledger_id)
