"""The files of an embedded directory that decide which process hosts its bookie.

Inside: names, ``host.lock``, the socket, what a forked child closes. Not inside: the bookie (``host``),
reaching it (``embedded``).
Always: at most one process holds the lock; the system releases it when the process ends, for any reason. The
directory belongs to this user and is closed to others (mode 0700) before anything is read or written in it.
Its name, and those of its parents, are durable before a file is made in it. The lock, the socket and the
entry logs are reached through the descriptor: those of a directory that took its place are never touched.

    metadata.sqlite   the metadata store, shared by all processes
    metadata.copy     its second copy, from which `dlog repair` makes it again
    metadata.reserve  1 MiB that is given to the metadata when the disk is full
    bookie/           the bookie's journal and ledgers in Apache's formats; ``METADATA`` (``bound_metadata``)
    bookie.sock       the socket at which the host serves the other processes
    host.lock         locked (flock) by the host

Source: our own; unix(7), SO_PEERCRED: the system fills in the user, so a peer cannot lie about it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import attrs
import trio

from ledger.errors import DirectoryFullError, DirectoryMovedError, DirectoryUnusableError
from ledger.read.log_file import DescriptorLog
from ledger.runtime.events import event
from ledger.runtime.held_directories import DirectoryLostError, HeldDirectory, open_directory
from ledger.runtime.log_lines import get_logger
from ledger.runtime.private_files import (
    DIRECTORY_MODE,
    FILE_MODE,
    describe_holders,
    is_named,
    make_private_directories,
    open_private,
    sync_directory,
    tighten_tree,
)

METADATA, BOOKIE, SOCKET, LOCK = "metadata.sqlite", "bookie", "bookie.sock", "host.lock"
BINDING = (
    "METADATA"  # of the bookie: written when it has seen its metadata (``bookie.embedded.bound_metadata``)
)
ACCEPT = "ACCEPT_METADATA"  # made by an operator who gives up what the metadata does not name
METADATA_RESERVE = "metadata.reserve"  # space for the metadata on a full disk
BOOKIE_RESERVE = f"{BOOKIE}/current/flush.reserve"  # and for its bookie
COPY = "metadata.copy"  # the second copy of the metadata
SOCKET_BACKLOG = 128

logger = get_logger(__name__)


@attrs.frozen(eq=False)
class HostLock:
    """``host.lock``, locked. ``not_for_children`` holds it by identity: descriptor numbers are reused."""

    fd: int


class Directory:
    """The directory, held open, so that its files can be reached through a short path."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        """Open the directory, creating it if it is missing.

        A namespace that an older release left open to others is closed to them, with a warning.

        Args:
            read_only: Create nothing and change no mode. Others may have the right to read.

        Raises:
            DirectoryUnusableError: It cannot be made or opened, belongs to another user, or is open to others
                and holds files of something else. Read-only: it is missing, or others may write in it.
        """
        self.path = path
        self.takes_links = False  # a copy that shares files is known, and is not opened (``links``)
        needs = "a file: URI needs a directory that this process may create and write"
        if read_only:
            needs = "to be read, it must exist, and this process must have the right to read it"
        try:
            if not read_only:
                make_private_directories(path)
                self._sync_names_of_new()
            self._fd = open_directory(path)
        except OSError as exc:
            raise DirectoryUnusableError(f"directory {path}: {exc.strerror}; {needs}") from None
        self._held = HeldDirectory(path, self._fd)
        try:
            if read_only:
                self._check_others_cannot_write()
            else:
                self._close_to_others()
        except BaseException:
            os.close(self._fd)
            raise

    def _sync_names_of_new(self) -> None:
        """Make the names of a new directory and its parents durable, before the first file is made in it.

        Not only of those made just now: another process may have made them, and lost power or been killed
        before it synced them.
        """
        if (self.path / METADATA).exists():
            return
        here = self.path.absolute()
        while not here.is_mount() and here != here.parent:
            here = here.parent
            try:
                sync_directory(here)
            except PermissionError:
                return  # this user made neither that parent nor one above it

    def _close_to_others(self) -> None:
        found = os.fstat(self._fd)
        if found.st_uid != os.geteuid():
            raise DirectoryUnusableError(
                f"directory {self.path}: it belongs to user {found.st_uid}, and this process runs as user"
                f" {os.geteuid()}. Run as that user, or name a new directory, also below this one"
            )
        mode = stat.S_IMODE(found.st_mode)
        if not mode & 0o077:
            return
        names = os.listdir(self._fd)
        if mode & stat.S_ISVTX or (names and METADATA not in names):
            raise DirectoryUnusableError(
                f"directory {self.path}: other users may enter it (mode {mode:o}), and it holds files of"
                f" something else. Name a new directory, also below this one; or `chmod 700 {self.path}`"
            )
        try:
            os.fchmod(self._fd, DIRECTORY_MODE)
            tighten_tree(self.path)
        except OSError as exc:
            raise DirectoryUnusableError(
                f"directory {self.path}: other users may enter it (mode {mode:o}), and that cannot be changed"
                f" ({exc.strerror}); run `chmod 700 {self.path}`"
            ) from None
        if names:
            logger.warning(
                "directory %s: other users could enter it (mode %o); now 700",
                self.path,
                mode,
                extra=event("directory.closed_to_others", directory=str(self.path)),
            )

    def _check_others_cannot_write(self) -> None:
        # A directory of root is trusted, as root is: a volume that is mounted read-only may be one.
        found = os.fstat(self._fd)
        if not is_trusted(found.st_uid):
            raise DirectoryUnusableError(
                f"directory {self.path}: it belongs to user {found.st_uid}, and this process runs as user"
                f" {os.geteuid()}. Run as that user"
            )
        mode = stat.S_IMODE(found.st_mode)
        if mode & 0o022:
            raise DirectoryUnusableError(
                f"directory {self.path}: other users may write in it (mode {mode:o}); run"
                f" `chmod go-w {self.path}`"
            )

    def close(self) -> None:
        """Close the descriptor. The lock and the socket are not touched."""
        os.close(self._fd)

    @property
    def fd(self) -> int:
        """The descriptor of the directory."""
        return self._fd

    def check(self) -> None:
        """Raise ``DirectoryMovedError`` unless the path still leads to this directory."""
        try:
            self._held.check()
        except DirectoryLostError as exc:
            raise self.moved(exc) from None
        except OSError as exc:
            raise DirectoryUnusableError(f"directory {self.path}: {exc.strerror}") from None

    def check_metadata(self) -> bool:
        """True if the directory has metadata, or must have it: it was used before.

        Raises:
            DirectoryUnusableError: The metadata is gone, although the bookie was bound to it. Nothing may be
                created in its place: logs would be missing, and new ones would be written over their names.
        """
        binding = f"{BOOKIE}/current/{BINDING}"
        # In this order: another process makes the metadata first.
        if (
            not (self._size_of(binding) or self._size_of(COPY))
            or self._size_of(f"{BOOKIE}/current/{ACCEPT}") is not None
        ):
            return False
        if not self._size_of(METADATA):
            what = "is missing" if self._size_of(METADATA) is None else "is empty"
            if self._size_of(COPY):
                there = COPY
                remedy = f"`dlog repair {self.path}` makes it again from {COPY}. Or bring {METADATA} back"
            else:
                there = binding
                remedy = f"Nor is there a {COPY} to make it again from. Bring {METADATA} back"
            raise DirectoryUnusableError(
                f"directory {self.path}: {METADATA} {what}, but the directory was used: {there} is there."
                f" Nothing was opened or changed. {remedy} from a backup of the directory, with its -wal"
                " file; or, to give up all logs of this directory, create an empty file"
                f" {BOOKIE}/current/{ACCEPT}"
            )
        return True

    def _size_of(self, name: str) -> int | None:
        try:
            return os.stat(name, dir_fd=self._fd).st_size
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as exc:
            raise DirectoryUnusableError(
                f"directory {self.path}: {name} cannot be used: {exc.strerror}. Nothing was changed."
                " Move away what is in its place, and put the file back from a copy"
            ) from None

    def moved(self, lost: DirectoryLostError) -> DirectoryMovedError:
        """The error of this directory, or of one below it, that is not at its path any more."""
        return DirectoryMovedError(f"directory {lost.filename}: {lost.strerror}")

    def full(self, cause: OSError | None = None) -> DirectoryFullError:
        """The error of a change for which the disk has no space; its cause is the ``OSError``."""
        cause = cause or OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        full = DirectoryFullError(
            f"directory {self.path}: its disk is full ({cause.strerror}). What was acknowledged is kept, and"
            " can be read. Free some space, or truncate or delete logs; then the same namespace goes on, and"
            " its writers do after reopen()"
        )
        full.__cause__ = cause
        return full

    def socket_address(self, name: str = SOCKET) -> str:
        """An address of a socket: short enough for the system, and of this directory wherever it is."""
        return self._held.library_path(name)

    def identity_of(self, name: str) -> tuple[int, int] | None:
        """Device and inode of a file at the directory's path; None if there is none."""
        try:
            stat = os.stat(self.path / name)  # by path: the directory may have been replaced
        except (FileNotFoundError, NotADirectoryError):
            return None
        return stat.st_dev, stat.st_ino

    def identity_of_entry_log(self, log_id: int) -> tuple[int, int]:
        """Device and inode of an entry log of the bookie. ``OSError`` if it is not there."""
        found = os.stat(_entry_log(log_id), dir_fd=self._fd)
        return found.st_dev, found.st_ino

    def open_entry_log(self, log_id: int, device: int, inode: int) -> DescriptorLog:
        """Open an entry log of the bookie for reading; the caller closes it.

        Raises:
            OSError: It is not there, or another file is: the bookie has deleted it, or the directory was
                replaced by another one.
        """
        name = _entry_log(log_id)
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self._fd)
        found = os.fstat(fd)
        if (found.st_dev, found.st_ino) != (device, inode):
            os.close(fd)
            raise FileNotFoundError(errno.ENOENT, "another file has the name of the entry log", name)
        return DescriptorLog(fd)

    def try_lock(self) -> HostLock | None:
        """Take the lock; None if another process has it, or this process by another namespace.

        Raises:
            DirectoryUnusableError: ``host.lock`` cannot be opened, is a symlink or has a second name, or the
                file system has no locks.
        """
        fd = self._open_lock()
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        except OSError as exc:
            os.close(fd)
            raise DirectoryUnusableError(
                f"directory {self.path}: its file system has no locks ({exc.strerror}); use a local one"
            ) from None
        if not is_named(fd, LOCK, self._fd):
            os.close(fd)  # another process has put a file in its place (``links``)
            return None
        with suppress(OSError):  # the disk may be full; the id is for operators only
            os.pwrite(fd, b"%-31d\n" % os.getpid(), 0)  # always 32 bytes: the file is never truncated
        lock = HostLock(fd)
        not_for_children[lock] = lambda: os.close(fd)
        return lock

    def _open_lock(self) -> int:
        try:
            return open_private(LOCK, create=True, directory_fd=self._fd, takes_links=self.takes_links)
        except OSError as exc:
            raise DirectoryUnusableError(
                f"directory {self.path}: {LOCK} cannot be opened ({exc.strerror}); is the directory writable?"
            ) from None

    def _open_lock_to_read(self) -> int | None:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            return os.open(LOCK, flags, dir_fd=self._fd)
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise DirectoryUnusableError(
                f"directory {self.path}: {LOCK} cannot be read ({exc.strerror})"
            ) from None

    def is_locked(self) -> bool:
        """True if another process has the lock. Writes nothing.

        It takes the lock, shared, and gives it back at once. A process that wants the lock at this moment
        tries again.
        """
        fd = self._open_lock_to_read()
        if fd is None:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            pass  # the file system has no locks, so no process hosts
        finally:
            os.close(fd)
        return False

    def holder(self) -> str:
        """The process that holds the lock, for a message, and the one that the file names if it differs."""
        fd = self._open_lock_to_read()
        if fd is None:
            return "another process"
        try:
            holders = describe_holders(fd)
            named = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
        finally:
            os.close(fd)
        # it is shown, and parsed nowhere
        if not named.isdecimal() or f"process {named}" in holders:
            return holders
        return f"{holders} (the last host was process {named})"

    def unserved(self, waited_s: float) -> DirectoryUnusableError:
        """The error of a lock whose holder does not serve."""
        return DirectoryUnusableError(
            f"directory {self.path}: {self.holder()} has held {LOCK} for {waited_s:g} s and does not serve."
            " If it replays a long journal, wait, or raise host_lock_timeout_s; else end it"
        )

    def unlock(self, lock: HostLock) -> None:
        """Release the lock. In a forked child this does nothing: the child closed its copy already."""
        # In a forked child the entry is missing, and the descriptor's number may be another file's.
        if not_for_children.pop(lock, None) is not None:
            os.close(lock.fd)

    def remove_socket(self, name: str = SOCKET) -> None:
        """Remove a socket's name; no error if there is none."""
        try:
            os.unlink(name, dir_fd=self._fd)
        except FileNotFoundError:
            pass  # removed already

    def sockets(self, prefix: str) -> list[str]:
        """The names of sockets that begin like this, also of processes that were killed."""
        return [name for name in os.listdir(self._fd) if name.startswith(prefix) and name.endswith(".sock")]

    def listen(self, name: str = SOCKET) -> LocalListener:
        """Open a socket at which this process serves other processes of this user; that of the host.

        Raises:
            DirectoryUnusableError: No socket can be made there.
        """
        self.remove_socket(name)  # of a process that was killed
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.bind(self.socket_address(name))
            os.chmod(name, FILE_MODE, dir_fd=self._fd)  # nothing connects before ``listen``
            sock.listen(SOCKET_BACKLOG)
        except OSError as exc:
            sock.close()
            raise DirectoryUnusableError(
                f"directory {self.path}: no socket can be made there ({exc.strerror})"
            ) from None
        listener = LocalListener(trio.socket.from_stdlib_socket(sock))
        not_for_children[listener] = sock.close
        return listener

    async def connect(self, name: str = SOCKET) -> trio.SocketStream | None:
        """Connect to a socket, that of the host; None if no process serves.

        Raises:
            DirectoryUnusableError: The socket is a symlink, or a process of another user listens there.
            OSError: The host cannot be reached.
        """
        try:
            found = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        except FileNotFoundError:
            return None
        if not stat.S_ISSOCK(found.st_mode):
            raise DirectoryUnusableError(f"directory {self.path}: {name} is no socket; remove it")
        sock = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            await sock.connect(self.socket_address(name))
            uid = peer_uid(sock)
            if not is_trusted(uid):
                raise DirectoryUnusableError(
                    f"directory {self.path}: a process of user {uid} listens at {name}; end it"
                )
        except (ConnectionRefusedError, FileNotFoundError):
            sock.close()
            return None
        except BaseException:
            sock.close()
            raise
        return trio.SocketStream(sock)


