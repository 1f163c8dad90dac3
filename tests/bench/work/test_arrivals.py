"""The consumer's counting: latencies from due times, the records left out, order, CPU time."""

from __future__ import annotations

import pytest

from tests.bench.schedule import NS
from tests.bench.work.arrivals import Arrivals
from tests.bench.work.job import Job, decode_job, stamped

MS = NS // 1000


def records(first: int, stop: int) -> list[bytes]:
    """Records that are due a millisecond after each other."""
    return [stamped(number * MS, number, b"rest") for number in range(first, stop)]


def test_latencies_run_from_the_due_time_and_leave_the_first_records_out() -> None:
    arrivals = Arrivals(6, 2)
    arrivals.add(records(0, 3), 10 * MS)
    arrivals.add(records(3, 6), 10 * MS)
    assert [round(seconds * 1000) for seconds, _ in arrivals.latencies.samples] == [8, 7, 6, 5]
    assert arrivals.complete


@pytest.mark.parametrize("number", [0, 2])
def test_a_repeated_or_missing_record_ends_the_benchmark(number: int) -> None:
    arrivals = Arrivals(6, 0)
    arrivals.add(records(0, 1), MS)
    with pytest.raises(AssertionError, match=f"record {number} arrived, but the next one is 1"):
        arrivals.add(records(number, number + 1), MS)


def test_cpu_time_is_that_of_the_records_after_the_mark() -> None:
    times = iter([10.0, 10.6])
    arrivals = Arrivals(10, 2, lambda: next(times))
    arrivals.add(records(0, 4), 20 * MS)  # passes the mark
    arrivals.add(records(4, 10), 20 * MS)
    assert arrivals.outcome()["cpu_us"] == pytest.approx(0.6 / 6 * 1e6)


def test_a_job_passes_through_its_line() -> None:
    job = Job(role="produce", system="file", address={"files": 3}, records=7, size=16, rate=2.5, left_out=1)
    assert "\n" not in job.encoded()
    assert decode_job(job.encoded()) == job
