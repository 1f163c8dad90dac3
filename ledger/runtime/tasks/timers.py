"""Timers: one task calls every function whose time has come.

Inside: ``Timers``, and the ``Timer`` that cancels one call. Not inside: the work of the functions.
Always: a timer calls once, never early, and never after it was cancelled; while no timer runs, the task
sleeps.

A cancel scope for each request would cost more than sending the request. Almost all requests have one of a
few time limits, and almost all get a reply in time. So timers of one duration are kept in one dictionary, the
oldest first, from which a cancelled one is removed at little cost.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from ledger.runtime.tasks.failure_domain import report_contained

_Queue = dict["Timer", None]  # of one duration, the oldest first


class Timer:
    """Made by ``Timers.after``."""

    __slots__ = ("_call", "_due", "_queue")

    def __init__(self, queue: _Queue, due: float, call: Callable[[], None]) -> None:
        self._queue, self._due, self._call = queue, due, call

    def cancel(self) -> None:
        """Prevent the call, unless it has happened already."""
        self._queue.pop(self, None)


class Timers:
    """Timers that call only while a task executes ``run``."""

    def __init__(self) -> None:
        self._queues: dict[float, _Queue] = {}  # by duration in seconds
        self._sleep = trio.CancelScope()

    def __repr__(self) -> str:
        return f"<Timers, {sum(map(len, self._queues.values()))} running>"

    def after(self, seconds: float, call: Callable[[], None]) -> Timer:
        """Call ``call()`` on the event loop after this many seconds, unless cancelled.

        An error of the call is logged and ends nothing else.
        """
        queue = self._queues.get(seconds)
        if queue is None:
            queue = self._queues[seconds] = {}
        due = trio.current_time() + seconds
        timer = Timer(queue, due, call)
        queue[timer] = None
        if due < self._sleep.deadline:
            self._sleep.deadline = due
        return timer

    async def run(self) -> None:
        """Call the timers that are due, until cancelled."""
        while True:
            # No other task runs between computing the deadline and the sleep, so no timer is missed.
            with trio.CancelScope(deadline=self._next_due()) as self._sleep:
                await trio.sleep_forever()
            # Tasks that were woken before come first: an append of theirs may make a call needless.
            await trio.lowlevel.checkpoint()
            self._call_due(trio.current_time())

    def _next_due(self) -> float:
        due = float("inf")
        for seconds, queue in list(self._queues.items()):
            first = next(iter(queue), None)
            if first is None:
                del self._queues[seconds]
            else:
                due = min(due, first._due)
        return due

    def _call_due(self, now: float) -> None:
        for queue in list(self._queues.values()):
            due: list[Timer] = []
            for timer in queue:
                if timer._due > now:
                    break
                due.append(timer)
            for timer in due:
                if timer in queue:  # not cancelled by a timer called before it
                    del queue[timer]
                    try:
                        timer._call()
                    except Exception as exc:  # the others are called all the same
                        report_contained("timer", exc)
