"""Texts and tables for people."""

# covers: dlog/cli/terminal/output.py

from __future__ import annotations

import pytest

from dlog.cli.terminal.output import counted, moment_text, print_table


def test_one_of_a_kind_is_singular() -> None:
    assert [counted(number, "segment") for number in (0, 1, 2000)] == [
        "0 segments",
        "1 segment",
        "2,000 segments",
    ]
    assert [counted(number, "entry", "entries") for number in (1, 2)] == ["1 entry", "2 entries"]


def test_columns_of_numbers_are_aligned_to_the_right_and_names_to_the_left(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [["127.0.0.1:3181", "1,000", "81.3 GB", "-"], ["b:1", "7", "9 GB", "3%"]]
    print_table(["bookie", "entries", "free", "kept"], rows)
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "bookie          entries     free  kept",
        "127.0.0.1:3181    1,000  81.3 GB     -",
        "b:1                   7     9 GB    3%",
    ]


def test_a_moment_has_a_date_and_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert moment_text(1_700_000_000_000)[:8] == "2023-11-"
    assert len(moment_text(1_700_000_000_123)) == len("2023-11-14 22:13:20")
