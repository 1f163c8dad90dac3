"""Latencies kept by runs say the same as latencies kept by entry."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dlog.cli.bench.latency import Latencies, RunsInFlight, SubmitTimes


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), min_size=1),
    st.sampled_from([0.5, 0.9, 0.99, 1]),
)
def test_a_quantile_is_over_entries_not_runs(samples: list[tuple[int, int]], share: float) -> None:
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
def test_runs_confirmed_in_pieces_count_each_entry_once(steps: list[tuple[bool, int]]) -> None:
    latencies = Latencies()
    runs = RunsInFlight(latencies)
    submitted_at: list[int] = []
    expected: list[int] = []
    confirmed = 0
    for now, (submit, count) in enumerate(steps):
        if submit:
            submitted_at += [now] * count
            runs.submitted(len(submitted_at) - 1, now)
        else:
            upto = min(confirmed + count, len(submitted_at))
            expected += [now - moment for moment in submitted_at[confirmed:upto]]
            confirmed = upto
            runs.confirmed(confirmed - 1, now)
    found = [seconds for seconds, count in latencies.samples for _ in range(count)]
    assert sorted(found) == sorted(expected)


def test_numbers_met_later_are_measured_from_their_own_submission() -> None:
    times = SubmitTimes()
    times.submitted(2, 10)
    times.submitted(5, 20)
    latencies = Latencies()
    times.met(1, 4, 30, latencies)
    assert latencies.samples == [(20, 2), (10, 2)]
