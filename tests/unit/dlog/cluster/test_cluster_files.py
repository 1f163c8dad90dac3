"""Small questions about the files of a cluster."""

# covers: dlog/cluster/files.py

from __future__ import annotations

from pathlib import Path

import pytest

from dlog.cluster.files import last_message, last_message_of

LOG_LINE = "2026-01-02 03:04:05,678 ERROR bookie.main: "


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", None),
        ("dlog: it is full\n", "it is full"),
        (
            "dlog: a warning\ndlog: the cookie differs\n--- node\n+++ configured\n- a\n+ b\n",
            "the cookie differs",
        ),
        (f"{LOG_LINE}one\n{LOG_LINE}two:\n  evidence\n", f"{LOG_LINE}two:"),
        (
            f"{LOG_LINE}failed\nTraceback (most recent call last):\n  File 'x'\nValueError: too much\n",
            "ValueError: too much",
        ),
        ("Traceback (most recent call last):\n  File 'x'\nValueError: too much\n", "ValueError: too much"),
        ("Usage: dlog [OPTIONS]\n\nError: No such option: --x\n", "Error: No such option: --x"),
        ('{"message": "one"}\n{"message": "two"}\n', '{"message": "two"}'),
        ("not a message of ours\nthe end\n", "the end"),
    ],
)
def test_the_reason_is_the_first_line_of_the_last_message(text: str, reason: str | None) -> None:
    assert last_message(text) == reason


def test_a_log_that_is_missing_or_empty_has_no_message(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_message_of(log) == "(empty)"
    log.write_text("\n")
    assert last_message_of(log) == "(empty)"
    log.write_text("dlog: no\n\xff")
    assert last_message_of(log) == "no"
