"""The rows of `dlog bench tail --rate`: the sum of CPU times, and its ratios."""

from __future__ import annotations

import pytest

from dlog.cli.bench.rows import with_ratios
from tests.bench.tail_rate import RATIOS, row

CONSUMED = {"p50_ms": 2.0, "p90_ms": 3.0, "p99_ms": 4.0, "p99_9_ms": 5.0, "max_ms": 6.0, "cpu_us": 20.0}


def test_the_cpu_time_is_the_sum_of_all_processes() -> None:
    assert row("dlog", 3, 10.04, CONSUMED, 30.0)["cpu_us"] == 60.0
    embedded = row("dlog", 1, 10.04, CONSUMED, None)
    assert embedded["cpu_us"] == 30.0
    assert embedded["cpu_servers_us"] is None


def test_a_ratio_is_that_of_dlog_to_the_system() -> None:
    peer = row("file", 1, 5.0, {**CONSUMED, "p50_ms": 0.5, "cpu_us": 2.5}, None)
    rows = with_ratios([row("dlog", 1, 10.0, CONSUMED, None), peer], RATIOS)
    assert [one["p50_ratio"] for one in rows] == [1, 4]
    assert [one["p99_ratio"] for one in rows] == [1, 1]
    assert [one["cpu_ratio"] for one in rows] == [1, 4]


def test_a_ratio_to_nothing_is_none() -> None:
    zero = row("file", 1, 0.0, {**CONSUMED, "p50_ms": 0.0, "cpu_us": 0.0}, None)
    last = with_ratios([row("dlog", 1, 10.0, CONSUMED, None), zero], RATIOS)[-1]
    assert last["p50_ratio"] is None
    assert last["cpu_ratio"] is None
    assert last["p99_ratio"] == pytest.approx(1)
