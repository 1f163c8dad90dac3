"""Steps of a machine, in the middle of which no record is taken.

Inside: the mark, and the error of a call that meets it. Not inside: taking records.
Always: what a signal handler calls finds the machine as it is between two steps, or is refused.

Source: our own; docs/guide.md, "Signal handlers, and memory in use".
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar


class Stepped(Protocol):
    """A machine that knows whether a change is half made."""

    in_step: bool


M = TypeVar("M", bound=Stepped)
P = ParamSpec("P")
T = TypeVar("T")


def a_step(change: Callable[Concatenate[M, P], T]) -> Callable[Concatenate[M, P], T]:
    """Mark the machine while it changes. Steps may lie in each other."""

    def made(self: M, /, *args: P.args, **kwargs: P.kwargs) -> T:
        before = self.in_step
        try:
            self.in_step = True
            return change(self, *args, **kwargs)
        finally:
            self.in_step = before

    functools.update_wrapper(made, change)
    return made


def taken_in_step(log: str) -> RuntimeError:
    """The error of a call that comes in the middle of another step of the writer. Nothing was taken."""
    return RuntimeError(
        f"log {log!r}: this call came in the middle of a step of its writer, as from a handler of"
        " signal.signal; nothing was taken. Use trio.open_signal_receiver or loop.add_signal_handler, whose"
        " code runs between the steps"
    )
