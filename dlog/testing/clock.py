"""The time and the trace that a simulated disk needs.

Inside: the two seams, and their forms for a test of an application. Not inside: the time of the simulation
(``tests.simulation.clockwork``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import trio


class Timeline(Protocol):
    """Calls that happen later."""

    def after(self, delay_s: float, call: Callable[..., None], *args: Any) -> None:
        """Call later."""

    async def sleep(self, seconds: float) -> None:
        """As ``trio.sleep``."""


class Trace(Protocol):
    """Takes note of the course of a run."""

    def note(self, source: str, text: str) -> None:
        """Add a line."""

    def mark(self, kind: bytes, number: int, checksum: int) -> None:
        """Add something frequent."""


class TaskTimeline:
    """The time of trio's clock, real or virtual. Calls are tasks of a nursery.

    Always: a nursery that is gone loses the calls; they belonged to a process that has ended.
    """

    def __init__(self) -> None:
        self.nursery: trio.Nursery | None = None

    def after(self, delay_s: float, call: Callable[..., None], *args: Any) -> None:
        if self.nursery is not None:
            self.nursery.start_soon(self._call, delay_s, call, args)

    async def _call(self, delay_s: float, call: Callable[..., None], args: tuple[Any, ...]) -> None:
        with trio.CancelScope(shield=True):  # a thread that is closed waits for its jobs
            await trio.sleep(delay_s)
        call(*args)

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)


class NoTrace:
    """Notes nothing."""

    def note(self, source: str, text: str) -> None:
        pass

    def mark(self, kind: bytes, number: int, checksum: int) -> None:
        pass
