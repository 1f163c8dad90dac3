"""Which sessions are alive: a file lock for each session.

The process that owns a session holds an exclusive ``flock`` on the file ``<id>.lock``. The kernel releases
the lock when the process ends, for whatever reason. So a killed owner is detected at once, without clocks or
heartbeats, and a stopped owner (SIGSTOP, a debugger) counts as alive.
Always: the owner takes the lock before other processes can see the session's row, and keeps it until the row
is deleted. The files are reached through the descriptor of their directory: in another directory at its path,
the lock of a living process would be missing.
"""

from __future__ import annotations

import fcntl
import os
import weakref
from collections.abc import Iterable
from contextlib import suppress

from ledger.runtime.private_files import open_private


class SessionLock:
    """The lock of this process's own session."""

    def __init__(self, directory_fd: int, session_id: int) -> None:
        self._directory_fd, self._name = directory_fd, _lock_name(session_id)
        self._fd = open_private(self._name, create=True, directory_fd=directory_fd, takes_links=True)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(self._fd)
            raise
        _held.add(self)

    def release(self) -> None:
        """Release the lock and remove its file. The session's row must be deleted already."""
        _held.discard(self)
        with suppress(OSError):  # another program may have removed it, and another session have made it
            if os.path.samestat(os.stat(self._name, dir_fd=self._directory_fd), os.fstat(self._fd)):
                os.unlink(self._name, dir_fd=self._directory_fd)
        os.close(self._fd)

    def forget(self) -> None:
        """In a forked child: close the inherited descriptor. Open, it would keep the session alive."""
        os.close(self._fd)


def is_dead(directory_fd: int, session_id: int) -> bool:
    """True if no process holds the session's lock."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = os.open(_lock_name(session_id), flags, dir_fd=directory_fd)
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


def has_living(directory_fd: int) -> bool:
    """True if a process holds the lock of a session."""
    session_ids = map(_session_id, os.listdir(directory_fd))
    return any(each is not None and not is_dead(directory_fd, each) for each in session_ids)


def remove_lock(directory_fd: int, session_id: int) -> None:
    """Remove the file of a dead session whose row is deleted."""
    with suppress(FileNotFoundError):
        os.unlink(_lock_name(session_id), dir_fd=directory_fd)


def remove_stray_locks(directory_fd: int, names: Iterable[str], session_ids: set[int]) -> None:
    """Remove files without a session: their process died between deleting the row and removing the file.

    ``names``: the names in the directory.
    """
    for name in names:
        session_id = _session_id(name)
        if session_id is not None and session_id not in session_ids:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=directory_fd)


def _session_id(name: str) -> int | None:
    number, dot, ending = name.partition(".")
    # the name of a file has at most 255 bytes
    return int(number) if (dot, ending) == (".", "lock") and number.isdecimal() else None


def _lock_name(session_id: int) -> str:
    return f"{session_id}.lock"


_held: weakref.WeakSet[SessionLock] = weakref.WeakSet()


def _forget_all() -> None:
    for lock in list(_held):
        lock.forget()
    _held.clear()


os.register_at_fork(after_in_child=_forget_all)
