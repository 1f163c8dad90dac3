"""Kills the processes of a cluster when the process that opened it is gone.

Inside: the process group of a cluster's members, and the small program that leads it. Not inside: members
(``local``), an orderly stop (``process``).
Always: every member is in the group from its first instruction, so a kill of the opener leaves no member
behind at any moment. The guardian signals its own group and no other process.

The opener holds the write end of a pipe; the guardian reads the other end. The system closes the write end
in any case when the opener ends. The guardian then reads the end of the pipe and kills its group and itself.

Source: setpgid(2), pipe(7).
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from dlog.cluster.process import identify, wait_killed

# A program of its own, not a module: it starts in milliseconds, and imports nothing that could fail.
_PROGRAM = """
import os, signal
while os.read(0, 4096):
    pass
os.killpg(0, signal.SIGKILL)
"""


@contextmanager
def open_guardian() -> Iterator[int]:
    """Start a guardian; yield its process group. The end of the block kills the processes of the group."""
    reading, writing = os.pipe()  # programs inherit neither end
    try:
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", "-c", _PROGRAM],
            dict(os.environ),
            file_actions=[
                (os.POSIX_SPAWN_DUP2, reading, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            ],
            setpgroup=0,
            setsigmask=[],
            setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE],
        )
        guardian = identify(pid)
        assert guardian is not None, "/proc lists a child until it is reaped"  # by this process, later
    finally:
        os.close(reading)
    try:
        yield pid
    finally:
        os.close(writing)
        wait_killed(guardian)
