"""The verdicts of the table: a row that is green too easily would prove nothing."""

from __future__ import annotations

import pytest

from tests.interop.table import ROWS, Tally, all_green, proves, table_lines
from tests.places import ROOT

ROW = ROWS[0]


def _proven(*versions: str) -> Tally:
    tally = Tally()
    for version in versions:
        for row in ROWS:
            tally.add(row.number, row.cells, version, passed=True)
    return tally


def test_a_row_is_green_only_if_every_cell_is_proven_for_the_version() -> None:
    tally = Tally()
    tally.add(ROW.number, ROW.cells[:-1], "1", passed=True)
    assert tally.verdict(ROW, "1") == "not run"
    assert tally.missing(ROW, "1") == [ROW.cells[-1]]
    tally.add(ROW.number, ROW.cells[-1:], "2", passed=True)
    assert tally.verdict(ROW, "1") == "not run"
    tally.add(ROW.number, ROW.cells[-1:], "1", passed=True)
    assert tally.verdict(ROW, "1") == "green"


def test_one_failed_test_makes_a_row_red() -> None:
    tally = _proven("1")
    assert all_green(tally, ["1"])
    tally.add(ROW.number, ROW.cells[:1], "1", passed=False)
    tally.add(ROW.number, ROW.cells[:1], "1", passed=True)
    assert tally.verdict(ROW, "1") == "RED"
    assert not all_green(tally, ["1"])


def test_a_version_that_never_ran_is_not_green() -> None:
    assert not all_green(_proven("1"), ["1", "2"])


def test_the_table_has_a_line_for_each_row_and_names_the_missing_cells() -> None:
    tally = _proven("1")
    tally.passed.discard((ROW.number, ROW.cells[0], "1"))
    lines = table_lines(tally, ["1"])
    assert len(lines) == 2 + len(ROWS) + 1
    assert lines[2].endswith("not run")
    assert all(line.endswith("green") for line in lines[3 : 2 + len(ROWS)])
    assert lines[-1] == f"row 1, 1: not proven: {ROW.cells[0]}"


def test_a_mark_with_an_undeclared_cell_is_an_error() -> None:
    with pytest.raises(AssertionError, match="declares no cells"):
        proves(1, "no such cell")
    assert proves(1, ROW.cells[0]).kwargs == {"row": 1, "cells": (ROW.cells[0],)}


def test_the_page_on_compatibility_has_this_table() -> None:
    page = (ROOT / "docs" / "compatibility.md").read_text("utf-8")
    lines = [line for line in page.splitlines() if line.startswith("| ") and line[2].isdigit()]
    assert lines == [f"| {row.number} | {row.actor} | {row.on} | {' · '.join(row.cells)} |" for row in ROWS]
