"""One client's memory of the failures of its bookies.

Inside: recent failures, slow replies, errors counted by interval, quarantine. Not inside: their effect on the
choice of bookies (``placement.spread_policy``, ``read``); clocks: the caller passes the time.
Always: each failure is forgotten after some time, so a recovered bookie is used again.

Source: BookieWatcherImpl.java (quarantine), BookieClientImpl.java; docs/protocol.md 6.2, 11.1.
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
from ledger.placement.config import PlacementConfig

SUSPECT_S = 60.0  # bookieFailureHistoryExpirationMSec


def counts_as_error(error: Exception) -> bool:
    """Whether an error counts against the health of a bookie.

    Unavailability does not, because the registration shows it. Denials, fences and read-only do not, because
    they are correct replies.
    """
    return not isinstance(
        error,
        BookieUnavailableError | NoEntryRefusal | NoLedgerRefusal | FencedRefusal | ReadOnlyRefusal,
    )


class BookieHealth:
    """The failures of each bookie; each kind of failure is remembered by itself."""

    def __init__(self, config: PlacementConfig, rng: random.Random) -> None:
        self._config, self._rng = config, rng
        self._suspected_until: dict[str, float] = {}
        self._slow_until: dict[str, float] = {}
        self._refusing_until: dict[str, float] = {}
        self._quarantined_until: dict[str, float] = {}
        self._errors: dict[str, tuple[int, int]] = {}  # number of the interval, errors in it

    def report_failure(self, bookie: str, now: float) -> None:
        """A request failed: for a minute the bookie is chosen only if there are too few others."""
        self._suspected_until[bookie] = now + SUSPECT_S

    def report_refusal(self, bookie: str, now: float) -> None:
        """The bookie and this client do not accept each other: for a minute it replaces no other bookie."""
        self._refusing_until[bookie] = now + SUSPECT_S

    def refusing(self, now: float) -> Collection[str]:
        """Bookies that refused this client, or were refused by it, within the last minute."""
        self._refusing_until = _unexpired(self._refusing_until, now)
        return self._refusing_until.keys()

    def report_slow(self, bookie: str, now: float) -> None:
        """Another replica replied first: for a minute the bookie is the last choice for reads."""
        self._slow_until[bookie] = now + SUSPECT_S

    def report_errors(self, bookie: str, count: int, now: float) -> bool:
        """Count errors as ``counts_as_error`` defines them; True if the bookie is quarantined now."""
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
        self._suspected_until = _unexpired(self._suspected_until, now)
        return self._suspected_until.keys()

    def slow(self, now: float) -> Collection[str]:
        """Bookies that were slow to reply within the last minute."""
        self._slow_until = _unexpired(self._slow_until, now)
        return self._slow_until.keys()

    def quarantined(self, now: float) -> Collection[str]:
        """Bookies that failed so often that they are chosen only if there are too few others."""
        self._quarantined_until = _unexpired(self._quarantined_until, now)
        return self._quarantined_until.keys()


def _unexpired(until: dict[str, float], now: float) -> dict[str, float]:
    return {bookie: end for bookie, end in until.items() if end > now} if until else until