def _entry_log(log_id: int) -> str:
    return f"{BOOKIE}/current/{log_id:x}.log"


# A forked child closes these. With the lock and the listening socket of a killed host it would keep every
# other process from taking over, and would answer no request itself. The keys are objects: a descriptor's
# number is reused as soon as it is closed, and other threads open and close descriptors at any time.
not_for_children: dict[object, Callable[[], None]] = {}


def _close_in_child() -> None:
    while not_for_children:
        _, close = not_for_children.popitem()
        close()


os.register_at_fork(after_in_child=_close_in_child)


_CREDENTIALS = struct.Struct("=iII")  # struct ucred: pid, uid, gid
_ROOT = 0


def peer_uid(sock: trio.socket.SocketType) -> int:
    """The user of the process at the other end: the one that called ``connect`` or ``listen``."""
    found = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    uid: int = _CREDENTIALS.unpack(found)[1]
    return uid


def is_trusted(uid: int) -> bool:
    """True for this process's user and for root."""
    return uid in (os.geteuid(), _ROOT)


class LocalListener(trio.abc.Listener[trio.SocketStream]):
    """Accepts connections of this user and of root. Others are closed; the first of each user is logged."""

    def __init__(self, sock: trio.socket.SocketType) -> None:
        """``sock`` listens already."""
        self.socket = sock
        self._refused: set[int] = set()

    async def accept(self) -> trio.SocketStream:
        """The next connection of a trusted user."""
        while True:
            sock, _ = await self.socket.accept()
            try:
                uid = peer_uid(sock)
                if is_trusted(uid):
                    return trio.SocketStream(sock)
            except OSError:
                sock.close()  # the peer is gone
                continue
            sock.close()
            if uid not in self._refused:
                self._refused.add(uid)
                logger.warning(
                    "a process of user %d connected to this namespace and was refused",
                    uid,
                    extra=event("directory.peer_refused", user_id=uid),
                )

    async def aclose(self) -> None:
        """Close the socket."""
        self.socket.close()
        await trio.lowlevel.checkpoint()
