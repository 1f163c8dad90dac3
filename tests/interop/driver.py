"""A test's side of a conversation with a driver process: one JSON object a line.

Inside: requests, replies in any order, events. Not inside: the operations (``java/interop``, ``our_driver``).
Always: every wait has a timeout. When a driver ends, all waits for it fail.
"""

from __future__ import annotations

import json
import queue
import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

import trio

from tests.interop.processes import Process

REPLY_TIMEOUT_S = 120.0
THREADS_TIMEOUT_S = 10.0


class DriverError(Exception):
    """An exception of the driver: its class, its code if it has one, its message and stack."""

    def __init__(self, op: str, error: dict[str, Any]) -> None:
        super().__init__(
            f"{op}: {error['class']} (code {error['code']}): {error['message']}\n{error['stack']}"
        )
        self.class_name: str = error["class"].rpartition(".")[2].rpartition("$")[2]
        self.code: int | None = error["code"]


class DriverEndedError(Exception):
    """The driver process ended, or did not reply in time."""


class Driver:
    """A process that performs requests. Made by ``Originals.start_driver``."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.made: set[str] = set()  # names of objects that tests share
        self.events: queue.Queue[dict[str, Any]] = queue.Queue()
        self._stdin, self._stdout = process.pipes
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[str, Future[Any]]] = {}
        self._last_request_id = 0
        self._ended = False
        self._names = 0
        threading.Thread(target=self._listen, name=f"replies of {process.name}", daemon=True).start()

    def name(self, kind: str) -> str:
        """Return an unused name for an object that the driver keeps."""
        self._names += 1
        return f"{kind}-{self._names}"

    def begin(self, op: str, **arguments: Any) -> Future[Any]:
        """Send a request without waiting.

        Requests run concurrently: wait for those that a later one needs.
        """
        future: Future[Any] = Future()
        with self._lock:
            self._last_request_id += 1
            request = {"id": self._last_request_id, "op": op, **arguments}
            if self._ended:
                future.set_exception(self._ended_error(op))
                return future
            self._waiting[self._last_request_id] = (op, future)
            try:
                self._stdin.write(json.dumps(request).encode() + b"\n")
                self._stdin.flush()
            except (OSError, ValueError):  # the process has ended, or the test ended it
                del self._waiting[self._last_request_id]
                future.set_exception(self._ended_error(op))
        return future

    def ask(self, op: str, *, timeout_s: float = REPLY_TIMEOUT_S, **arguments: Any) -> Any:
        """Send a request and wait for the reply. Blocks: use ``call`` while a trio loop has work to do.

        Raises:
            DriverError: The driver threw.
            DriverEndedError: It ended, or did not reply in time.
        """
        return self._result(op, self.begin(op, **arguments), timeout_s)

    async def call(self, op: str, *, timeout_s: float = REPLY_TIMEOUT_S, **arguments: Any) -> Any:
        """As ``ask``, for tests in which our client runs on the loop meanwhile."""
        return await self.wait(op, self.begin(op, **arguments), timeout_s=timeout_s)

    async def wait(self, op: str, future: Future[Any], *, timeout_s: float = REPLY_TIMEOUT_S) -> Any:
        """Wait for the reply to a request of ``begin``; raises as ``ask`` does."""
        return await trio.to_thread.run_sync(self._result, op, future, timeout_s, abandon_on_cancel=True)

    def _result(self, op: str, future: Future[Any], timeout_s: float) -> Any:
        try:
            return future.result(timeout_s)
        except FutureTimeoutError:
            raise DriverEndedError(
                f"{self.process.name} did not reply to {op} in {timeout_s:g} s; {self.process.log}:\n"
                f"{self.process.tail()}\n{self._threads()}"
            ) from None

    def _threads(self) -> str:
        """What the threads of the driver do, if it still replies."""
        try:
            return str(self.begin("threads").result(THREADS_TIMEOUT_S))
        except (DriverError, DriverEndedError, FutureTimeoutError) as exc:
            return f"its threads cannot be shown: {exc!r}"

    def _ended_error(self, op: str) -> DriverEndedError:
        return DriverEndedError(
            f"{self.process.name} ended before it replied to {op}; {self.process.log}:\n{self.process.tail()}"
        )

    def _listen(self) -> None:
        with self._stdout:
            try:
                for line in self._stdout:
                    self._on_line(json.loads(line))
            except ValueError:
                pass  # killed in the middle of a line
        with self._lock:
            self._ended = True
            waiting, self._waiting = list(self._waiting.values()), {}
        for op, future in waiting:
            future.set_exception(self._ended_error(op))

    def _on_line(self, line: dict[str, Any]) -> None:
        if "event" in line:
            self.events.put(line)
            return
        with self._lock:
            op, future = self._waiting.pop(line["id"])
        if "error" in line:
            future.set_exception(DriverError(op, line["error"]))
        else:
            future.set_result(line["ok"])
