"""Latencies kept per batch equal latencies kept per entry."""

# covers: dlog/cli/bench/latency.py

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dlog.cli.bench.latency import BatchesInFlight, Latencies, SubmitTimes


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), min_size=1),
    st.sampled_from([0.5, 0.9, 0.99, 1]),
)
def test_a_quantile_is_over_entries_not_batches(samples: list[tuple[int, int]], share: float) -> None:
    latencies = Latencies()
    entries: list[int] = []
    for seconds, count in samples:
        latencies.add(seconds, count)
        entries += [seconds] * count
    entries.sort()
    at_most = [value for value in entries if sum(one <= value for one in entries) >= share * len(entries)]
    assert latencies.quantile(share) == at_most[0]


def test_without_samples_a_quantile_is_zero() -> None:
    assert Latencies().quantile(0.5) == 0


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9)), max_size=60))
def test_batches_confirmed_in_pieces_count_each_entry_once(steps: list[tuple[bool, int]]) -> None:
    latencies = Latencies()
    batches = BatchesInFlight(latencies)
    submitted_at: list[int] = []
    expected: list[int] = []
    confirmed = 0
    for now, (submit, count) in enumerate(steps):
        if submit:
            submitted_at += [now] * count
            batches.submitted(len(submitted_at) - 1, now)
        else:
            upto = min(confirmed + count, len(submitted_at))
            expected += [now - moment for moment in submitted_at[confirmed:upto]]
            confirmed = upto
            batches.confirmed(confirmed - 1, now)
    found = [seconds for seconds, count in latencies.samples for _ in range(count)]
    assert sorted(found) == sorted(expected)


def test_an_entry_received_later_is_measured_from_its_own_submission() -> None:
    times = SubmitTimes()
    times.submitted(2, 10)
    times.submitted(5, 20)
    latencies = Latencies()
    times.met(1, 4, 30, latencies)
    assert latencies.samples == [(20, 2), (10, 2)]


def test_the_percentiles_are_nearest_ranks_in_milliseconds() -> None:
    latencies = Latencies()
    for number in range(1, 1001):
        latencies.add(number / 1000)
    assert latencies.milliseconds() == {
        "p50_ms": 500,
        "p90_ms": 900,
        "p99_ms": 990,
        "p99_9_ms": 999,
        "max_ms": 1000,
    }
