"""A process that outlives its parent: start, identify, measure and stop it.

Inside: a detached start, identity by pid and start time (the system reuses a pid), stats from /proc, a
bounded stop. Not inside: the program that runs (``zookeeper_process``, ``local``).
Always: a signal goes only to a process with the recorded start time. A stop sends SIGKILL after its grace
period.

Source: proc(5): /proc/PID/stat fields 3 (state), 14, 15 (CPU), 22 (start time), 24 (resident pages);
/proc/PID/io.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs
import trio

POLL_S = 0.02
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PROC = Path("/proc")


@attrs.frozen
class ProcessId:
    """A pid with the start time, which distinguishes its process from a later one with the same pid."""

    pid: int
    start_ticks: int  # clock ticks from the boot to the start of the process
    boot_id: str  # the boot from which the ticks count


@attrs.frozen
class ProcessStats:
    """The resource use of a process so far."""

    cpu_s: float  # user and system
    rss_bytes: int
    written_bytes: int  # sent to the disk (write_bytes), in whole pages


def boot_id() -> str:
    """The kernel's id of the present boot."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def start_detached(
    command: Sequence[str],
    log: Path,
    *,
    environment: Mapping[str, str] | None = None,
    group: int | None = None,
) -> ProcessId:
    """Start a process that no terminal signals; append its output to ``log``.

    Args:
        group: The process group that the process joins (``guardian``); None gives it a session of its own, in
            which it outlives its parent.

    Raises:
        OSError: The program or the log cannot be opened.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    pid = os.posix_spawn(
        command[0],
        list(command),
        dict(os.environ if environment is None else environment),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        **({"setsid": True} if group is None else {"setpgroup": group}),
        setsigmask=[],
        # A child inherits ignored signals; without this it could ignore the request to stop.
        setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE],
    )
    process = identify(pid)
    assert process is not None, "/proc lists a child until it is reaped"  # by this process, later
    return process


def identify(pid: int) -> ProcessId | None:
    """The identity of the process that has this pid now, also of a zombie; None if there is none."""
    fields = _stat_fields(pid)
    return None if fields is None else ProcessId(pid, int(fields[19]), boot_id())


def is_alive(process: ProcessId) -> bool:
    """True if the identified process runs. A zombie does not."""
    fields = _stat_fields(process.pid)
    return (
        fields is not None
        and fields[0] not in ("Z", "X")
        and int(fields[19]) == process.start_ticks
        and boot_id() == process.boot_id
    )


def stats(process: ProcessId) -> ProcessStats | None:
    """The resource use of the process; None if it has ended or belongs to another user."""
    fields = _stat_fields(process.pid)
    if fields is None or not is_alive(process):
        return None
    try:
        io = dict(line.split(": ") for line in (_PROC / str(process.pid) / "io").read_text().splitlines())
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None  # the process has just ended, or belongs to another user
    return ProcessStats(
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS_PER_S,
        rss_bytes=int(fields[21]) * _PAGE_BYTES,
        written_bytes=int(io["write_bytes"]),
    )


def send_signal(process: ProcessId, number: signal.Signals) -> bool:
    """Signal the identified process; return False if it has ended."""
    # A pidfd refers to the process and not to its number. The process cannot change between check and signal.
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if not is_alive(process):
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


async def wait_ended(process: ProcessId, *, timeout_s: float) -> bool:
    """Wait until the process has ended; return False if it still runs after ``timeout_s``."""
    with trio.move_on_after(timeout_s):
        while is_alive(process):  # noqa: ASYNC110 - the kernel reports an end only to the parent
            await trio.sleep(POLL_S)
    if is_alive(process):
        return False
    _reap(process)
    return True


def wait_killed(process: ProcessId, *, timeout_s: float = 10) -> None:
    """Block until a process has ended after SIGKILL, normally for microseconds.

    Raises:
        TimeoutError: The process hangs in the kernel.
    """
    deadline = time.monotonic() + timeout_s
    while is_alive(process):
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {process.pid} did not end within {timeout_s:g} s of SIGKILL")
        time.sleep(0.001)
    _reap(process)


async def stop(process: ProcessId, *, grace_s: float) -> bool:
    """Send SIGTERM, wait at most ``grace_s`` seconds, then send SIGKILL; return when the process has ended.

    Returns False if SIGKILL was necessary. If cancelled, the process may still run or be about to end.

    Raises:
        TimeoutError: The process did not end after SIGKILL; it hangs in the kernel.
    """
    send_signal(process, signal.SIGTERM)
    if await wait_ended(process, timeout_s=grace_s):
        return True
    send_signal(process, signal.SIGKILL)
    if not await wait_ended(process, timeout_s=10):
        raise TimeoutError(f"process {process.pid} did not end within 10 s of SIGKILL")
    return False


def _reap(process: ProcessId) -> None:
    """Remove the zombie of an ended child. A process of another parent is not ours to reap."""
    if identify(process.pid) != process:
        return
    try:
        os.waitpid(process.pid, os.WNOHANG)
    except ChildProcessError:
        return


def _stat_fields(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the third (state) on; None if there is no such process."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the command's name in brackets. The name may hold brackets and blanks.
    return text.rpartition(")")[2].split()
