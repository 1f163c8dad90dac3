"""The two ends of the pipe between the command and one of its processes: a line of JSON each message.

Inside: ``Link``, the process's end; ``Worker`` and ``open_worker``, the command's end.
Always: the process ends when the command does, also when the command is killed: the system closes the pipe,
and the process ends itself at its end.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from typing import Any

import trio

from tests.bench.work.job import Job, decode_job
from tests.places import ROOT

LAST_WORDS_S = 10  # a process that was told to stop is killed after this long
ORPHANED = 3  # exit status of a process whose command is gone


class BenchError(Exception):
    """A process of the benchmark failed or took too long; there is no result."""


class Link:
    """The process's end: standard input and output."""

    def __init__(self) -> None:
        self._received: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def read_job(self) -> Job:
        """Read the job, and watch for messages and for the end of the command from now on."""
        job = decode_job(sys.stdin.readline())
        threading.Thread(target=self._watch, name="link", daemon=True).start()
        return job

    def _watch(self) -> None:
        for line in sys.stdin:
            self._received.put(json.loads(line))
        os._exit(ORPHANED)

    def send(self, event: str, **values: object) -> None:
        """Send one message."""
        print(json.dumps({"event": event, **values}), flush=True)

    def receive(self) -> dict[str, Any]:
        """Block until the next message."""
        return self._received.get()

    async def receive_in_loop(self) -> dict[str, Any]:
        """Wait for the next message."""
        return await trio.to_thread.run_sync(self._received.get, abandon_on_cancel=True)


class Worker:
    """The command's end."""

    def __init__(self, job: Job, process: trio.Process) -> None:
        self._job, self._process = job, process
        self._unread = b""

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    async def send(self, **message: object) -> None:
        """Send one message. A process that has ended does not matter: the next ``receive`` says so."""
        assert self._process.stdin is not None  # ``open_worker`` asks for a pipe
        with contextlib.suppress(trio.BrokenResourceError):
            await self._process.stdin.send_all(json.dumps(message).encode() + b"\n")

    async def receive(self, event: str) -> dict[str, Any]:
        """Wait for the next message, which has to be of this event.

        Raises:
            BenchError: The process ended, or sent something else.
        """
        assert self._process.stdout is not None  # ``open_worker`` asks for a pipe
        while b"\n" not in self._unread:
            data = await self._process.stdout.receive_some()
            if not data:
                status = await self._process.wait()
                raise BenchError(
                    f"the process with role {self._job.role} of {self._job.system} ended with status {status}"
                    f" before it sent {event!r}; its own messages are above"
                )
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        if message["event"] != event:
            raise BenchError(f"the process with role {self._job.role} sent {message}, not {event!r}")
        return message

    def kill(self) -> None:
        """Kill the process; ``open_worker`` waits for its end."""
        self._process.kill()

    async def stop(self) -> None:
        """Tell the process to clean up and end, and wait until it has ended.

        Raises:
            BenchError: It ended with an error, or not within ``LAST_WORDS_S``.
        """
        await self.send(stop=True)
        with trio.move_on_after(LAST_WORDS_S) as scope:
            status = await self._process.wait()
        if scope.cancelled_caught:
            raise BenchError(
                f"the process with role {self._job.role} of {self._job.system} did not end within"
                f" {LAST_WORDS_S} s; it is killed"
            )
        if status:
            raise BenchError(
                f"the process with role {self._job.role} of {self._job.system} ended with status {status};"
                " its own messages are above"
            )


@contextlib.asynccontextmanager
async def open_worker(job: Job) -> AsyncIterator[Worker]:
    """Start a process with a job; the end of the block kills it if it still runs."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", "tests.bench.work.main"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        assert process.stdin is not None  # a pipe was asked for above
        with contextlib.suppress(trio.BrokenResourceError):
            await process.stdin.send_all(job.encoded().encode() + b"\n")
        yield Worker(job, process)
    finally:
        with trio.CancelScope(shield=True):
            process.kill()
            await process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    await pipe.aclose()
