"""`python -m tests.bench many`: the arithmetic of its rows."""

from __future__ import annotations

from tests.bench.many_logs import row

DONE = {
    "appends": 10_000.0,
    "cpu_s": 1.5,
    "elapsed_s": 2.0,
    "open_cpu_s": 3.456,
    "open_wall_s": 4.0,
    "rss_kib": 20.0,
}


def test_a_row_has_the_rate_and_the_time_of_one_append() -> None:
    embedded = row("dlog", 100, DONE, None)
    assert embedded["appends_per_s"] == 5000
    assert embedded["cpu_us"] == 150.0
    assert embedded["cpu_servers_us"] is None
    assert embedded["open_cpu_s"] == 3.46
    assert row("dlog", 100, DONE, 0.5)["cpu_servers_us"] == 50.0


def test_a_process_that_appended_nothing_has_a_row() -> None:
    assert row("one log", 1, {**DONE, "appends": 0.0}, None)["appends_per_s"] == 0
