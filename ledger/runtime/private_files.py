"""Files and directories that only their owner can use, whatever the umask; waiting for a file lock.

Inside: creating and opening them, the refused ones, the holder of a lock. Not inside: the content of files.
Always: a directory is made with mode 0700 and a file with 0600; a symlink, a file with a second name and a
file of another user are refused before a byte is written; no file is truncated; each wait for a lock has a
bound.

The umask of the process is not touched: it belongs to all threads.

Source: open(2), flock(2), proc_locks(5).
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from pathlib import Path

DIRECTORY_MODE, FILE_MODE = 0o700, 0o600
_OTHERS = 0o077  # the bits of group and others
_LOCK_PAUSE_S = 0.01


def make_private_directories(path: Path) -> list[Path]:
    """Create a directory and its missing parents, each for the owner only. Existing ones stay as they are.

    Returns:
        The directories that were made, outermost first.

    Raises:
        OSError: One cannot be made, or the path is no directory.
    """
    try:
        os.mkdir(path, DIRECTORY_MODE)
    except (FileNotFoundError, FileExistsError):
        pass  # a parent is missing, or there is nothing to make
    else:
        os.chmod(path, DIRECTORY_MODE)  # the umask may have taken rights of the owner
        return [path]
    missing = []
    here = path
    while not here.exists():
        missing.append(here)
        here = here.parent
    made = []
    for directory in reversed(missing):
        try:
            os.mkdir(directory, DIRECTORY_MODE)
        except FileExistsError:
            continue  # another process made it; its type is checked below
        os.chmod(directory, DIRECTORY_MODE)  # the umask may have taken rights of the owner
        made.append(directory)
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    return made


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable. Blocks the thread.

    Raises:
        OSError
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def open_private(
    path: str | Path, *, create: bool, directory_fd: int | None = None, takes_links: bool = False
) -> int:
    """Open a file of this user for reading and writing; take the rights of others away.

    Args:
        create: Create the file if it does not exist.
        directory_fd: ``path`` is relative to this directory.
        takes_links: The file may have a second name: the caller knows whose.

    Returns:
        The descriptor. It is closed by ``exec``.

    Raises:
        FileNotFoundError: There is no such file, without ``create``.
        PermissionError: The path is a symlink, no regular file, has a second name (a hard link), or belongs
            to another user. Nothing was changed.
        OSError
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | (os.O_CREAT if create else 0)
    try:
        descriptor = os.open(path, flags, FILE_MODE, dir_fd=directory_fd)
    except OSError as exc:
        if exc.errno == errno.ELOOP:
            raise _refused(path, "it is a symlink; remove it") from exc
        raise
    try:
        found = os.fstat(descriptor)
        check_private(found, path, takes_links=takes_links)
        if stat.S_IMODE(found.st_mode) != FILE_MODE:
            os.fchmod(descriptor, FILE_MODE)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def is_named(descriptor: int, name: str, directory_fd: int) -> bool:
    """True if the name in the directory is that of the open file."""
    try:
        return os.path.samestat(os.stat(name, dir_fd=directory_fd), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def create_private(path: Path, *, takes_links: bool = False) -> None:
    """Create an empty file of this user without opening it. If it exists, check it and take others' rights.

    For a file whose closing would release locks, as it does for a database of SQLite.

    Args:
        takes_links: As for ``open_private``.

    Raises:
        PermissionError: As ``open_private``.
        OSError
    """
    try:
        os.mknod(path, stat.S_IFREG | FILE_MODE)
    except FileExistsError:
        pass
    found = os.lstat(path)
    check_private(found, path, takes_links=takes_links)
    if stat.S_IMODE(found.st_mode) != FILE_MODE:
        os.chmod(path, FILE_MODE)


def check_private(found: os.stat_result, path: str | Path, *, takes_links: bool = False) -> None:
    """Raise ``PermissionError`` unless it is a regular file of this user with one name (``takes_links``)."""
    if stat.S_ISLNK(found.st_mode):
        raise _refused(path, "it is a symlink; remove it")
    if not stat.S_ISREG(found.st_mode):
        raise _refused(path, "it is no regular file; remove it")
    if found.st_uid != os.geteuid():
        raise _refused(
            path,
            f"it belongs to user {found.st_uid}; run as that user, or remove it (this is {os.geteuid()})",
        )
    if found.st_nlink > 1 and not takes_links:
        raise _refused(path, f"it has {found.st_nlink} names (hard links); remove this one")


def tighten_tree(directory: Path) -> None:
    """Take the rights of group and others from all that this user owns below a directory.

    Symlinks are not followed. The directory itself must be closed to others already.
    """
    for folder, directories, files in os.walk(directory):
        for names, mode in ((directories, DIRECTORY_MODE), (files, FILE_MODE)):
            for name in names:
                path = Path(folder, name)
                found = os.lstat(path)
                is_open = found.st_mode & _OTHERS and not stat.S_ISLNK(found.st_mode)
                if is_open and found.st_uid == os.geteuid():
                    os.chmod(path, mode)


def lock_within(descriptor: int, timeout_s: float, path: Path) -> None:
    """Take the exclusive lock (flock) of an open file. Blocks the thread.

    Raises:
        TimeoutError: Another process held the lock for ``timeout_s``; the message names it.
        OSError: The file system has no locks.
    """
    end_s = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end_s:
                raise TimeoutError(
                    errno.ETIMEDOUT,
                    f"{describe_holders(descriptor)} has held the lock for {timeout_s:g} s; end it",
                    str(path),
                ) from None
            time.sleep(_LOCK_PAUSE_S)
        else:
            return


def describe_holders(descriptor: int) -> str:
    """The processes that hold a lock (flock) on an open file, for a message: ``process 4711 (python)``."""
    found = os.fstat(descriptor)
    device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    holders = []
    try:
        with open("/proc/locks", encoding="ascii") as locks:
            for line in locks:
                # 1: FLOCK  ADVISORY  WRITE 4711 08:01:1234 0 EOF; if it waits: 1: -> FLOCK ...
                fields = line.split()
                if len(fields) >= 6 and fields[1] == "FLOCK" and fields[5] == device:
                    holders.append(_process(int(fields[4])))
    except (OSError, ValueError):
        pass  # the message does without
    return " and ".join(dict.fromkeys(holders)) or "another process"


def _process(pid: int) -> str:
    if pid <= 0:
        return "a process outside this container"
    try:
        name = Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").strip()
    except OSError:
        return f"process {pid}"
    return f"process {pid} ({name})"


def _refused(path: str | Path, reason: str) -> PermissionError:
    return PermissionError(errno.EPERM, f"refused: {reason}", str(path))
