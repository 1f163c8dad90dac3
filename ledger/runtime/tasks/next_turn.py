"""Calls in the next turn of the loop, without a task for each.

Inside: one task for all calls of a run of trio. Not inside: calls from other threads, which must wake the
loop (``TrioToken.run_sync_soon``), and delays (``timers``).
Always: a call is made after the present step of the loop has ended, once, in the order of the requests; calls
that are requested meanwhile are made one turn later; a program that ends makes no more of them.

``TrioToken.run_sync_soon`` does the same for the loop's own thread, but it writes to a socket, waits for the
operating system to say that the socket is readable, and reads from it.

Source: our own.
"""

from __future__ import annotations

from collections.abc import Callable

import trio


class _NextTurn:
    """The calls of one run of trio, and the task that makes them."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []
        self.idle: trio.lowlevel.Task | None = None  # the task that makes them, while there are none
        trio.lowlevel.spawn_system_task(self._run, name="calls of the next turn")

    async def _run(self) -> None:
        while True:
            calls, self.calls = self.calls, []
            for call in calls:
                call()
            if self.calls:
                await trio.lowlevel.checkpoint()
            else:
                self.idle = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(self._abort)

    def _abort(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self.idle = None
        return trio.lowlevel.Abort.SUCCEEDED


_of_run: trio.lowlevel.RunVar[_NextTurn] = trio.lowlevel.RunVar("next turn")


def call_next_turn(call: Callable[[], None]) -> None:
    """Call back on the loop after the present step; for the loop's thread only. The call must not raise."""
    try:
        turn = _of_run.get()
    except LookupError:
        turn = _NextTurn()
        _of_run.set(turn)
    turn.calls.append(call)
    task, turn.idle = turn.idle, None
    if task is not None:
        trio.lowlevel.reschedule(task)
