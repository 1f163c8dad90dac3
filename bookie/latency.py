"""How long something took: count, sum, quantiles of the last whole minute, and a histogram since the start.

A sample is one addition to integers of two lists, so a batch costs about a microsecond. The buckets are those
of the client's histograms (``ledger.runtime.statistics.histogram``).

Source: DataSketchesOpStatsLogger.java for the meaning; the buckets are our own.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from ledger.runtime.statistics.histogram import BOUNDS, BUCKETS, QUANTILES, quantile_of

WINDOW_S = 60.0
HISTOGRAM_BOUNDS_S = tuple(2.0**exponent for exponent in range(-14, 5))  # 61 µs to 16 s
_HISTOGRAM_ENDS = tuple(bisect_left(BOUNDS, bound_s) + 1 for bound_s in HISTOGRAM_BOUNDS_S)


class Latency:
    """Samples of one kind. One thread adds; another one may read values that are a little old."""

    def __init__(self) -> None:
        self.count = 0
        self.sum_s = 0.0
        self._buckets = [0] * BUCKETS  # since the start
        self._window: list[int] = [0] * BUCKETS
        self._last: Sequence[int] = ()
        self._began_s = -math.inf

    def __repr__(self) -> str:
        return f"<Latency of {self.count} samples>"

    def add(self, took_s: float, now_s: float, count: int = 1) -> None:
        """Add ``count`` samples of ``took_s`` seconds; ``now_s`` is on a clock that never goes back."""
        if now_s - self._began_s >= WINDOW_S:
            self._roll(now_s)
        self.count += count
        self.sum_s += took_s * count
        at = bisect_right(BOUNDS, took_s)
        self._window[at] += count
        self._buckets[at] += count

    def quantiles(self, now_s: float) -> Iterator[tuple[float, float]]:
        """Each of ``QUANTILES`` with its upper bound in seconds; NaN without samples."""
        self._roll(now_s)
        for quantile in QUANTILES:
            yield quantile, quantile_of(self._last, quantile)

    def histogram(self) -> list[int]:
        """The samples since the start below each of ``HISTOGRAM_BOUNDS_S``, and last the number of all.

        Those of several programs can be added. They fit each other, also while another thread adds.
        """
        buckets = list(self._buckets)
        return [*(sum(buckets[:end]) for end in _HISTOGRAM_ENDS), sum(buckets)]

    def _roll(self, now_s: float) -> None:
        if now_s - self._began_s < WINDOW_S:
            return
        # After a pause the last whole minute has no samples.
        self._last = self._window if now_s - self._began_s < 2 * WINDOW_S else ()
        self._window = [0] * len(self._window)
        self._began_s = now_s
