"""A test's side of a conversation with a Java driver, one JSON object a line.

Inside: requests, answers that come in any order, events. Not inside: what may be asked (``java/interop``).
Always: every wait has a bound, and a driver that ended fails whoever waits for it.
"""

from __future__ import annotations

import json
import queue
import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

import trio
from processes import Process

ANSWER_TIMEOUT_S = 30.0


class DriverError(Exception):
    """What the Java side threw: its class, its code if it has one, and where."""

    def __init__(self, op: str, error: dict[str, Any]) -> None:
        super().__init__(
            f"{op}: {error['class']} (code {error['code']}): {error['message']}\n{error['stack']}"
        )
        self.class_name: str = error["class"].rpartition(".")[2].rpartition("$")[2]
        self.code: int | None = error["code"]


class DriverEndedError(Exception):
    """The Java process ended, or did not answer in time."""


class Driver:
    """A Java process that does what it is asked. Made by ``Originals.start_driver``."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.made: set[str] = set()  # names of objects that tests share
        self.events: queue.Queue[dict[str, Any]] = queue.Queue()
        self._stdin, self._stdout = process.pipes
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[str, Future[Any]]] = {}
        self._asked = 0
        self._ended = False
        self._names = 0
        threading.Thread(target=self._listen, name=f"answers of {process.name}", daemon=True).start()

    def name(self, kind: str) -> str:
        """A name nobody has used yet, for an object to be kept over there."""
        self._names += 1
        return f"{kind}-{self._names}"

    def begin(self, op: str, **arguments: Any) -> Future[Any]:
        """Ask without waiting. Requests run beside each other: wait for what another one needs."""
        future: Future[Any] = Future()
        with self._lock:
            self._asked += 1
            request = {"id": self._asked, "op": op, **arguments}
            if self._ended:
                future.set_exception(self._why_ended(op))
                return future
            self._waiting[self._asked] = (op, future)
            try:
                self._stdin.write(json.dumps(request).encode() + b"\n")
                self._stdin.flush()
            except (OSError, ValueError):  # it is gone, or was ended by us
                del self._waiting[self._asked]
                future.set_exception(self._why_ended(op))
        return future

    def ask(self, op: str, *, timeout_s: float = ANSWER_TIMEOUT_S, **arguments: Any) -> Any:
        """Ask and wait for the answer; blocks, so only where no trio loop has work to do.

        Raises:
            DriverError: The Java side threw.
            DriverEndedError: It ended, or did not answer in time.
        """
        return self._result(op, self.begin(op, **arguments), timeout_s)

    async def call(self, op: str, *, timeout_s: float = ANSWER_TIMEOUT_S, **arguments: Any) -> Any:
        """``ask`` for tests in which our client lives on the loop meanwhile."""
        return await self.wait(op, self.begin(op, **arguments), timeout_s=timeout_s)

    async def wait(self, op: str, future: Future[Any], *, timeout_s: float = ANSWER_TIMEOUT_S) -> Any:
        """The answer to something begun; raises as ``ask`` does."""
        return await trio.to_thread.run_sync(self._result, op, future, timeout_s, abandon_on_cancel=True)

    def _result(self, op: str, future: Future[Any], timeout_s: float) -> Any:
        try:
            return future.result(timeout_s)
        except FutureTimeoutError:
            raise DriverEndedError(
                f"{self.process.name} did not answer {op} in {timeout_s:g} s; {self.process.log}:\n"
                f"{self.process.tail()}"
            ) from None

    def _why_ended(self, op: str) -> DriverEndedError:
        return DriverEndedError(
            f"{self.process.name} ended before it answered {op}; {self.process.log}:\n{self.process.tail()}"
        )

    def _listen(self) -> None:
        with self._stdout:
            try:
                for line in self._stdout:
                    self._heard(json.loads(line))
            except ValueError:
                pass  # killed in the middle of a line
        with self._lock:
            self._ended = True
            waiting, self._waiting = list(self._waiting.values()), {}
        for op, future in waiting:
            future.set_exception(self._why_ended(op))

    def _heard(self, answer: dict[str, Any]) -> None:
        if "event" in answer:
            self.events.put(answer)
            return
        with self._lock:
            op, future = self._waiting.pop(answer["id"])
        if "error" in answer:
            future.set_exception(DriverError(op, answer["error"]))
        else:
            future.set_result(answer["ok"])
