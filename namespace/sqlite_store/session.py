"""Which sessions are alive: a file lock for each session.

The process that owns a session holds an exclusive ``flock`` on the file ``<id>.lock``. The kernel releases
the lock when the process ends, for whatever reason. So a killed owner is detected at once, without clocks or
heartbeats, and a stopped owner (SIGSTOP, a debugger) counts as alive.
Always: the owner takes the lock before other processes can see the session's row, and keeps it until the row
is deleted.
"""

from __future__ import annotations

import fcntl
import os
import weakref
from contextlib import suppress
from pathlib import Path

from namespace.private_files import open_private


class SessionLock:
    """The lock of this process's own session."""

    def __init__(self, directory: Path, session_id: int) -> None:
        self._path = _lock_path(directory, session_id)
        self._fd = open_private(self._path, create=True)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(self._fd)
            raise
        _held.add(self)

    def release(self) -> None:
        """Release the lock and remove its file. The session's row must be deleted already."""
        _held.discard(self)
        # If the directory was replaced, the file there is the lock of another store's session.
        with suppress(OSError):
            if os.path.samestat(os.stat(self._path), os.fstat(self._fd)):
                self._path.unlink()
        os.close(self._fd)

    def forget(self) -> None:
        """In a forked child: close the inherited descriptor. Open, it would keep the session alive."""
        os.close(self._fd)


def is_dead(directory: Path, session_id: int) -> bool:
    """True if no process holds the session's lock."""
    try:
        fd = os.open(_lock_path(directory, session_id), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return True
    try:
        # Shared: two processes that check at the same moment must not take each other for the owner.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(fd)


def remove_lock(directory: Path, session_id: int) -> None:
    """Remove the file of a dead session whose row is deleted."""
    _lock_path(directory, session_id).unlink(missing_ok=True)


def remove_stray_locks(directory: Path, session_ids: set[int]) -> None:
    """Remove files without a session: their process died between deleting the row and removing the file."""
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
