"""Small questions about the files of a cluster: the lock, the last message of a log, a directory's space.

Not inside: their places (``layout``), their use (``local``).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from pathlib import Path

# The first line of a message: a command's, one of its arguments', a line of a log as text or as JSON.
_HEAD = re.compile(r"dlog: |Error: |\{|\d{4}-\d\d-\d\d[ T]\d\d:\d\d")


def try_lock(descriptor: int) -> bool:
    """Take the exclusive lock of an open file; False if another process has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def last_message(text: str) -> str | None:
    """The first line of the last message that a program wrote: its reason. None if it wrote nothing.

    Of a message of several lines the others are evidence. Of a traceback the last line is the reason.
    """
    lines = text.strip().splitlines()
    if not lines:
        return None
    heads = [at for at, line in enumerate(lines) if _HEAD.match(line)]
    last = lines[heads[-1] :] if heads else lines
    is_traceback = not heads or any(line.startswith("Traceback ") for line in last)
    return last[-1 if is_traceback else 0].removeprefix("dlog: ")


def last_message_of(log: Path) -> str:
    """The same of a log file."""
    try:
        return last_message(log.read_text("utf-8", errors="replace")) or "(empty)"
    except OSError:
        return "(empty)"


def disk_bytes(directory: Path) -> int:
    """The disk space of all files below a directory."""
    total = 0
    for root, _, files in os.walk(directory):
        for name in files:
            with contextlib.suppress(OSError):  # deleted since the listing
                total += os.stat(os.path.join(root, name)).st_blocks * 512
    return total
