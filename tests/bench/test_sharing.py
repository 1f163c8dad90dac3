"""`python -m tests.bench shared`: its arithmetic, and a short run."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from tests.bench.sharing import command, rate, row, takeover_row


def test_the_rate_of_several_programs_counts_from_the_first_begin_to_the_last_end() -> None:
    done = [
        {"began_ns": 1_000_000_000, "ended_ns": 2_000_000_000},
        {"began_ns": 1_500_000_000, "ended_ns": 3_000_000_000},
    ]
    assert rate(400, done) == 200.0


def test_a_row_has_medians_and_the_ratio_of_each_round() -> None:
    found = row("append", "us", [(100.0, 150.0), (200.0, 220.0), (50.0, 100.0)])
    assert (found["own"], found["shared"], found["ratio"]) == (100, 150, 1.5)
    assert found["ratios"] == [1.5, 1.1, 2.0]


def test_the_row_of_take_overs_has_the_slowest() -> None:
    found = takeover_row([0.1, 0.31, 0.2])
    assert (found["shared"], found["ratios"]) == (0.31, [0.1, 0.31, 0.2])


@pytest.mark.slow
def test_programs_that_share_a_log_in_a_directory_are_measured() -> None:
    options = [
        "--processes",
        "2",
        "--records",
        "3",
        "--batches",
        "4",
        "--batch",
        "5",
        "--kills",
        "1",
        "--json",
    ]
    result = CliRunner().invoke(command, options, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)["figures"]
    assert [each["unit"] for each in figures] == ["us", "records/s", "s"]
    assert all(each["shared"] > 0 for each in figures)
