"""Latencies of batches. Entries of one batch travel together, so one sample with a count covers them all.

Pure. Always: a quantile is over entries, not over batches.
"""

from __future__ import annotations

import bisect
from collections import deque

import attrs

SHARES = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99, "p99_9_ms": 0.999, "max_ms": 1.0}


@attrs.define(eq=False)
class Latencies:
    """Weighted samples, in seconds."""

    samples: list[tuple[float, int]] = attrs.field(factory=list)

    def add(self, seconds: float, count: int = 1) -> None:
        """Record that ``count`` entries took ``seconds`` each."""
        self.samples.append((seconds, count))

    def quantile(self, share: float) -> float:
        """The least latency that at least this share of the entries did not exceed; 0 without samples."""
        wanted = share * sum(count for _, count in self.samples)
        passed = 0
        for seconds, count in sorted(self.samples):
            passed += count
            if passed >= wanted:
                return seconds
        return 0.0

    def milliseconds(self) -> dict[str, float]:
        """The percentiles that the benchmarks print, each by its name in ``SHARES``."""
        return {name: round(self.quantile(share) * 1000, 3) for name, share in SHARES.items()}


@attrs.define(eq=False)
class BatchesInFlight:
    """The submit times of batches of consecutive entries, until the entries are confirmed in order."""

    latencies: Latencies
    _batches: deque[tuple[int, float]] = attrs.field(factory=deque)  # (last entry of the batch, submit time)
    _confirmed: int = -1

    def submitted(self, last: int, now: float) -> None:
        """Record that every entry up to ``last`` that was not submitted yet is submitted at ``now``."""
        self._batches.append((last, now))

    def confirmed(self, lac: int, now: float) -> None:
        """Record that every entry up to ``lac`` is confirmed at ``now``."""
        while self._batches and self._confirmed < lac:
            last, submitted = self._batches[0]
            upto = min(last, lac)
            if upto > self._confirmed:
                self.latencies.add(now - submitted, upto - self._confirmed)
                self._confirmed = upto
            if last > lac:
                return
            self._batches.popleft()


@attrs.define(eq=False)
class SubmitTimes:
    """The submit time of each entry, kept by batch, for a reader that receives the entries later."""

    _lasts: list[int] = attrs.field(factory=list)
    _times: list[float] = attrs.field(factory=list)

    def submitted(self, last: int, now: float) -> None:
        """Record that every entry up to ``last`` that was not submitted yet is submitted at ``now``."""
        self._lasts.append(last)
        self._times.append(now)

    def met(self, first: int, last: int, now: float, latencies: Latencies) -> None:
        """Record that the reader received the entries ``first`` to ``last`` at ``now``."""
        index = bisect.bisect_left(self._lasts, first)
        while first <= last:
            upto = min(last, self._lasts[index])
            latencies.add(now - self._times[index], upto - first + 1)
            first, index = upto + 1, index + 1
