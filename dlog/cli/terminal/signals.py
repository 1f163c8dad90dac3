"""Runs a command's coroutine, and turns Ctrl-C, SIGTERM and SIGHUP into its cancellation.

Always: the first signal cancels the command, so that its clean-up runs as for any cancelled call. A second
signal ends the process at once, in case the clean-up hangs.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import outcome
import trio

from dlog.cli.terminal.log_lines import print_warnings

T = TypeVar("T")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class TerminatedError(Exception):
    """A signal cancelled the command, and its clean-up is complete."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.exit_code = 128 + number


def run(command: Callable[[], Awaitable[T]]) -> T:
    """Run the coroutine function under trio; return its result.

    Raises:
        TerminatedError: SIGINT, SIGTERM or SIGHUP cancelled the command.
    """
    print_warnings()
    return trio.run(_run_until_signalled, command)


async def _run_until_signalled(command: Callable[[], Awaitable[T]]) -> T:
    received: list[int] = []
    with trio.open_signal_receiver(*_SIGNALS) as signals:
        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()
            nursery.start_soon(_cancel_on_signal, signals, scope, received)
            # Captured, so that the nursery does not wrap the command's error in a group.
            result: outcome.Outcome[T] | None = None
            with scope:
                result = await outcome.acapture(command)
            nursery.cancel_scope.cancel()
    if received:
        raise TerminatedError(received[0])
    assert result is not None, "only a signal cancels the scope"  # it raised above
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
