"""A few threads that wait for the disk in place of the loop.

Inside: handing jobs to threads and results back to tasks. Not inside: what the jobs read.
Always: at most so many threads and so many waiting jobs; who comes when the queue is full waits his turn; a
job that was begun is finished, and its result reaches the task that asked, unless the loop has ended.

Beside ``trio.to_thread`` this costs a sixth with several readers: a thread that has a result rings once for
all the results that lie there, and takes the next job without going back to a pool.

Source: measured; reference on bookie storage 8.1 (F) and 8.3.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

import trio

IDLE_S = 10.0  # a thread without a job ends after that
QUEUED_MAX = 1024

T = TypeVar("T")


class _Job:
    __slots__ = ("args", "call", "error", "result", "task")

    def __init__(self, task: trio.lowlevel.Task, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.task, self.call, self.args = task, call, args
        self.result: Any = None
        self.error: BaseException | None = None


class ReaderPool:
    """Made on the loop whose tasks it serves; nothing needs to be closed."""

    def __init__(self, threads_max: int, *, queued_max: int = QUEUED_MAX, idle_s: float = IDLE_S) -> None:
        self.token = trio.lowlevel.current_trio_token()
        self._threads_max = threads_max
        self._queued_max = queued_max
        self._idle_s = idle_s
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._done: deque[_Job] = deque()
        self._lock = threading.Lock()
        self._threads_count = 0
        self._unfinished = 0  # the loop's: jobs whose task waits
        self._room = trio.lowlevel.ParkingLot()
        self._is_rung = False  # the loop has been told and has not looked yet

    def __repr__(self) -> str:
        return f"<ReaderPool with {self._threads_count} threads, {self._unfinished} jobs>"

    @property
    def threads_count(self) -> int:
        return self._threads_count

    async def run(self, job: Callable[..., T], *args: Any) -> T:
        """The job's result, or what it raised. Not cancellable once the job is queued."""
        try:
            while self._unfinished >= self._queued_max:
                await self._room.park()
            await trio.lowlevel.checkpoint_if_cancelled()
        except trio.Cancelled:
            self._give_room()  # this task may have been woken for a place: the next in line has it
            raise
        work = _Job(trio.lowlevel.current_task(), job, args)
        with self._lock:
            # One thread for each unfinished job, as far as it goes: a thread that waits for the disk takes
            # nothing else. One that is about to end looks for jobs under the lock.
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
        except RuntimeError:  # the system has none to give: those that run must do
            self._threads_count -= 1
            if not self._threads_count:
                raise

    def _work(self) -> None:
        ring = self.token.run_sync_soon
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
            except BaseException as exc:  # handed to the task, which must not lose it
                work.error = exc
            self._done.append(work)
            del work  # a finished job must not keep its data alive while we wait
            # In this order: whoever finds it rung has put his result where the loop will still look.
            if not self._is_rung:
                self._is_rung = True
                with contextlib.suppress(trio.RunFinishedError):  # nobody is left to hear it
                    ring(self._wake, idempotent=True)

    def _wake(self) -> None:
        self._is_rung = False
        while self._done:
            self._unfinished -= 1
            trio.lowlevel.reschedule(self._done.popleft().task)
        self._give_room()

    def _give_room(self) -> None:
        if self._room:
            self._room.unpark(count=max(0, self._queued_max - self._unfinished))
