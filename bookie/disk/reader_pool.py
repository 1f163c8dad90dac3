"""A few threads that wait for the disk, so that the loop does not.

Inside: passing jobs to threads and results back to tasks. Not inside: the jobs.
Always: the numbers of threads and of queued jobs are bounded. A task that finds the queue full waits, in
order of arrival. A started job is finished, and its task gets the result unless the loop has ended.

With several readers this costs a sixth of ``trio.to_thread``: a thread wakes the loop once for all pending
results, and takes the next job without returning to a pool.

Source: measured; docs/storage-format.md 8.5 and 14.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

import trio

from ledger.runtime.tasks.thread_calls import calls_of_this_run

IDLE_S = 10.0  # a thread without a job ends after this time
QUEUED_MAX = 1024

T = TypeVar("T")


class _Job:
    __slots__ = ("args", "call", "error", "result", "task")

    def __init__(self, task: trio.lowlevel.Task, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.task, self.call, self.args = task, call, args
        self.result: Any = None
        self.error: BaseException | None = None


class ReaderPool:
    """Runs the jobs of one loop's tasks. Construct it on that loop; it needs no close."""

    def __init__(self, threads_max: int, *, queued_max: int = QUEUED_MAX, idle_s: float = IDLE_S) -> None:
        self.calls = calls_of_this_run()
        self._threads_max = threads_max
        self._queued_max = queued_max
        self._idle_s = idle_s
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._done: deque[_Job] = deque()
        self._lock = threading.Lock()
        self._threads_count = 0
        self._unfinished = 0  # jobs whose task waits; accessed on the loop only
        self._waiting = trio.lowlevel.ParkingLot()
        self._is_wake_pending = False  # ``_wake`` is scheduled and has not run yet

    def __repr__(self) -> str:
        return f"<ReaderPool with {self._threads_count} threads, {self._unfinished} jobs>"

    @property
    def threads_count(self) -> int:
        return self._threads_count

    async def run(self, job: Callable[..., T], *args: Any) -> T:
        """Run the job in a thread; return its result or raise its error. Not cancellable once queued."""
        try:
            while self._unfinished >= self._queued_max:
                await self._waiting.park()
            await trio.lowlevel.checkpoint_if_cancelled()
        except trio.Cancelled:
            self._admit_waiting()  # this task may have been woken for a free place: give it to the next one
            raise
        work = _Job(trio.lowlevel.current_task(), job, args)
        with self._lock:
            # One thread for each unfinished job, up to the maximum: a thread that waits for the disk takes no
            # other job. A thread that is about to end checks the queue under the lock.
            if self._threads_count < min(self._unfinished + 1, self._threads_max):
                self._start_thread()
            self._jobs.put(work)
        self._unfinished += 1
        await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
        if work.error is not None:
            try:
                raise work.error
            finally:
                del work  # a traceback that refers to itself would keep its frames alive
        result: T = work.result
        return result

    def _start_thread(self) -> None:
        self._threads_count += 1
        try:
            threading.Thread(target=self._work, name="bookie-reader", daemon=True).start()
        except RuntimeError:  # the system is out of threads: the running ones take the job
            self._threads_count -= 1
            if not self._threads_count:
                raise

    def _work(self) -> None:
        call_soon = self.calls.call_soon
        while True:
            try:
                work = self._jobs.get(timeout=self._idle_s)
            except queue.Empty:
                with self._lock:
                    if not self._jobs.empty():
                        continue
                    self._threads_count -= 1
                return
            try:
                work.result = work.call(*work.args)
            except BaseException as exc:  # raised again in the task
                work.error = exc
            self._done.append(work)
            del work  # a finished job must not keep its data alive while the thread waits
            # The result is appended before the flag is read: if the flag is set, ``_wake`` has not begun to
            # collect results and will find this one.
            if not self._is_wake_pending:
                self._is_wake_pending = True
                with contextlib.suppress(trio.RunFinishedError):  # the loop has ended
                    call_soon(self._wake)

    def _wake(self) -> None:
        self._is_wake_pending = False
        while self._done:
            self._unfinished -= 1
            trio.lowlevel.reschedule(self._done.popleft().task)
        self._admit_waiting()

    def _admit_waiting(self) -> None:
        if self._waiting:
            self._waiting.unpark(count=max(0, self._queued_max - self._unfinished))
