"""The long polls that wait until a ledger's last add confirmed (LAC) grows.

Inside: for each ledger the waiting long polls, each with the LAC its client has seen. Not inside: waiting,
timeouts and replies (``deferred_replies``), the LAC itself (``storage``).
Always: a watcher is called at most once, and is removed before it is called.

Source: BookKeeper, WatchableImpl.java and LongPollReadEntryProcessorV3.java; docs/protocol.md 9.4.
"""

from __future__ import annotations

from collections.abc import Callable

WATCHERS_MAX = 100_000  # of one bookie; each is a client's open request


class LacWatches:
    """Callbacks for each ledger; true while there is any."""

    def __init__(self) -> None:
        self._waiting: dict[int, dict[int, tuple[int, Callable[[], None]]]] = {}
        self._next_token = 0
        self._count = 0

    def __bool__(self) -> bool:
        return self._count > 0

    @property
    def is_full(self) -> bool:
        return self._count >= WATCHERS_MAX

    def watch(self, ledger_id: int, seen_lac: int, call: Callable[[], None]) -> int:
        """Call once when the LAC exceeds ``seen_lac``, or the ledger is fenced or deleted.

        Returns:
            A token for ``forget``.
        """
        self._next_token += 1
        self._waiting.setdefault(ledger_id, {})[self._next_token] = (seen_lac, call)
        self._count += 1
        return self._next_token

    def forget(self, ledger_id: int, token: int) -> None:
        """Remove a watcher. No error if it was called already."""
        watchers = self._waiting.get(ledger_id)
        if watchers is not None and watchers.pop(token, None) is not None:
            self._count -= 1
            if not watchers:
                del self._waiting[ledger_id]

    def lac_is(self, ledger_id: int, lac: int) -> None:
        """The ledger's LAC is at least ``lac`` now."""
        watchers = self._waiting.get(ledger_id)
        if watchers:
            ready = [token for token, (seen_lac, _) in watchers.items() if lac > seen_lac]
            self._call(ledger_id, ready)

    def ledger_changed(self, ledger_id: int) -> None:
        """The ledger was fenced or deleted: call all its watchers."""
        watchers = self._waiting.get(ledger_id)
        if watchers:
            self._call(ledger_id, list(watchers))

    def _call(self, ledger_id: int, tokens: list[int]) -> None:
        calls = [self._waiting[ledger_id][token][1] for token in tokens]
        for token in tokens:
            self.forget(ledger_id, token)
        for call in calls:
            call()
