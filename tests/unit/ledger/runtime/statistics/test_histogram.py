"""What a histogram says of its samples."""

from __future__ import annotations

import math
from bisect import bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.runtime.statistics.histogram import BOUNDS, Histogram, Timing


@given(st.lists(st.floats(1e-6, 8000), min_size=1), st.floats(0, 100))
def test_a_percentile_is_never_too_low_and_at_most_a_fifth_too_high(
    times_s: list[float], percent: float
) -> None:
    timing = Timing()
    for took_s in times_s:
        timing.add(took_s)
    found = timing.histogram()
    rank = max(1, math.ceil(percent / 100 * len(times_s)))
    exact = sorted(times_s)[rank - 1]
    assert exact <= found.percentile(percent) <= max(exact * 1.19, 1e-6)
    assert found.count == len(times_s)
    assert found.sum_s == pytest.approx(sum(times_s))
    assert found.max_s == max(times_s) == found.percentile(100)


def test_many_samples_of_one_time_are_one_addition() -> None:
    timing = Timing()
    timing.add(0.5, 1000)
    timing.add(2.0)
    found = timing.histogram()
    assert found.count == 1001
    assert found.sum_s == 502.0
    assert found.mean_s == pytest.approx(502 / 1001)
    assert found.p50() == found.p99() < 0.6
    assert found.percentile(99.99) == found.max_s == 2.0


def test_without_samples_times_are_not_a_number() -> None:
    found = Timing().histogram()
    assert found.count == 0
    assert all(math.isnan(one) for one in (found.max_s, found.mean_s, found.p50(), found.p999()))


@pytest.mark.parametrize("percent", [-1, 100.5, math.nan])
def test_a_percentile_is_from_0_to_100(percent: float) -> None:
    with pytest.raises(ValueError, match="a number from 0 to 100"):
        Timing().histogram().percentile(percent)


def test_times_beyond_the_buckets_are_in_the_first_and_the_last_one() -> None:
    assert bisect_right(BOUNDS, 0.0) == 0
    assert bisect_right(BOUNDS, 1e9) == len(Timing().histogram().buckets) - 1
    timing = Timing()
    timing.add(1e9)
    assert isinstance(timing.histogram(), Histogram)
