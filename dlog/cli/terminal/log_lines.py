"""The log lines of a command on stderr: warnings, because they explain delays.

Inside: setting up the log, leaving out repetitions. Not inside: notes and results (``output``).
Always: a line that repeats within a minute is printed once; the next one says how many were left out.
"""

from __future__ import annotations

import logging
from collections import OrderedDict

import attrs

from ledger.runtime.events import start_logging

REPEAT_S = 60.0
TEXTS_MAX = 64  # that are remembered


@attrs.define
class _Shown:
    at_s: float
    left_out: int = 0


class WithoutRepetitions(logging.Filter):
    """Leaves out a line that was printed less than ``REPEAT_S`` before."""

    def __init__(self) -> None:
        super().__init__()
        self._shown: OrderedDict[str, _Shown] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """True if the line is to be printed."""
        text = record.getMessage()
        before = self._shown.get(text)
        if before is not None and record.created - before.at_s < REPEAT_S:
            before.left_out += 1
            return False
        if before is not None and before.left_out:
            record.msg, record.args = f"{text} (left out {before.left_out} times)", ()
        self._shown[text] = _Shown(record.created)
        self._shown.move_to_end(text)
        if len(self._shown) > TEXTS_MAX:
            self._shown.popitem(last=False)
        return True


def print_warnings() -> None:
    """Print warnings on stderr. It does nothing if the program has set up logging already."""
    if logging.root.handlers:
        return
    start_logging(logging.WARNING, "dlog: %(message)s")
    for handler in logging.root.handlers:
        handler.addFilter(WithoutRepetitions())
