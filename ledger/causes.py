"""What a traceback shows of an error: each message once, and no frames that only pass a call on.

An error whose message has that of its cause is raised ``from None``. ``cause_of`` finds the cause all the
same.

Inside: the causes that are not shown, and the frames. Not inside: groups of errors (``tasks.task_errors``).

Source: our own.
"""

from __future__ import annotations

from types import TracebackType
from typing import TypeVar

E = TypeVar("E", bound=BaseException)

# Packages whose frames only pass a call on. A module of ours whose frames do has a variable PASSES_CALLS_ON.
_PASSING_ON = ("trio", "outcome", "asyncio", "concurrent", "contextlib")


def cause_of(error: BaseException) -> BaseException | None:
    """What the error was raised for, whether a traceback shows it or not (``raise ... from None``)."""
    if error.__cause__ is None and error.__suppress_context__:
        return error.__context__
    return error.__cause__


def with_hidden_cause(error: E, cause: BaseException | None) -> E:
    """The error, with a cause for ``cause_of`` that no traceback shows."""
    error.__context__, error.__suppress_context__ = cause, True
    return error


def shorten(error: BaseException) -> None:
    """Take the frames that only pass a call on out of the tracebacks of an error and its causes.

    They are those of trio and of the faces, and the same for every error. For a face, before its caller gets
    the error.
    """
    shown: BaseException | None = error
    while shown is not None:
        shown.__traceback__ = _telling(shown.__traceback__)
        shown = shown.__cause__ or (None if shown.__suppress_context__ else shown.__context__)


def _telling(trace: TracebackType | None) -> TracebackType | None:
    frames = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    for each in reversed(frames):
        names = each.tb_frame.f_globals
        package = names.get("__name__", "").partition(".")[0]
        if package not in _PASSING_ON and "PASSES_CALLS_ON" not in names:
            trace = TracebackType(trace, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return trace
