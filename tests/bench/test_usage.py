"""Options that contradict each other are refused before anything is measured."""

from __future__ import annotations

import pytest

from dlog.cli.main import run_program
from tests.bench.__main__ import program


@pytest.mark.parametrize(
    "arguments",
    [
        ["tail"],
        ["tail", "--rate", "100", "--size", "15"],
        ["tail", "--rate", "100", "--peers", "kafka"],
        ["tail", "--rate", "100", "--uri", "file:///nowhere", "--cluster", "3"],
        ["latency", "--level", "ledger"],
        ["append", "--peers", "kafka"],
        ["append", "--peers", "sqlite", "--size", "0"],
        ["catchup", "--second-process", "--level", "ledger", "--cluster", "3"],
        ["idle", "--uri", "file:///nowhere", "--cluster", "3"],
        ["many", "--uri", "file:///nowhere", "--cluster", "3"],
        ["logs", "--uri", "file:///nowhere", "--cluster", "3"],
        ["spark", "--uri", "file:///nowhere", "--cluster", "3"],
    ],
)
def test_contradicting_options_are_refused_with_the_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_program(program, "python -m tests.bench", arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("Usage: python -m tests.bench")
