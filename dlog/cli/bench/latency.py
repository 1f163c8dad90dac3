"""Latencies of runs: entries travel together, so one sample with a count stands for many of them.

Pure. Always: a quantile is over entries, not over runs.
"""

from __future__ import annotations

import bisect
from collections import deque

import attrs


@attrs.define(eq=False)
class Latencies:
    """Weighted samples, in seconds."""

    samples: list[tuple[float, int]] = attrs.field(factory=list)

    def add(self, seconds: float, count: int = 1) -> None:
        """``count`` entries took so long."""
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


@attrs.define(eq=False)
class RunsInFlight:
    """When runs of consecutive entries were submitted, until they are confirmed in order."""

    latencies: Latencies
    _runs: deque[tuple[int, float]] = attrs.field(factory=deque)  # last entry of the run, when
    _confirmed: int = -1

    def submitted(self, last: int, now: float) -> None:
        """Everything up to ``last`` that was not submitted before was submitted now."""
        self._runs.append((last, now))

    def confirmed(self, lac: int, now: float) -> None:
        """Everything up to ``lac`` is confirmed now."""
        while self._runs and self._confirmed < lac:
            last, submitted = self._runs[0]
            upto = min(last, lac)
            if upto > self._confirmed:
                self.latencies.add(now - submitted, upto - self._confirmed)
                self._confirmed = upto
            if last > lac:
                return
            self._runs.popleft()


@attrs.define(eq=False)
class SubmitTimes:
    """When each number was submitted, kept by runs, for readers that meet the numbers later."""

    _lasts: list[int] = attrs.field(factory=list)
    _times: list[float] = attrs.field(factory=list)

    def submitted(self, last: int, now: float) -> None:
        """Everything up to ``last`` that was not submitted before was submitted now."""
        self._lasts.append(last)
        self._times.append(now)

    def met(self, first: int, last: int, now: float, latencies: Latencies) -> None:
        """The numbers from ``first`` to ``last`` reached their reader now."""
        index = bisect.bisect_left(self._lasts, first)
        while first <= last:
            upto = min(last, self._lasts[index])
            latencies.add(now - self._times[index], upto - first + 1)
            first, index = upto + 1, index + 1
