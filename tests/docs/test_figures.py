"""A figure of speed is one of docs/performance.md; and the pages name what exists."""

from __future__ import annotations

import re

import pytest

from tests.places import ROOT

_SPEED = re.compile(r"\d[\d,.]*\s*(?:ms\b|us\b|records/s|entries/s|MB/s|MiB/s)")
_REGISTRY = re.compile(r"pip install '?dlog-streams")


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|\n").split("|")]


def test_readme_quotes_no_figure_of_speed_but_in_its_table() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert _SPEED.findall(re.sub(r"^\|.*\n", "", text, flags=re.MULTILINE)) == []


def test_readme_has_the_figures_of_the_page_of_performance() -> None:
    numbers = (ROOT / "README.md").read_text("utf-8").partition("## Numbers")[2].partition("\n## ")[0]
    bars = (ROOT / "docs" / "performance.md").read_text("utf-8").partition("## Bars")[2].partition("\n## ")[0]
    measured = {cells[0]: cells[-1] for line in bars.splitlines() if len(cells := _cells(line)) == 4}
    rows = re.findall(r"^\| (?!work).*$", numbers, re.MULTILINE)
    assert len(rows) == 3
    for row in rows:
        work, *figures = _cells(row)
        kind = re.match(r"one awaited append|\S+ of 1 KiB", work)
        assert kind is not None, row
        for deployment, figure in zip(("embedded", "three replicas"), figures, strict=True):
            names = [name for name in measured if name.startswith(f"{kind[0]}, {deployment}")]
            assert len(names) == 1, row
            assert re.search(rf"(?<![\d.,]){re.escape(figure)}(?![\d.,])", measured[names[0]]), row


def _names_of_rows(text: str) -> list[str]:
    """The first cells of all tables but their heads; "the same" begins a row about the one before it."""
    lines = text.splitlines()
    bodies = [
        line
        for before, line in zip(["", *lines], lines, strict=False)
        if line.startswith("| ") and before.startswith("|")
    ]
    return [name for line in bodies if not (name := _cells(line)[0]).startswith("the same")]


def test_a_figure_stands_in_one_row_of_one_table_of_the_page_of_performance() -> None:
    text = (ROOT / "docs" / "performance.md").read_text("utf-8")
    names = _names_of_rows(text)
    assert len(names) > 30
    assert [name for name in names if names.count(name) > 1] == []
    commands = re.findall(r"^`(python -m tests[.]bench [^`]+)`", text, re.MULTILINE)  # its results follow
    assert len(commands) >= 4
    assert [command for command in commands if commands.count(command) > 1] == []


def test_a_row_that_stands_twice_is_found() -> None:
    table = "| work | now |\n|---|---|\n| append | {} |\n| the same, p99 | 2 |\n\n"
    assert _names_of_rows(table.format(1) + table.format(3)) == ["append", "append"]


@pytest.mark.slow
def test_no_text_tells_to_install_from_a_registry_that_does_not_have_it() -> None:
    places = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/**/*.py")]
    named = [
        str(path.relative_to(ROOT))
        for path in places
        if ".venv" not in path.parts and _REGISTRY.search(path.read_text("utf-8"))
    ]
    assert named == []
