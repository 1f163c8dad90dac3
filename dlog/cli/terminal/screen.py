"""What people see on a terminal: columns, bold words, a bar of progress, a screen that is drawn again.

Inside: the width of texts, cutting and folding them, the control sequences. Not inside: which text is shown
(``output`` and the commands), control characters in it (``escapes``).
Always: without a terminal nothing but text is written.

Source: ECMA-48 (SGR, EL, CUP); xterm (the alternate screen); UAX 11 (wide characters).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import sys
import textwrap
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TextIO

WIDTH_IN_FILES = 160  # columns, if stdout is no terminal
GAP = "  "  # between two columns
DRAW_S = 0.1  # between two drawings of one line
BAR_COLUMNS = 30
BOLD, RED, GREEN = "\x1b[1m", "\x1b[1;31m", "\x1b[1;32m"
_RESET, _REST_OF_LINE = "\x1b[0m", "\x1b[K"
_SCREEN, _OLD_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME_AND_CLEAR = "\x1b[H\x1b[2J"


def styled(text: str, style: str, stream: TextIO | None = None) -> str:
    """The text in a style if the stream, or else stdout, is a terminal that knows styles."""
    stream = sys.stdout if stream is None else stream
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        return text
    return f"{BOLD if 'NO_COLOR' in os.environ else style}{text}{_RESET}"


def width() -> int:
    """The columns of stdout."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH_IN_FILES


def cells(text: str) -> int:
    """How many columns of a terminal a text takes."""
    return len(text) if text.isascii() else sum(map(_cells_of, text))


def _cells_of(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def cut(text: str, columns: int) -> str:
    """The text, or its beginning and an ellipsis, in at most this many columns."""
    if cells(text) <= columns:
        return text
    ends = itertools.accumulate(map(_cells_of, text))
    return text[: sum(end < columns for end in ends)] + "…"


def padded(text: str, columns: int, *, right: bool = False) -> str:
    """The text in this many columns."""
    space = " " * (columns - cells(text))
    return space + text if right else text + space


def table_lines(header: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool]) -> list[str]:
    """The lines of a table; ``numeric`` columns are aligned to the right. Long cells are cut at the width."""
    widths = [max(map(cells, column)) for column in zip(header, *rows, strict=True)]
    while sum(widths) + len(GAP) * (len(widths) - 1) > width() and max(widths) > 1:
        widths[widths.index(max(widths))] -= 1
    lines = []
    for row in (header, *rows):
        columns = zip(row, widths, numeric, strict=True)
        shown = [padded(cut(cell, most), most, right=right) for cell, most, right in columns]
        if row is header:
            shown = [styled(cell, BOLD) for cell in shown]
        lines.append(GAP.join(shown).rstrip())
    return lines


def fact_lines(facts: Iterable[tuple[str, str]]) -> list[str]:
    """Names and values; a long value continues below itself."""
    facts = list(facts)
    first = max((cells(name) for name, _ in facts), default=0)
    lines = []
    for name, value in facts:
        label = styled(padded(name, first), BOLD)
        for line in value.split("\n"):
            for part in _folded(line, max(1, width() - first - len(GAP))):
                lines.append(f"{label}{GAP}{part}".rstrip())
                label = " " * first
    return lines


def _folded(line: str, columns: int) -> list[str]:
    if cells(line) <= columns:
        return [line]
    return textwrap.wrap(line, columns, break_on_hyphens=False, replace_whitespace=False) or [""]


class Line:
    """The last line of a terminal, drawn again and again; without a terminal nothing."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._is_shown, self._next_s = stream, stream.isatty(), 0.0

    def draw(self, text: str) -> None:
        """Show a text in place of the one before; not more often than eyes see."""
        now_s = time.monotonic()
        if self._is_shown and now_s >= self._next_s:
            self._next_s = now_s + DRAW_S
            self._write("\r" + cut(text, shutil.get_terminal_size().columns - 1) + _REST_OF_LINE)

    def clear(self) -> None:
        """Leave nothing of it."""
        if self._is_shown:
            self._write("\r" + _REST_OF_LINE)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def bar(label: str, done: int, total: int | None, unit: str, seconds: float) -> str:
    """A line that shows how far something is, after some seconds."""
    if not total:
        return f"{label} {done:,} {unit} in {seconds:.0f} s"
    share = min(1.0, done / total)
    filled = int(share * BAR_COLUMNS)
    left = f", {seconds / share - seconds:.0f} s left" if share else ""
    drawn = f"[{'#' * filled}{'.' * (BAR_COLUMNS - filled)}]"
    return f"{label} {drawn} {share:4.0%}  {done:,} {unit}".rstrip() + left


@contextlib.contextmanager
def whole_screen(stream: TextIO) -> Iterator[Callable[[Sequence[str]], None]]:
    """Take the terminal for the duration of the block; yield what shows lines in place of those before."""

    def show(lines: Sequence[str]) -> None:
        rows = shutil.get_terminal_size().lines
        stream.write(_HOME_AND_CLEAR + "\n".join(lines[:rows]))
        stream.flush()

    stream.write(_SCREEN)
    try:
        yield show
    finally:
        stream.write(_OLD_SCREEN)
        stream.flush()
