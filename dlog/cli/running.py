"""Running a command's coroutine so that Ctrl-C and SIGTERM cancel it in an orderly way.

Inside: signals turned into cancellation, so that every clean-up runs as for any cancelled call.
Always: the first signal cancels; a second one ends the process at once, should the clean-up hang.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import outcome
import trio

T = TypeVar("T")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class TerminatedError(Exception):
    """A signal asked the command to end, and it did so in order."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.exit_code = 128 + number


def run(command: Callable[[], Awaitable[T]]) -> T:
    """Run the coroutine function to its end under trio; return what it returns.

    Raises:
        TerminatedError: SIGINT, SIGTERM or SIGHUP came, and the command was cancelled.
    """
    # A no-op where the program has handlers already. Warnings tell why something takes long.
    logging.basicConfig(format="dlog: %(message)s", level=logging.WARNING)
    return trio.run(_run_until_signalled, command)


async def _run_until_signalled(command: Callable[[], Awaitable[T]]) -> T:
    received: list[int] = []
    with trio.open_signal_receiver(*_SIGNALS) as signals:
        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()
            nursery.start_soon(_cancel_on_signal, signals, scope, received)
            # Captured, so that the nursery does not wrap the command's error into a group.
            result: outcome.Outcome[T] | None = None
            with scope:
                result = await outcome.acapture(command)
            nursery.cancel_scope.cancel()
    if received:
        raise TerminatedError(received[0])
    assert result is not None, "only a signal cancels the scope"
    return result.unwrap()


async def _cancel_on_signal(
    signals: AsyncIterator[int], scope: trio.CancelScope, received: list[int]
) -> None:
    async for number in signals:
        if received:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        received.append(number)
        scope.cancel()
