"""Calls into a loop from other threads, at half of the cost of ``TrioToken.run_sync_soon``.

Inside: one queue and one task for all callers of a run of trio. Not inside: calls from the loop's own thread
(``next_turn``), and waiting for a result (``loop_thread``).
Always: calls are made on the loop, once, in the order of the requests; those requested before the run ends
are made, and later requests raise; calls that come together wake the loop once; a call that raises ends
neither the loop nor another call.

trio's way wakes the loop by a pair of sockets and reads from it until it is empty, which raises an exception
each time. Here the loop is woken by an eventfd, or by a pipe where there is none.

Source: our own; eventfd(2).
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable

import trio

from ledger.runtime.tasks.failure_domain import report_contained

_ONE = (1).to_bytes(8, sys.byteorder)  # what an eventfd takes; to a pipe, eight bytes
_READ_BYTES = 4096


class ThreadCalls:
    """The calls of one run of trio. Made by ``calls_of_this_run``."""

    def __init__(self) -> None:
        self._guard = threading.RLock()  # a signal handler of the thread that holds it may call, too
        self._calls: list[tuple[Callable[..., object], tuple[object, ...]]] = []
        self._is_woken = False
        self._is_over = False
        if hasattr(os, "eventfd"):
            self._reading = self._writing = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        else:
            self._reading, self._writing = os.pipe()
            os.set_blocking(self._reading, False)
            os.set_blocking(self._writing, False)
        trio.lowlevel.spawn_system_task(self._run, name="calls of other threads")

    def __repr__(self) -> str:
        return f"<ThreadCalls, {len(self._calls)} waiting>"

    def call_soon(self, call: Callable[..., object], *args: object) -> None:
        """Make a call on the loop soon; for any thread. The call must neither wait nor raise.

        Raises:
            trio.RunFinishedError: The run of the loop is over.
        """
        with self._guard:
            if self._is_over:
                raise trio.RunFinishedError
            self._calls.append((call, args))
            if not self._is_woken:
                with contextlib.suppress(BlockingIOError):  # a full pipe wakes the loop as well
                    os.write(self._writing, _ONE)
                self._is_woken = (
                    True  # not before: Ctrl-C may come at the write, and no other call would wake it
                )

    async def _run(self) -> None:
        try:
            while True:
                await trio.lowlevel.wait_readable(self._reading)
                os.read(self._reading, _READ_BYTES)
                self._make_calls()
        finally:
            with self._guard:
                self._is_over = True
                for descriptor in {self._reading, self._writing}:
                    os.close(descriptor)
            self._make_calls()

    def _make_calls(self) -> None:
        with self._guard:
            calls, self._calls = self._calls, []
            self._is_woken = False
        for call, args in calls:
            try:
                call(*args)
            except Exception as exc:  # of one caller; the others wait for their calls
                report_contained("call of another thread", exc)


_of_run: trio.lowlevel.RunVar[ThreadCalls] = trio.lowlevel.RunVar("calls of other threads")


def calls_of_this_run() -> ThreadCalls:
    """Where other threads put calls into this loop. Called on the loop."""
    try:
        return _of_run.get()
    except LookupError:
        calls = ThreadCalls()
        _of_run.set(calls)
        return calls
