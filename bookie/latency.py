"""How long something took: count, sum, and quantiles of the last whole minute.

A sample is one addition to an integer of a list, so a batch costs about a microsecond. A bucket is a quarter
of a power of two, so a quantile is at most 19 % too high.

Source: DataSketchesOpStatsLogger.java for the meaning; the buckets are our own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

QUANTILES = (0.5, 0.75, 0.95, 0.99, 0.999, 0.9999, 1.0)
WINDOW_S = 60.0
_PER_OCTAVE = 4
_LEAST_EXPONENT = -20  # the first octave ends at about a microsecond
_OCTAVES = 34  # the last one ends at about four hours
_STEPS = [2 ** (step / _PER_OCTAVE - 1) for step in range(1, _PER_OCTAVE)]


class Latency:
    """Samples of one kind. One thread adds; another one may read values that are a little old."""

    def __init__(self) -> None:
        self.count = 0
        self.sum_s = 0.0
        self._window: list[int] = [0] * (_OCTAVES * _PER_OCTAVE)
        self._last: Sequence[int] = ()
        self._began_s = -math.inf

    def __repr__(self) -> str:
        return f"<Latency of {self.count} samples>"

    def add(self, took_s: float, now_s: float, count: int = 1) -> None:
        """Add ``count`` samples of ``took_s`` seconds; ``now_s`` is on a clock that never goes back."""
        self._roll(now_s)
        self.count += count
        self.sum_s += took_s * count
        mantissa, exponent = math.frexp(took_s)
        step = sum([mantissa >= each for each in _STEPS])
        at = (exponent - _LEAST_EXPONENT) * _PER_OCTAVE + step
        self._window[min(max(at, 0), len(self._window) - 1)] += count

    def quantiles(self, now_s: float) -> Iterator[tuple[float, float]]:
        """Each of ``QUANTILES`` with its upper bound in seconds; NaN without samples."""
        self._roll(now_s)
        total = sum(self._last)
        for quantile in QUANTILES:
            yield quantile, self._bound(quantile * total) if total else math.nan

    def _bound(self, wanted: float) -> float:
        seen = 0
        for at, count in enumerate(self._last):
            seen += count
            if count and seen >= wanted:
                octave, step = divmod(at, _PER_OCTAVE)
                return float(2.0 ** (octave + _LEAST_EXPONENT - 1 + (step + 1) / _PER_OCTAVE))
        raise AssertionError("the samples are fewer than their sum")

    def _roll(self, now_s: float) -> None:
        if now_s - self._began_s < WINDOW_S:
            return
        # After a pause the last whole minute has no samples.
        self._last = self._window if now_s - self._began_s < 2 * WINDOW_S else ()
        self._window = [0] * len(self._window)
        self._began_s = now_s
