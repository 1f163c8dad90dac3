"""A process that outlives whoever started it: start, recognise, measure and stop it, by pid.

Inside: detached starting, identity by start time (a pid alone is reused by strangers), figures from /proc, a
bounded end. Not inside: what the process is (``zookeeper_process``, ``bookie_process``).
Always: a signal goes only to a process whose start time is the one recorded; a stop has a bound, after which
it is SIGKILL.

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
    """A pid with what tells its process from a later one of the same number."""

    pid: int
    start_ticks: int  # clock ticks from boot to its start
    boot_id: str  # ticks count from a boot


@attrs.frozen
class Figures:
    """What a process has used so far."""

    cpu_s: float  # user and system
    rss_bytes: int
    written_bytes: int  # sent towards the disk (write_bytes), whole pages


def boot_id() -> str:
    """The kernel's name for its present run."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def start_detached(
    command: Sequence[str], log: Path, *, environment: Mapping[str, str] | None = None
) -> ProcessId:
    """Start a process in a session of its own, its output appended to ``log``; terminals do not signal it.

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
        setsid=True,
        setsigmask=[],
        # What this program ignores its child would ignore too, and never end when asked.
        setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE],
    )
    process = identify(pid)
    assert process is not None, "a child that nobody has reaped is still in /proc"
    return process


def identify(pid: int) -> ProcessId | None:
    """The identity of the process that has this pid now (a zombie included), or None."""
    fields = _stat_fields(pid)
    return None if fields is None else ProcessId(pid, int(fields[19]), boot_id())


def is_alive(process: ProcessId) -> bool:
    """Whether that very process still runs. A zombie does not."""
    fields = _stat_fields(process.pid)
    return (
        fields is not None
        and fields[0] not in ("Z", "X")
        and int(fields[19]) == process.start_ticks
        and boot_id() == process.boot_id
    )


def figures(process: ProcessId) -> Figures | None:
    """What the process used so far, or None if it has ended or belongs to somebody else."""
    fields = _stat_fields(process.pid)
    if fields is None or not is_alive(process):
        return None
    try:
        io = dict(line.split(": ") for line in (_PROC / str(process.pid) / "io").read_text().splitlines())
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None  # ended just now, or another user's
    return Figures(
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS_PER_S,
        rss_bytes=int(fields[21]) * _PAGE_BYTES,
        written_bytes=int(io["write_bytes"]),
    )


def send_signal(process: ProcessId, number: signal.Signals) -> bool:
    """Signal that very process; False if it has ended already."""
    # pidfd names the process, not the number: no stranger can slip in between check and signal.
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
    """Wait until the process has ended; False if it still runs after ``timeout_s``."""
    with trio.move_on_after(timeout_s):
        while is_alive(process):  # noqa: ASYNC110 - the kernel tells only a parent of an end, not us
            await trio.sleep(POLL_S)
    if is_alive(process):
        return False
    _reap(process)
    return True


def wait_killed(process: ProcessId, *, timeout_s: float = 10) -> None:
    """Block until a process that was sent SIGKILL is gone: a matter of microseconds.

    Raises:
        TimeoutError: It hangs in the kernel.
    """
    deadline = time.monotonic() + timeout_s
    while is_alive(process):
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {process.pid} did not end within {timeout_s:g} s of SIGKILL")
        time.sleep(0.001)
    _reap(process)


async def stop(process: ProcessId, *, grace_s: float) -> bool:
    """End the process: SIGTERM, at most ``grace_s`` seconds, then SIGKILL. False if it had to be killed.

    Returns once it is gone. If cancelled, it may still be ending.

    Raises:
        TimeoutError: Not even SIGKILL ended it (it hangs in the kernel).
    """
    send_signal(process, signal.SIGTERM)
    if await wait_ended(process, timeout_s=grace_s):
        return True
    send_signal(process, signal.SIGKILL)
    if not await wait_ended(process, timeout_s=10):
        raise TimeoutError(f"process {process.pid} did not end within 10 s of SIGKILL")
    return False


def _reap(process: ProcessId) -> None:
    """Let go of an ended process if it is a child of ours; others have parents of their own."""
    if identify(process.pid) != process:
        return
    try:
        os.waitpid(process.pid, os.WNOHANG)
    except ChildProcessError:
        return


def _stat_fields(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the third (state) on, or None if there is no such process."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the command's name in brackets, which may itself hold brackets and blanks.
    return text.rpartition(")")[2].split()
