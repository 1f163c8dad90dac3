"""Programs in the background, by name: start, stop and show them.

A directory has three files for each name: ``NAME.json`` (the process), ``NAME.log`` (its output) and
``NAME.lock`` (held while a command changes the other two).

Inside: these files, waiting until a program serves. Not inside: the process (``process``), which program runs
(the caller).
Always: a name has at most one process; a signal goes only to the process that was started under the name.

Source: BookKeeper, bookkeeper-daemon.sh; sd_notify(3).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import socket
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs
import trio

from dlog.cluster.files import last_message
from dlog.cluster.process import ProcessId, is_alive, start_detached, stop
from ledger.runtime.readiness import READY, VARIABLE

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
LOG_END_BYTES = 4096
_LOOK_S = 0.1  # between two looks at whether the process has ended; the message itself is noticed at once


class DaemonError(Exception):
    """A daemon cannot be started or stopped; the message says why and what to do."""


class DaemonRunningError(DaemonError):
    """A process runs under the name already."""


class NoDaemonError(DaemonError):
    """No process was started under the name."""


@attrs.frozen
class Daemon:
    """A process that was started under a name."""

    name: str
    process: ProcessId
    command: tuple[str, ...]
    log: Path

    @property
    def is_running(self) -> bool:
        return is_alive(self.process)


@attrs.frozen
class Daemons:
    """The daemons of one directory."""

    directory: Path

    def all(self) -> list[Daemon]:
        """Those that were started and not stopped, by name; some may have ended by themselves."""
        found = [self._read(path.stem) for path in sorted(self.directory.glob("*.json"))]
        return [daemon for daemon in found if daemon is not None]

    async def start(self, name: str, command: Sequence[str], *, timeout_s: float) -> Daemon:
        """Start a program; return when it says that it serves (``ledger.runtime.readiness``).

        If cancelled, or if the time is over, the program continues.

        Args:
            command: The program's absolute path and its arguments.

        Raises:
            ValueError: The name has other characters than letters, digits, ``.``, ``_`` and ``-``.
            DaemonRunningError: A process with this name runs.
            DaemonError: The program ended before it served, or did not serve in time.
            OSError: The directory cannot be written, or the program cannot be executed.
        """
        if NAME.fullmatch(name) is None:
            raise ValueError(f"{name!r} is no name of a daemon: use letters, digits, '.', '_' and '-'")
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._locked(name), _ready_socket() as (listener, address):
            running = self._read(name)
            if running is not None and running.is_running:
                raise DaemonRunningError(
                    f"{name} runs already, as process {running.process.pid}; stop it with"
                    f" `dlog daemon stop {name}`, or give the new one another --name"
                )
            log = self.directory / f"{name}.log"
            log_begins_at = log.stat().st_size if log.exists() else 0
            process = start_detached(command, log, environment=dict(os.environ) | {VARIABLE: address})
            daemon = Daemon(name, process, tuple(command), log)
            self._write(daemon)
            is_ready = False
            with trio.move_on_after(timeout_s):
                is_ready = await _wait_ready(listener, process)
            if is_ready:
                return daemon
            if is_alive(process):
                raise DaemonError(
                    f"{name} does not serve after {timeout_s:g} s. It goes on, as process {process.pid}; see"
                    f" {log}, and stop it with `dlog daemon stop {name}`"
                )
            self._path(name).unlink()
            raise DaemonError(f"{name} ended at its start: {_end_of(log, log_begins_at)} ({log})")

    async def stop(self, name: str, *, grace_s: float) -> bool:
        """Stop a daemon by SIGTERM, and after ``grace_s`` by SIGKILL; return when it has ended.

        Returns:
            False: SIGKILL was necessary.

        Raises:
            NoDaemonError: Nothing was started under the name.
            TimeoutError: The process hangs in the kernel.
        """
        with self._locked(name):
            daemon = self._read(name)
            if daemon is None:
                raise NoDaemonError(
                    f"nothing was started as {name!r} in {self.directory}; `dlog daemon status` lists the"
                    " names"
                )
            was_orderly = await stop(daemon.process, grace_s=grace_s)
            self._path(name).unlink()
            return was_orderly

    @contextlib.contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        if not self.directory.is_dir() or NAME.fullmatch(name) is None:
            yield  # there is nothing to lock
            return
        descriptor = os.open(self.directory / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DaemonError(
                    f"another command starts or stops {name} now; try again when it ends"
                ) from None
            yield
        finally:
            os.close(descriptor)

    def _path(self, name: str) -> Path:
        return self.directory / f"{name}.json"

    def _read(self, name: str) -> Daemon | None:
        if NAME.fullmatch(name) is None:
            return None  # it could be the path of a file elsewhere
        try:
            document = json.loads(self._path(name).read_text())
            process = ProcessId(document["pid"], document["start_ticks"], document["boot_id"])
            return Daemon(name, process, tuple(document["command"]), Path(document["log"]))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, RecursionError) as exc:
            raise DaemonError(
                f"{self._path(name)} is damaged ({exc!r}); find the process by its arguments, then delete the"
                " file"
            ) from exc

    def _write(self, daemon: Daemon) -> None:
        document = attrs.asdict(daemon.process) | {"command": daemon.command, "log": str(daemon.log)}
        path = self._path(daemon.name)
        new = path.with_suffix(".json.new")
        new.write_text(json.dumps(document, indent=1) + "\n")
        new.replace(path)  # a command that is killed here leaves no half of a file


@contextlib.contextmanager
def _ready_socket() -> Iterator[tuple[trio.socket.SocketType, str]]:
    # A short path of its own: the address of a Unix socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="dlog-") as directory:
        address = f"{directory}/notify"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
            listener.bind(address)
            listener.setblocking(False)
            yield trio.socket.from_stdlib_socket(listener), address


async def _wait_ready(listener: trio.socket.SocketType, process: ProcessId) -> bool:
    """True when the program says so; False when its process has ended."""
    while is_alive(process):
        with trio.move_on_after(_LOOK_S):
            message = await listener.recv(4096)
            if READY.encode() in message.splitlines():
                return True
    return False


def _end_of(log: Path, begins_at: int) -> str:
    """The reason that the program gave."""
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(begins_at, size - LOG_END_BYTES))
        return last_message(file.read().decode(errors="replace")) or "it wrote nothing"
