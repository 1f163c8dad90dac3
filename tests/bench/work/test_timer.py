"""A timer at the rate of a schedule, on the system's clock."""

from __future__ import annotations

import time

from tests.bench.schedule import Schedule, due_ranges
from tests.bench.work.timer import open_timer


def test_a_thread_gets_every_record_and_none_before_it_is_due() -> None:
    schedule = Schedule(time.monotonic_ns() + 1_000_000, 5000, 50)
    numbers: list[int] = []
    with open_timer(schedule) as timer:
        for due in due_ranges(schedule, time.monotonic_ns, timer.wait):
            assert schedule.due_ns(due[-1]) <= time.monotonic_ns()
            numbers += due
    assert numbers == list(range(50))


async def test_a_loop_is_woken_at_the_first_due_time() -> None:
    schedule = Schedule(time.monotonic_ns() + 1_000_000, 0.001, 2)
    with open_timer(schedule) as timer:
        await timer.wait_in_loop()
    assert schedule.due_count(time.monotonic_ns()) == 1
