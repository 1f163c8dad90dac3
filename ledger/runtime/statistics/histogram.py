"""How long something took, in buckets of a fixed relative width.

Inside: the buckets, which the bookie's measurements use too; counting samples; what a snapshot can say of
them. Not inside: the names of what is measured.
Always: a sample is one addition to an integer of a list; a quantile is never too low, and at most 19 % too
high, since a bucket is a quarter of a power of two.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

import attrs

QUANTILES = (0.5, 0.75, 0.95, 0.99, 0.999, 0.9999, 1.0)
_PER_OCTAVE = 4
_LEAST_EXPONENT = -20  # the first octave ends at about a microsecond
_OCTAVES = 34  # the last one ends at 8192 s, and takes what is longer
BUCKETS = _OCTAVES * _PER_OCTAVE
_STEPS = [2 ** (step / _PER_OCTAVE - 1) for step in range(_PER_OCTAVE)]
BOUNDS = [
    math.ldexp(_STEPS[at % _PER_OCTAVE], at // _PER_OCTAVE + _LEAST_EXPONENT) for at in range(1, BUCKETS)
]
"""Where each bucket but the first begins, in seconds; ``bisect_right(BOUNDS, took_s)`` finds the bucket."""


def quantile_of(buckets: Sequence[int], quantile: float) -> float:
    """The upper bound in seconds of the bucket that holds this quantile, from 0 to 1; NaN without samples."""
    wanted, seen = quantile * sum(buckets), 0
    for at, count in enumerate(buckets):
        seen += count
        if count and seen >= wanted:
            octave, step = divmod(at, _PER_OCTAVE)
            return float(2.0 ** (octave + _LEAST_EXPONENT - 1 + (step + 1) / _PER_OCTAVE))
    return math.nan


@attrs.frozen
class Histogram:
    """The times of one kind of operation, all in seconds, since the client was opened."""

    count: int
    sum_s: float
    max_s: float
    """The longest one; NaN without samples."""
    buckets: tuple[int, ...] = attrs.field(repr=False)

    def percentile(self, percent: float) -> float:
        """The time that this many percent of the operations did not exceed, in seconds; NaN without samples.

        It is at most 19 % too high.

        Raises:
            ValueError: ``percent`` is not between 0 and 100.
        """
        if not 0 <= percent <= 100:
            raise ValueError(f"percent={percent}: a number from 0 to 100")
        return min(quantile_of(self.buckets, percent / 100), self.max_s)

    @property
    def mean_s(self) -> float:
        """The mean; NaN without samples."""
        return self.sum_s / self.count if self.count else math.nan

    def p50(self) -> float:
        """The median; see ``percentile``."""
        return self.percentile(50)

    def p99(self) -> float:
        """The 99th percentile; see ``percentile``."""
        return self.percentile(99)

    def p999(self) -> float:
        """The 99.9th percentile; see ``percentile``."""
        return self.percentile(99.9)


class Timing:
    """Counts the samples of one histogram."""

    __slots__ = ("_buckets", "count", "max_s", "sum_s")

    def __init__(self) -> None:
        self.count = 0
        self.sum_s = 0.0
        self.max_s = math.nan
        self._buckets = [0] * BUCKETS

    def __repr__(self) -> str:
        return f"<Timing of {self.count} samples>"

    def add(self, took_s: float, count: int = 1) -> None:
        """Add ``count`` samples of ``took_s`` seconds."""
        self.count += count
        self.sum_s += took_s * count
        if not took_s <= self.max_s:  # also the first time
            self.max_s = took_s
        self._buckets[bisect_right(BOUNDS, took_s)] += count

    def histogram(self) -> Histogram:
        """The samples so far."""
        return Histogram(self.count, self.sum_s, self.max_s, tuple(self._buckets))
