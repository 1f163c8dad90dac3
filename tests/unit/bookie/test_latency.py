"""Counts, sums and quantiles of what took how long."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.latency import HISTOGRAM_BOUNDS_S, WINDOW_S, Latency
from ledger.runtime.statistics.histogram import QUANTILES


@given(st.lists(st.floats(min_value=1e-5, max_value=1000), min_size=1, max_size=50))
def test_a_quantile_is_a_close_upper_bound_of_the_last_window(samples: list[float]) -> None:
    latency = Latency()
    for took_s in samples:
        latency.add(took_s, 0.0)
    assert latency.count == len(samples)
    assert latency.sum_s == pytest.approx(sum(samples))
    ordered = sorted(samples)
    for quantile, bound in latency.quantiles(WINDOW_S):
        exact = ordered[max(0, math.ceil(quantile * len(samples)) - 1)]
        assert exact <= bound * (1 + 1e-12)
        assert bound <= exact * 1.19 * (1 + 1e-12)


def test_quantiles_are_those_of_the_last_whole_window_only() -> None:
    latency = Latency()
    latency.add(0.001, 0.0, count=5)
    assert all(math.isnan(bound) for _, bound in latency.quantiles(WINDOW_S / 2))
    assert [quantile for quantile, bound in latency.quantiles(WINDOW_S) if bound > 0] == list(QUANTILES)
    assert all(math.isnan(bound) for _, bound in latency.quantiles(WINDOW_S * 5))
    assert latency.count == 5


@given(st.lists(st.floats(min_value=0, max_value=1000).filter(lambda s: s not in HISTOGRAM_BOUNDS_S)))
def test_the_histogram_has_all_samples_since_the_start(samples: list[float]) -> None:
    latency = Latency()
    for number, took_s in enumerate(samples):
        latency.add(took_s, number * WINDOW_S)
    assert latency.histogram() == [
        *(sum(took_s <= bound_s for took_s in samples) for bound_s in HISTOGRAM_BOUNDS_S),
        len(samples),
    ]


@pytest.mark.parametrize("took_s", [0.0, 1e-12, 1e9])
def test_extreme_samples_are_counted(took_s: float) -> None:
    latency = Latency()
    latency.add(took_s, 0.0)
    assert all(bound > 0 for _, bound in latency.quantiles(WINDOW_S))
