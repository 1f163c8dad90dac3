"""Whether the process that owns a session lives, told by a file lock.

Each session has a file ``<id>.lock`` on which its owner holds an exclusive ``flock`` as long as it lives.
The kernel drops the lock with the process, however that ends, so a killed owner is known at once, without
clocks or heartbeats, and a stopped one (SIGSTOP, a debugger) is not mistaken for dead.
Always: a session's lock is held before its row can be seen by others, and until its row is gone.
"""

from __future__ import annotations

import fcntl
import os
import weakref
from pathlib import Path


class SessionLock:
    """The lock of this process's own session."""

    def __init__(self, directory: Path, session_id: int) -> None:
        self._path = _lock_path(directory, session_id)
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(self._fd)
            raise
        _held.add(self)

    def release(self) -> None:
        """Let go of it and remove the file; the session's row must be gone."""
        _held.discard(self)
        self._path.unlink(missing_ok=True)
        os.close(self._fd)

    def forget(self) -> None:
        """In a forked child: drop the inherited reference, else the child would keep the session alive."""
        os.close(self._fd)


def is_dead(directory: Path, session_id: int) -> bool:
    """Whether nobody holds the session's lock any more."""
    try:
        fd = os.open(_lock_path(directory, session_id), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        # Shared, so that two processes looking at the same moment do not take each other for the owner.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(fd)


def remove_lock(directory: Path, session_id: int) -> None:
    """Remove the file of a dead session whose row is gone."""
    _lock_path(directory, session_id).unlink(missing_ok=True)


def remove_stray_locks(directory: Path, session_ids: set[int]) -> None:
    """Remove files that belong to no session: their process died between row and file."""
    for path in directory.glob("*.lock"):
        if path.stem.isdecimal() and int(path.stem) not in session_ids:
            path.unlink(missing_ok=True)


def _lock_path(directory: Path, session_id: int) -> Path:
    return directory / f"{session_id}.lock"


_held: weakref.WeakSet[SessionLock] = weakref.WeakSet()


def _forget_all() -> None:
    for lock in list(_held):
        lock.forget()
    _held.clear()


os.register_at_fork(after_in_child=_forget_all)
