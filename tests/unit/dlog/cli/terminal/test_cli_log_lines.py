"""Log lines of commands: a warning that repeats is printed once a minute."""

# covers: dlog/cli/terminal/log_lines.py

from __future__ import annotations

import io
import logging

from dlog.cli.terminal.log_lines import REPEAT_S, TEXTS_MAX, WithoutRepetitions


def printed(lines: list[tuple[float, str]]) -> list[str]:
    """The lines that are printed, of lines with their times."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(WithoutRepetitions())
    for at_s, text in lines:
        record = logging.LogRecord("kazoo.client", logging.WARNING, "", 0, "%s", (text,), None)
        record.created = at_s
        handler.handle(record)
    return stream.getvalue().splitlines()


def test_a_warning_that_repeats_is_printed_once() -> None:
    assert printed([(float(at_s), "refused") for at_s in range(11)]) == ["refused"]


def test_other_lines_between_are_printed() -> None:
    assert printed([(0, "refused"), (1, "expired"), (2, "refused")]) == ["refused", "expired"]


def test_after_a_minute_it_is_printed_again_with_the_number() -> None:
    lines = [(0, "refused"), (1, "refused"), (2, "refused"), (REPEAT_S, "refused"), (200, "refused")]
    assert printed(lines) == ["refused", "refused (left out 2 times)", "refused"]


def test_the_memory_of_lines_is_bounded() -> None:
    lines = [(0.0, str(number)) for number in range(TEXTS_MAX + 1)]
    assert printed([*lines, (1, "0"), (1, str(TEXTS_MAX))])[-1] == "0"
