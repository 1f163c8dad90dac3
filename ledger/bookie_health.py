"""What one client remembers of how its bookies behaved.

Inside: recent failures, slow answers, errors counted by interval, quarantine. Not inside: what follows from
them (``placement_policy``, ``reader``), clocks: the time is handed in.
Always: everything is forgotten after a time, so that a bookie that is well again is used again.

Source: BookieWatcherImpl.java (quarantine), BookieClientImpl.java, reference on operations 1.1 and on the
protocol 6.3, 8.2.
"""

from __future__ import annotations

import random
from collections.abc import Collection

from ledger.errors import (
    BookieUnavailableError,
    FencedRefusal,
    NoEntryRefusal,
    NoLedgerRefusal,
    ReadOnlyRefusal,
)
from ledger.placement_config import PlacementConfig

SUSPECT_S = 60.0  # bookieFailureHistoryExpirationMSec


def counts_as_error(error: Exception) -> bool:
    """Whether an answer speaks against the bookie's health.

    One that is away shows that by its registration; denials, fences and read-only are right answers.
    """
    return not isinstance(
        error,
        BookieUnavailableError | NoEntryRefusal | NoLedgerRefusal | FencedRefusal | ReadOnlyRefusal,
    )


class BookieHealth:
    """Failures by bookie, each kind with its own memory."""

    def __init__(self, config: PlacementConfig, rng: random.Random) -> None:
        self._config, self._rng = config, rng
        self._suspected_until: dict[str, float] = {}
        self._slow_until: dict[str, float] = {}
        self._quarantined_until: dict[str, float] = {}
        self._errors: dict[str, tuple[int, int]] = {}  # number of the interval, errors in it

    def failed(self, bookie: str, now: float) -> None:
        """It failed this client: for a minute it is taken only if there are not enough others."""
        self._suspected_until[bookie] = now + SUSPECT_S

    def was_slow(self, bookie: str, now: float) -> None:
        """Another replica answered before it: for a minute it is read from last."""
        self._slow_until[bookie] = now + SUSPECT_S

    def count_errors(self, bookie: str, count: int, now: float) -> bool:
        """So many requests got an answer that ``counts_as_error``; True if it is quarantined for that now."""
        config = self._config
        if config.quarantine_errors_min is None or self._quarantined_until.get(bookie, now) > now:
            return False
        interval = int(now // config.quarantine_interval_s)
        counted_in, errors = self._errors.get(bookie, (interval, 0))
        errors = count if counted_in != interval else errors + count
        self._errors[bookie] = (interval, errors)
        if errors < config.quarantine_errors_min:
            return False
        del self._errors[bookie]
        if self._rng.random() >= config.quarantine_ratio:
            return False
        self._quarantined_until[bookie] = now + config.quarantine_s
        return True

    def suspects(self, now: float) -> Collection[str]:
        """Bookies that failed within the last minute."""
        self._suspected_until = _not_over(self._suspected_until, now)
        return self._suspected_until.keys()

    def slow(self, now: float) -> Collection[str]:
        """Bookies that were slow to answer within the last minute."""
        self._slow_until = _not_over(self._slow_until, now)
        return self._slow_until.keys()

    def quarantined(self, now: float) -> Collection[str]:
        """Bookies that failed so often that others are taken while there are any."""
        self._quarantined_until = _not_over(self._quarantined_until, now)
        return self._quarantined_until.keys()


def _not_over(until: dict[str, float], now: float) -> dict[str, float]:
    return {bookie: end for bookie, end in until.items() if end > now} if until else until
