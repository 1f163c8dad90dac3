"""Small questions about the files of a local cluster: the lock, the end of a log, the space of a directory.

Not inside: their places (``layout``), their use (``local``).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path


def try_lock(descriptor: int) -> bool:
    """Take the exclusive lock of an open file; False if another process has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def last_line(log: Path) -> str:
    """The last line of a log file, for a message."""
    try:
        lines = log.read_text("utf-8", errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1] if lines else "(empty)"


def disk_bytes(directory: Path) -> int:
    """The disk space of all files below a directory."""
    total = 0
    for root, _, files in os.walk(directory):
        for name in files:
            with contextlib.suppress(OSError):  # deleted since the listing
                total += os.stat(os.path.join(root, name)).st_blocks * 512
    return total
