"""The files of an embedded directory that decide which process hosts its bookie.

Inside: names, ``host.lock``, the socket, what a forked child closes. Not inside: the bookie (``host``),
reaching it (``embedded``).
Always: at most one process holds the lock; the system releases it when the process ends, for any reason.

    metadata.sqlite   the metadata store, shared by all processes
    bookie/           the bookie's journal and ledgers in Apache's formats; ``METADATA`` (``bound_metadata``)
    bookie.sock       the socket at which the host serves the other processes
    host.lock         locked (flock) by the host

Source: our own.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Callable
from pathlib import Path

import attrs
import trio

from ledger.errors import DirectoryUnusableError

METADATA, BOOKIE, SOCKET, LOCK = "metadata.sqlite", "bookie", "bookie.sock", "host.lock"
SOCKET_BACKLOG = 128


@attrs.frozen(eq=False)
class HostLock:
    """``host.lock``, locked. ``not_for_children`` holds it by identity: descriptor numbers are reused."""

    fd: int


class Directory:
    """The directory, held open, so that its files can be reached through a short path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as exc:
            raise DirectoryUnusableError(
                f"directory {path}: {exc.strerror}; a file: URI needs a directory that this process may"
                " create and write"
            ) from exc

    def close(self) -> None:
        """Close the descriptor. The lock and the socket are not touched."""
        os.close(self._fd)

    @property
    def socket_address(self) -> str:
        """An address of the socket that fits into the 108 bytes which the system allows."""
        direct = str(self.path / SOCKET)
        return direct if len(os.fsencode(direct)) < 100 else f"/proc/self/fd/{self._fd}/{SOCKET}"

    def identity_of(self, name: str) -> tuple[int, int] | None:
        """Device and inode of a file in the directory; None if there is none."""
        try:
            stat = os.stat(self.path / name)  # by path: the directory may have been replaced
        except FileNotFoundError:
            return None
        return stat.st_dev, stat.st_ino

    def try_lock(self) -> HostLock | None:
        """Take the lock; None if another process has it, or this process by another namespace."""
        try:
            fd = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666, dir_fd=self._fd)
        except OSError as exc:
            raise DirectoryUnusableError(
                f"directory {self.path}: {LOCK} cannot be opened ({exc.strerror}); is the directory writable?"
            ) from exc
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        except OSError as exc:
            os.close(fd)
            raise DirectoryUnusableError(
                f"directory {self.path}: its file system has no locks ({exc.strerror}); use a local one"
            ) from exc
        # For operators; no program reads it.
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"%d\n" % os.getpid(), 0)
        lock = HostLock(fd)
        not_for_children[lock] = lambda: os.close(fd)
        return lock

    def unlock(self, lock: HostLock) -> None:
        """Release the lock. In a forked child this does nothing: the child closed its copy already."""
        # In a forked child the entry is missing, and the descriptor's number may be another file's.
        if not_for_children.pop(lock, None) is not None:
            os.close(lock.fd)

    def remove_socket(self) -> None:
        """Remove the socket's name; no error if there is none."""
        try:
            os.unlink(SOCKET, dir_fd=self._fd)
        except FileNotFoundError:
            pass  # removed already

    def listen(self) -> trio.SocketListener:
        """Open the socket at which the host serves other processes.

        Raises:
            DirectoryUnusableError: No socket can be made there.
        """
        self.remove_socket()  # of a host that was killed
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.bind(self.socket_address)
            sock.listen(SOCKET_BACKLOG)
        except OSError as exc:
            sock.close()
            raise DirectoryUnusableError(
                f"directory {self.path}: no socket can be made there ({exc.strerror})"
            ) from exc
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(sock))
        not_for_children[listener] = sock.close
        return listener


# A forked child closes these. With the lock and the listening socket of a killed host it would keep every
# other process from taking over, and would answer no request itself. The keys are objects: a descriptor's
# number is reused as soon as it is closed, and other threads open and close descriptors at any time.
not_for_children: dict[object, Callable[[], None]] = {}


def _close_in_child() -> None:
    while not_for_children:
        _, close = not_for_children.popitem()
        close()


os.register_at_fork(after_in_child=_close_in_child)
