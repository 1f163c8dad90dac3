"""A directory and a copy that shares its files by hard links, as `cp -al` and rsnapshot make it.

What is written through one name shows under the other. So of two directories with the same files only one may
be opened: the one that was there first. It then gets files of its own, so the copy keeps the bytes it had.

Inside: telling the directory from the copy, giving it files of its own. Not inside: the lock (``directory``).
Always: a directory that shares files and is not known to be the first is refused; files are replaced only
while no process has the directory open, each by one with the same bytes, durable before it takes the name;
those by which all this is known are replaced last.

The first directory is known by its inode, which ``inode`` holds. The file is not synced: without it, or with
other content, a directory that shares files is refused.

Source: our own; link(2), rename(2).
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from ledger.deploy.directory import LOCK, METADATA, Directory
from ledger.errors import DirectoryUnusableError
from ledger.metadata_store.sqlite_store.session import has_living
from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger
from ledger.runtime.private_files import FILE_MODE

INODE = "inode"
SESSIONS = f"{METADATA}-sessions"
OPENING = f"{SESSIONS}/opening"
_NEW = ".unshared"  # the ending of a file that does not have its name yet
_LAST = (OPENING, LOCK, INODE)  # in this order, after all others

logger = get_logger(__name__)


def settle_links(directory: Directory) -> None:
    """Note which directory this is; if it shares files by hard links, give it files of its own. Blocks.

    It keeps its shared files as long as another process has it open.

    Raises:
        DirectoryUnusableError: It is the copy of another directory, and shares files with it; or a file
            cannot be copied. Then it still shares this file, and the next call continues.
        DirectoryFullError: There is no space for a copy.
    """
    own = b"%d\n" % os.fstat(directory.fd).st_ino
    noted, shares = _read_inode(directory.fd), _shares(directory.fd)
    if not shares:
        if noted != own:
            _note_inode(directory.fd, own)
        return
    if noted != own:
        raise DirectoryUnusableError(
            f"directory {directory.path}: its files are hard links, as `cp -al` and rsnapshot make them:"
            " writing here would change another directory, so nothing was opened. Copy it with files of its"
            f" own, `cp -a {directory.path} NEW`, and open NEW; the other directory opens as ever"
        )
    directory.takes_links = True
    lock = directory.try_lock()
    if lock is None:
        return
    try:
        with ExitStack() as stack:
            if _is_closed(directory.fd, stack):
                _unshare(directory)
    except OSError as exc:
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            raise directory.full(exc) from None
        raise DirectoryUnusableError(
            f"directory {directory.path}: it shares files with a copy, and cannot get its own: {exc.strerror}"
            f" ({exc.filename})"
        ) from None
    finally:
        directory.unlock(lock)


def _read_inode(directory_fd: int) -> bytes | None:
    try:
        fd = os.open(INODE, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory_fd)
    except OSError:
        return None
    try:
        return os.read(fd, 32)
    except OSError:
        return None  # it is a directory
    finally:
        os.close(fd)


def _shares(directory_fd: int) -> bool:
    """True if a file of the directory itself, or of a session, has a second name."""
    for name in (".", SESSIONS):
        try:
            folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory_fd)
        except (FileNotFoundError, NotADirectoryError):
            continue
        try:
            for file in os.listdir(folder):
                with suppress(FileNotFoundError):
                    found = os.stat(file, dir_fd=folder, follow_symlinks=False)
                    if stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
                        return True
        finally:
            os.close(folder)
    return False


def _note_inode(directory_fd: int, own: bytes) -> None:
    """Other processes may do the same."""
    new, flags = f"{INODE}.{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        fd = os.open(new, flags, FILE_MODE, dir_fd=directory_fd)
        try:
            os.write(fd, own)
        finally:
            os.close(fd)
        os.rename(new, INODE, src_dir_fd=directory_fd, dst_dir_fd=directory_fd)
    except OSError:  # the disk may be full: the next process notes it
        with suppress(OSError):
            os.unlink(new, dir_fd=directory_fd)


def _is_closed(directory_fd: int, stack: ExitStack) -> bool:
    """True if no process has the metadata open; until the stack closes, none opens them."""
    try:
        sessions = os.open(SESSIONS, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory_fd)
    except FileNotFoundError:
        return True
    stack.callback(os.close, sessions)
    opening = os.open(OPENING, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE, dir_fd=directory_fd)
    stack.callback(os.close, opening)
    try:
        fcntl.flock(opening, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return not has_living(sessions)


def _unshare(directory: Directory) -> None:
    root = Path(f"/proc/self/fd/{directory.fd}")
    names = list(_shared(root))
    size_bytes = sum((root / name).stat().st_size for name in names)
    logger.warning(
        "directory %s: a copy shares %d files with it by hard links; they are copied now (%d MB)",
        directory.path,
        len(names),
        size_bytes >> 20,
        extra=event("directory.unshared", directory=str(directory.path), files=len(names), bytes=size_bytes),
    )
    for name in [*(each for each in names if each not in _LAST), *(each for each in _LAST if each in names)]:
        _replace(root / name)


def _shared(root: Path) -> Iterator[str]:
    for folder, _, files in os.walk(root):
        for file in files:
            path = Path(folder, file)
            if file.endswith(_NEW):
                path.unlink()  # of an interrupted call
                continue
            found = path.lstat()
            if stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
                yield str(path.relative_to(root))


def _replace(path: Path) -> None:
    """Give a name a file of its own with the same bytes."""
    new = path.with_name(path.name + _NEW)
    try:
        shutil.copyfile(path, new)
        shutil.copystat(path, new)
        fd = os.open(new, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        new.rename(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
