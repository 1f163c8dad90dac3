"""Processes that tests start, pause, kill and end, by their pid.

Inside: one process with its log; a set of processes that end together. Not inside: the programs
(``originals``), conversations (``driver``).
Always: closing a ``Processes`` ends every process that was started through it, also after errors. Every wait
has a timeout.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from tests.places import ROOT

POLL_S = 0.03
STOP_GRACE_S = 15.0


class ProcessError(Exception):
    """A process ended or did not become ready; the message has the end of its log."""


class Process:
    """One running program. Its output goes to ``log``, except a piped stdout."""

    def __init__(self, name: str, command: Sequence[str], log: Path, *, piped: bool = False) -> None:
        self.name, self.log = name, log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
                stdout=subprocess.PIPE if piped else output,
                stderr=output,
                cwd=ROOT,  # our drivers are modules of the tests
                # Ctrl-C must reach the tests only, which then end their processes in order.
                start_new_session=True,
            )

    def __repr__(self) -> str:
        return f"<Process {self.name}, pid {self.pid}, {'running' if self.is_running else 'ended'}>"

    @property
    def pid(self) -> int:
        """The process id, also after the end."""
        return self._child.pid

    @property
    def is_running(self) -> bool:
        """True until the process ends, also while it is paused."""
        return self._child.poll() is None

    @property
    def pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        """stdin and stdout of a process that was started with pipes."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        return self._child.stdin, self._child.stdout

    def tail(self, size_bytes: int = 3000) -> str:
        """The end of the log."""
        try:
            return self.log.read_bytes()[-size_bytes:].decode("utf-8", "replace").strip() or "(empty)"
        except OSError as exc:
            return f"({exc})"

    def wait_ready(self, is_ready: Callable[[], bool], *, timeout_s: float) -> None:
        """Return once ``is_ready`` returns True.

        Raises:
            ProcessError: The process ended, or was not ready in time; the message has the end of its log.
        """
        deadline = time.monotonic() + timeout_s
        while not is_ready():
            if not self.is_running:
                raise ProcessError(
                    f"{self.name} ended with exit code {self._child.returncode}; {self.log}:\n{self.tail()}"
                )
            if time.monotonic() > deadline:
                raise ProcessError(
                    f"{self.name} was not ready in {timeout_s:g} s; {self.log}:\n{self.tail()}"
                )
            time.sleep(POLL_S)

    def wait_ended(self, *, timeout_s: float) -> int:
        """Wait until the process ends by itself; return its exit code.

        Raises:
            ProcessError: The process still runs after ``timeout_s``.
        """
        try:
            return self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise ProcessError(f"{self.name} still runs after {timeout_s:g} s; {self.tail()}") from None

    def kill(self) -> None:
        """Send SIGKILL and wait for the end: a crash."""
        self._child.kill()
        self._child.wait()
        self._close_stdin()

    def pause(self) -> None:
        """Send SIGSTOP; connections stay open. Returns once all threads have stopped."""
        self._child.send_signal(signal.SIGSTOP)
        # WEXITED: the process may end instead of stopping.
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Send SIGCONT."""
        self._child.send_signal(signal.SIGCONT)

    def stop(self, *, grace_s: float = STOP_GRACE_S) -> None:
        """Send SIGTERM, then SIGKILL if the process still runs after the grace period."""
        self.ask_to_stop()
        try:
            self._child.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.kill()
        self._close_stdin()

    def ask_to_stop(self) -> None:
        """Send SIGTERM without waiting, and resume a paused process, so that it can handle the signal."""
        self._child.terminate()
        self._child.send_signal(signal.SIGCONT)

    def _close_stdin(self) -> None:
        # The driver's thread reads a piped stdout to its end and closes it.
        if self._child.stdin is not None:
            with contextlib.suppress(OSError):  # unread input of the process
                self._child.stdin.close()


class Processes:
    """A set of processes that end together, the last started first."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self._started: list[Process] = []

    def start(self, name: str, command: Sequence[str], *, piped: bool = False) -> Process:
        """Start a program with the log ``<name>.log``; a later process of this name appends to it."""
        process = Process(name, command, self.logs / f"{name}.log", piped=piped)
        self._started.append(process)
        return process

    @property
    def running(self) -> list[Process]:
        """The processes that have not ended."""
        return [process for process in self._started if process.is_running]

    def close(self) -> None:
        """End all running processes: send SIGTERM to all, the last started first, then wait for each."""
        running = list(reversed(self.running))
        for process in running:
            process.ask_to_stop()
        for process in running:
            process.stop()
        self._started.clear()
