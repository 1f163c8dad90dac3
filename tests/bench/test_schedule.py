"""The open-loop schedule: due times depend on the start and the rate only."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.bench.schedule import NS, TOGETHER_MAX, Schedule, due_ranges, left_out

RATES = st.floats(0.5, 1e6, allow_nan=False)


@given(st.integers(0, 1 << 60), RATES, st.integers(1, 10_000), st.integers(0, 20_000 * NS))
def test_a_record_counts_as_due_from_its_due_time_on(
    start: int, rate: float, records: int, past: int
) -> None:
    schedule = Schedule(start, rate, records)
    count = schedule.due_count(start + past)
    assert 0 <= count <= records
    assert count == 0 or schedule.due_ns(count - 1) <= start + past
    assert count == records or schedule.due_ns(count) > start + past


def test_nothing_is_due_before_the_start() -> None:
    assert Schedule(1000, 1e6, 5).due_count(999) == 0
    assert Schedule(1000, 1e6, 5).due_count(1000) == 1


class FakeClock:
    """A clock that moves only when the schedule waits, or when an append takes time."""

    def __init__(self, step_ns: int) -> None:
        self.now_ns = 0
        self._step_ns = step_ns

    def read(self) -> int:
        return self.now_ns

    def wait(self) -> None:
        self.now_ns += self._step_ns


def test_records_are_handed_out_one_by_one_when_each_is_due() -> None:
    clock = FakeClock(step_ns=NS // 1000)
    schedule = Schedule(0, 100, 5)
    found = [(clock.now_ns, due) for due in due_ranges(schedule, clock.read, clock.wait)]
    assert found == [(number * NS // 100, range(number, number + 1)) for number in range(5)]


def test_the_wait_behind_a_slow_append_counts_for_each_record_that_was_due_meanwhile() -> None:
    clock = FakeClock(step_ns=NS // 1000)
    schedule = Schedule(0, 100, 6)
    latencies_ms = []
    for due in due_ranges(schedule, clock.read, clock.wait):
        if due.start == 1:
            clock.now_ns += 35 * NS // 1000  # the second append is slow
        latencies_ms += [(clock.now_ns - schedule.due_ns(number)) // 1_000_000 for number in due]
    # Records 2 to 4 were due 10, 20 and 30 ms after record 1. A clock that starts at the send shows zeros.
    assert latencies_ms == [0, 35, 25, 15, 5, 0]


@given(RATES, st.integers(1, 5000), st.lists(st.integers(0, 10 * NS), max_size=5))
def test_each_record_is_handed_out_once_and_in_order(rate: float, records: int, delays: list[int]) -> None:
    clock = FakeClock(step_ns=round(NS / rate) + 1)
    numbers: list[int] = []
    for due in due_ranges(Schedule(0, rate, records), clock.read, clock.wait):
        assert 0 < len(due) <= TOGETHER_MAX
        numbers += due
        clock.now_ns += delays.pop() if delays else 0
    assert numbers == list(range(records))


def test_five_per_cent_are_left_out() -> None:
    assert [left_out(records) for records in (1, 19, 20, 1000)] == [0, 0, 1, 50]
