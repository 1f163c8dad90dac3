"""What one decoded input costs: lines of our code, bytes of memory, and which lines ran.

Not inside: limits and what is done about them (``engine``).
Always: the same input gives the same lines on every machine. No clock is read. A decoder that runs for more
lines than it may is stopped.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any

import attrs

from tests.places import ROOT

_OURS = tuple(
    f"{ROOT / package}/" for package in ("bookie", "dlog", "ledger", "namespace", "spark_integration")
)


class TooManyStepsError(BaseException):
    """A decoder ran for more lines than its input may cost. No ``except Exception`` hides it."""


@attrs.frozen
class Cost:
    """The cost of one call."""

    lines: int
    peak_bytes: int
    covered: set[tuple[int, int]]  # hash of a file name, line


def measured(call: Callable[[], object], lines_max: int) -> tuple[BaseException | None, Cost]:
    """Run the call; return its error and its cost. ``tracemalloc`` must be on.

    Raises:
        KeyboardInterrupt: The user pressed Ctrl-C.
    """
    covered: set[tuple[int, int]] = set()
    lines = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(_OURS):
            return None
        name = hash(frame.f_code.co_filename)

        def on_line(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal lines
            if event == "line":
                lines += 1
                covered.add((name, frame.f_lineno))
                if lines > lines_max:
                    raise TooManyStepsError(f"more than {lines_max} lines")
            return on_line

        return on_line

    error: BaseException | None = None
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        raise
    except BaseException as exc:  # a decoder must raise nothing but its documented errors
        error = exc
    finally:
        sys.settrace(previous)
    return error, Cost(lines, max(tracemalloc.get_traced_memory()[1] - before, 0), covered)
