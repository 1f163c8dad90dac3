"""`dlog bench idle` and `logs`: the arithmetic of their rows."""

from __future__ import annotations

import pytest

from tests.bench.resting import idle_row
from tests.bench.startup import COMMANDS, FLOOR, rows
from tests.bench.work.log_life import STEPS, Steps, outcome


def test_the_cpu_time_of_followers_is_a_share_of_a_core_and_a_share_of_one_follower() -> None:
    embedded = idle_row("dlog", 100, {"cpu_s": 0.5, "elapsed_s": 10.0}, None)
    assert embedded["cpu_percent"] == 5.0
    assert embedded["cpu_servers_percent"] is None
    assert embedded["cpu_us_per_s"] == 500.0
    with_servers = idle_row("dlog", 100, {"cpu_s": 0.5, "elapsed_s": 10.0}, 1.5)
    assert with_servers["cpu_servers_percent"] == 15.0
    assert with_servers["cpu_us_per_s"] == 2000.0


def test_the_times_of_a_log_are_means_of_sums_over_its_steps() -> None:
    steps = Steps()
    for number, step in enumerate(STEPS, 1):
        steps.cpu_s[step] = number * 0.01
        steps.wall_s[step] = number * 0.02
    found = outcome(steps, 10)
    assert found["cpu_ms"] == 10.0
    assert found["wall_ms"] == 20.0
    assert [found[f"{step}_cpu_ms"] for step in STEPS] == [1.0, 2.0, 3.0, 4.0]


def test_each_step_gets_the_time_since_the_one_before() -> None:
    steps = Steps()
    steps.begin()
    for step in STEPS:
        steps.end(step)
    assert all(value >= 0 for value in (*steps.cpu_s.values(), *steps.wall_s.values()))
    assert sum(steps.wall_s.values()) > 0


def test_the_rows_of_the_start_up_are_medians_and_ratios_to_the_interpreter_alone() -> None:
    samples = {name: [(0.3, 0.5), (0.1, 0.2), (0.2, 0.9)] for name in COMMANDS}
    samples["import dlog"] = [(0.4, 1.0)]
    found = {row["command"]: row for row in rows(samples)}
    assert found[FLOOR] == {"command": FLOOR, "cpu_ms": 200.0, "wall_ms": 500.0, "cpu_ratio_to_floor": 1.0}
    assert found["import dlog"]["cpu_ratio_to_floor"] == pytest.approx(2.0)
