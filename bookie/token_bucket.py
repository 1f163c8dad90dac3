"""How fast background work may go: so many units a second, with bursts of at most one second's worth.

Inside: the rule, told the time. Not inside: waiting.
Always: over any stretch of time at most ``rate * seconds + burst`` units are granted, plus the last grant:
a piece of work larger than the burst is let through and paid for afterwards.

Source: AbstractLogCompactor.java (Throttler), which takes Guava's limiter.
"""

from __future__ import annotations


class TokenBucket:
    """Grants are given at once and say how long the next one must wait."""

    def __init__(self, rate_per_s: float, *, burst: float | None = None) -> None:
        assert rate_per_s > 0
        self._rate_per_s = rate_per_s
        self._burst = rate_per_s if burst is None else burst
        self._level = self._burst
        self._at_s: float | None = None

    def take(self, units: float, now_s: float) -> float:
        """Use up so many units; the seconds to wait before going on."""
        assert units >= 0
        if self._at_s is not None:
            assert now_s >= self._at_s
            self._level = min(self._burst, self._level + (now_s - self._at_s) * self._rate_per_s)
        self._at_s = now_s
        self._level -= units
        return max(0.0, -self._level / self._rate_per_s)
