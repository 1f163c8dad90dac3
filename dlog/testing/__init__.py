"""Testing services that use logs.

Inside: a namespace in memory on a simulated disk (``open_world``), the history of logs and its checker.
Not inside: pytest and Hypothesis, which only ``plugin`` and ``strategies`` import. Begin with ``World``.
"""

from dlog.testing.history import (
    History,
    HistoryViolationError,
    LogHistory,
    Problem,
    ReaderHistory,
    Rule,
    Submission,
)
from dlog.testing.recording import WriterRecorder
from dlog.testing.world import PowerCut, World, open_world

__all__ = [
    "History",
    "HistoryViolationError",
    "LogHistory",
    "PowerCut",
    "Problem",
    "ReaderHistory",
    "Rule",
    "Submission",
    "World",
    "WriterRecorder",
    "open_world",
]
