"""What a terminal gets: columns in its width, bold words, a line and a screen that are drawn again."""

# covers: dlog/cli/terminal/screen.py

from __future__ import annotations

import io
import sys

import pytest

from dlog.cli.terminal import screen
from dlog.cli.terminal.output import make_table, print_facts, print_table, progress_bar
from dlog.cli.terminal.screen import BOLD, GREEN, Line, bar, cells, cut, padded, styled, whole_screen

RESET = "\x1b[0m"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """stdout and stderr on a terminal of 40 columns and 5 lines."""
    made = Terminal()
    monkeypatch.setattr(sys, "stdout", made)
    monkeypatch.setattr(sys, "stderr", made)
    for name, value in (("COLUMNS", "40"), ("LINES", "5"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    return made


def test_a_file_gets_text_alone(capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 100
    print_table(["log", "records"], [[long, "7"], ["b", "1,000"]])
    print_facts([("name", "orders"), ("a", "first\nsecond")])
    with progress_bar("reading", 10) as update:
        update(5)
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.splitlines() == [
        "log" + " " * 99 + "records",
        long + " " * 8 + "7",
        "b" + " " * 103 + "1,000",
        "name  orders",
        "a     first",
        "      second",
    ]


def test_a_table_fits_the_terminal_by_cutting_its_widest_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    on_terminal(monkeypatch)
    head, *lines = make_table(["log", "writer", "records"], [["a" * 30, "b" * 20, "1"], ["c", "d", "2"]])
    assert head.startswith(BOLD)
    assert all(cells(line) <= 40 for line in lines)
    assert lines[0].split() == ["a" * 13 + "…", "b" * 14 + "…", "1"]
    assert lines[1].split() == ["c", "d", "2"]


def test_a_long_value_continues_below_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    print_facts([("why", "the bookies did not reply within the time that they have")])
    assert terminal.getvalue().splitlines() == [
        f"{BOLD}why{RESET}  the bookies did not reply within",
        "     the time that they have",
    ]


def test_wide_characters_and_marks_count_as_the_columns_that_they_take() -> None:
    assert [cells(text) for text in ("abc", "日本", "e\u0301")] == [3, 4, 1]
    assert (padded("日本", 6), padded("日本", 6, right=True)) == ("日本  ", "  日本")
    assert (cut("日本語", 6), cut("日本語", 5), cut("abcdef", 4), cut("abc", 3)) == (
        "日本語",
        "日本…",
        "abc…",
        "abc",
    )


def test_styles_are_for_terminals_that_know_them(monkeypatch: pytest.MonkeyPatch) -> None:
    on_terminal(monkeypatch)
    assert styled("well", GREEN) == f"{GREEN}well{RESET}"
    monkeypatch.setenv("NO_COLOR", "1")
    assert styled("well", GREEN) == f"{BOLD}well{RESET}"
    monkeypatch.setenv("TERM", "dumb")
    assert styled("well", GREEN) == "well"
    assert styled("well", GREEN, io.StringIO()) == "well"


def test_a_bar_says_how_far_it_is_and_is_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    monkeypatch.setattr(screen, "DRAW_S", 0.0)
    monkeypatch.setenv("COLUMNS", "200")
    with progress_bar("reading", 400, unit="records") as update:
        update(100)
        update(400)
    first, second, last = terminal.getvalue().split("\r")[1:]
    assert "reading [#######.......................]  25%  100 records, " in first
    assert "] 100%  400 records, 0 s left" in second
    assert last == "\x1b[K"
    assert bar("reading", 7, None, "records", 2.0) == "reading 7 records in 2 s"
    assert "  0%  0 records" in bar("reading", 0, 400, "records", 2.0)


def test_a_line_is_drawn_no_more_often_than_eyes_see(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    now_s = 100.0
    monkeypatch.setattr("dlog.cli.terminal.screen.time.monotonic", lambda: now_s)
    line = Line(terminal)
    for text in ("first", "second"):
        line.draw(text)
    now_s += 1
    line.draw("third")
    assert [part.split("\x1b")[0] for part in terminal.getvalue().split("\r")[1:]] == ["first", "third"]


def test_a_screen_shows_the_lines_that_fit_and_gives_the_terminal_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = on_terminal(monkeypatch)

    def draw() -> None:
        with whole_screen(terminal) as show:
            show([str(number) for number in range(9)])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        draw()
    drawn = terminal.getvalue()
    assert "0\n1\n2\n3\n4\x1b" in drawn
    assert drawn.startswith("\x1b[?1049h")
    assert drawn.endswith("\x1b[?1049l")
