"""Processes that tests start, hurt and end: originals and ours alike, always by their pid.

Inside: one process with its log; a set of them that is ended together. Not inside: which programs
(``originals``), conversations (``driver``).
Always: whoever starts a process through ``Processes`` sees it gone when the set is closed, also after errors;
a wait has a bound.
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

POLL_S = 0.03
STOP_GRACE_S = 15.0


class ProcessError(Exception):
    """A process ended, or did not answer, when it should have served; the message has its last words."""


class Process:
    """One running program; what it prints goes to ``log``, except a stdout that is piped."""

    def __init__(self, name: str, command: Sequence[str], log: Path, *, piped: bool = False) -> None:
        self.name, self.log = name, log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
                stdout=subprocess.PIPE if piped else output,
                stderr=output,
                # Ctrl-C is for the tests: they end what they started, in order.
                start_new_session=True,
            )

    def __repr__(self) -> str:
        return f"<Process {self.name}, pid {self.pid}, {'running' if self.is_running else 'ended'}>"

    @property
    def pid(self) -> int:
        """Of the running, or the ended, process."""
        return self._child.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet; a paused one runs."""
        return self._child.poll() is None

    @property
    def pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        """Its stdin and stdout, if it was started with pipes."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        return self._child.stdin, self._child.stdout

    def tail(self, size_bytes: int = 3000) -> str:
        """The end of its log."""
        try:
            return self.log.read_bytes()[-size_bytes:].decode("utf-8", "replace").strip() or "(empty)"
        except OSError as exc:
            return f"({exc})"

    def wait_ready(self, is_ready: Callable[[], bool], *, timeout_s: float) -> None:
        """Return once ``is_ready`` says so.

        Raises:
            ProcessError: It ended, or was not ready in time; the message has the end of its log.
        """
        deadline = time.monotonic() + timeout_s
        while not is_ready():
            if not self.is_running:
                raise ProcessError(
                    f"{self.name} ended with exit code {self._child.returncode}; {self.log}:\n{self.tail()}"
                )
            if time.monotonic() > deadline:
                raise ProcessError(
                    f"{self.name} did not answer in {timeout_s:g} s; {self.log}:\n{self.tail()}"
                )
            time.sleep(POLL_S)

    def wait_ended(self, *, timeout_s: float) -> int:
        """Its exit code, once it has ended by itself.

        Raises:
            ProcessError: It still runs after ``timeout_s``.
        """
        try:
            return self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise ProcessError(f"{self.name} still runs after {timeout_s:g} s; {self.tail()}") from None

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone: a crash."""
        self._child.kill()
        self._child.wait()
        self._close_stdin()

    def pause(self) -> None:
        """SIGSTOP: it does nothing, and its connections stay. Returns once its last thread stands still."""
        self._child.send_signal(signal.SIGSTOP)
        # Also at its end, should it have one instead.
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """SIGCONT."""
        self._child.send_signal(signal.SIGCONT)

    def stop(self, *, grace_s: float = STOP_GRACE_S) -> None:
        """SIGTERM, then SIGKILL for one that does not heed it in time."""
        self.ask_to_stop()
        try:
            self._child.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.kill()
        self._close_stdin()

    def ask_to_stop(self) -> None:
        """SIGTERM without waiting; a paused one is resumed, or it could not heed it."""
        self._child.terminate()
        self._child.send_signal(signal.SIGCONT)

    def _close_stdin(self) -> None:
        # Its stdout, if piped, is closed by whoever reads it to the end.
        if self._child.stdin is not None:
            with contextlib.suppress(OSError):  # what it never read
                self._child.stdin.close()


class Processes:
    """Processes that are ended together, the last started first."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self._started: list[Process] = []

    def start(self, name: str, command: Sequence[str], *, piped: bool = False) -> Process:
        """Start a program; its log is ``<name>.log``, appended to when a name comes again."""
        process = Process(name, command, self.logs / f"{name}.log", piped=piped)
        self._started.append(process)
        return process

    @property
    def running(self) -> list[Process]:
        """Those that have not ended."""
        return [process for process in self._started if process.is_running]

    def close(self) -> None:
        """End what still runs. All are asked at once, in the reverse order of starting."""
        running = list(reversed(self.running))
        for process in running:
            process.ask_to_stop()
        for process in running:
            process.stop()
        self._started.clear()
