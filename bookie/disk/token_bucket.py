"""A rate limit for background work: units a second, with bursts of at most one second's units by default.

Inside: the rule; the caller passes the time. Not inside: waiting.
Always: in any period at most ``rate * seconds + burst`` units are granted, plus the last grant. A grant may
exceed the burst; then the next one waits longer.

Source: AbstractLogCompactor.java (Throttler), which takes Guava's limiter.
"""

from __future__ import annotations


class TokenBucket:
    """Grants units immediately, and returns how long the caller must wait before the next grant."""

    def __init__(self, rate_per_s: float, *, burst: float | None = None) -> None:
        assert rate_per_s > 0  # validators of the configurations
        self._rate_per_s = rate_per_s
        self._burst = rate_per_s if burst is None else burst
        self._level = self._burst
        self._at_s: float | None = None

    def take(self, units: float, now_s: float) -> float:
        """Take units; return the seconds to wait before the next call."""
        assert units >= 0  # callers pass counts
        if self._at_s is not None:
            assert now_s >= self._at_s  # a monotonic clock
            self._level = min(self._burst, self._level + (now_s - self._at_s) * self._rate_per_s)
        self._at_s = now_s
        self._level -= units
        return max(0.0, -self._level / self._rate_per_s)
