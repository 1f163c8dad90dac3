"""Calls into a loop from other threads, at half of the cost of ``TrioToken.run_sync_soon``.

Inside: one queue and one task for all callers of a run of trio. Not inside: calls from the loop's own thread
(``next_turn``), and waiting for a result (``loop_thread``).
Always: calls are made on the loop, once, in the order of the requests; those requested before the run ends
are made, and later requests raise; calls that come together wake the loop once; a call that raises ends
neither the loop nor another call. The loop waits for no lock of a caller: a signal handler that interrupts a
caller may call, too, and wait for the loop.

trio's way wakes the loop by a pair of sockets and reads from it until it is empty, which raises an exception
each time. Here the loop is woken by an eventfd, or by a pipe where there is none.

Source: our own; eventfd(2).
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections import deque
from collections.abc import Callable

import trio

from ledger.runtime.tasks.failure_domain import report_contained

_ONE = (1).to_bytes(8, sys.byteorder)  # what an eventfd takes; to a pipe, eight bytes
_READ_BYTES = 4096

_Request = tuple[Callable[..., object], tuple[object, ...]]


class ThreadCalls:
    """The calls of one run of trio. Made by ``calls_of_this_run``."""

    def __init__(self) -> None:
        # Appending to a deque and popping from it are single steps, for threads and for signal handlers.
        self._calls: deque[_Request] = deque()
        self._round = 0  # grows when the loop begins to take calls
        self._woken = -1  # the round in which the loop was woken last
        self._is_over = False
        self._ended = threading.Lock()  # released when the last calls were made
        self._ended.acquire()
        self._refusing = threading.RLock()  # of callers after the end; the loop never takes it
        self._refused: list[_Request] = []
        self._writers: list[None] = []  # one for each thread that may be writing to the descriptor
        if hasattr(os, "eventfd"):
            self._reading = self._writing = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        else:
            self._reading, self._writing = os.pipe()
            os.set_blocking(self._reading, False)
            os.set_blocking(self._writing, False)
        self._open = list({self._reading, self._writing})
        trio.lowlevel.spawn_system_task(self._run, name="calls of other threads")

    def __repr__(self) -> str:
        return f"<ThreadCalls, {len(self._calls)} waiting>"

    def call_soon(self, call: Callable[..., object], *args: object) -> None:
        """Make a call on the loop soon; for any thread. The call must neither wait nor raise.

        Raises:
            trio.RunFinishedError: The run of the loop is over.
        """
        if self._is_over:
            raise trio.RunFinishedError
        request = call, args
        self._calls.append(request)
        # Read after the request is there: the loop begins a new round before it takes the requests. So one
        # that woke it in this round has done so for this request, too.
        current = self._round
        if self._woken != current:
            self._wake()
            self._woken = current  # not before: a signal may come at the write, and its handler may call
        if self._has_ended() and self._is_refused(request):
            raise trio.RunFinishedError

    def _wake(self) -> None:
        self._writers.append(None)  # so that the descriptor is not closed, and its number not used again
        try:
            if not self._is_over:
                with contextlib.suppress(BlockingIOError):  # a full pipe wakes the loop as well
                    os.write(self._writing, _ONE)
        finally:
            self._writers.pop()
            if self._is_over:
                self._close()

    def _has_ended(self) -> bool:
        return self._is_over

    def _is_refused(self, request: _Request) -> bool:
        """True if the loop ended without this request, as it does with those left after its last calls."""
        self._ended.acquire()  # soon: the loop waits for nobody at its end
        self._ended.release()
        with self._refusing:
            with contextlib.suppress(IndexError):
                while True:
                    self._refused.append(self._calls.popleft())
            return any(each is request for each in self._refused)

    async def _run(self) -> None:
        try:
            while True:
                await trio.lowlevel.wait_readable(self._reading)
                os.read(self._reading, _READ_BYTES)
                self._make_calls()
        finally:
            self._is_over = True
            self._close()
            while self._calls:
                self._make_calls()
            self._ended.release()

    def _close(self) -> None:
        """Close the descriptors, unless a thread may be writing to one; it closes them then."""
        if not self._writers:
            with contextlib.suppress(IndexError):
                while True:
                    os.close(self._open.pop())

    def _make_calls(self) -> None:
        self._round += 1
        for _ in range(len(self._calls)):  # those requested by these calls have their turn in the next round
            call, args = self._calls.popleft()
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
