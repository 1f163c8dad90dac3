"""Ratios of the first row to the others, and text for people."""

# covers: dlog/cli/bench/rows.py

from __future__ import annotations

import pytest

from dlog.cli.bench.rows import print_rows, shown, with_ratios


def test_a_ratio_is_the_first_rows_figure_divided_by_the_rows_own() -> None:
    rows = with_ratios([{"p50": 3.0}, {"p50": 1.5}, {"p50": 7.0}], {"ratio": "p50"})
    assert [row["ratio"] for row in rows] == [1.0, 2.0, 0.43]


@pytest.mark.parametrize("figures", [(3.0, 0.0), (3.0, None), (None, 3.0)])
def test_a_figure_that_is_missing_or_zero_has_no_ratio(figures: tuple[float | None, float | None]) -> None:
    assert with_ratios([{"p50": one} for one in figures], {"ratio": "p50"})[1]["ratio"] is None


def test_numbers_have_separators_and_nothing_is_a_dash(capsys: pytest.CaptureFixture[str]) -> None:
    assert [shown(value) for value in (1234.5, 3, None, "redis")] == ["1,234.5", "3", "-", "redis"]
    print_rows(
        {"system": "name", "CPU": "cpu"}, [{"name": "redis", "cpu": 1234.5}, {"name": "x", "cpu": None}]
    )
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [["system", "CPU"], ["redis", "1,234.5"], ["x", "-"]]
