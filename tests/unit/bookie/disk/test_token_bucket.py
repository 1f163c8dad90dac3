"""The rate limit of background work."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bookie.disk.token_bucket import TokenBucket


def test_a_burst_needs_no_wait_and_more_units_do() -> None:
    bucket = TokenBucket(100)
    assert bucket.take(60, 0) == 0
    assert bucket.take(60, 0) == 0.2
    assert bucket.take(0, 0.2) == 0


def test_a_grant_larger_than_the_burst_delays_the_next_one() -> None:
    bucket = TokenBucket(100, burst=10)
    assert bucket.take(1010, 5) == 10
    assert bucket.take(10, 15) == 0.1


@given(st.lists(st.tuples(st.floats(0, 500), st.floats(0, 10)), min_size=1, max_size=50))
def test_a_caller_that_waits_as_returned_never_exceeds_the_rate(steps: list[tuple[float, float]]) -> None:
    bucket, now, granted = TokenBucket(100, burst=50), 0.0, 0.0
    for units, idle in steps:
        now += idle
        assert granted <= 100 * now + 50 + 1e-6
        granted += units
        now += bucket.take(units, now)
    assert granted <= 100 * now + 50 + 1e-6
