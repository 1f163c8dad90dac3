"""A disk for inspection: it never creates, writes, renames or deletes files, databases included.

Inside: the refusal of each changing call. Not inside: reading (``real_disk``).
Always: a lock is shared, and is taken only where a bookie has left its lock file. So an inspection changes
no file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
from collections.abc import Callable
from pathlib import Path

from bookie.disk.disk import File
from bookie.disk.key_values import KeyValues
from bookie.disk.real_disk import RealDisk
from bookie.disk.rocksdb import RocksKeyValues
from bookie.errors import DirectoryInUseError


class ReadOnlyDisk(RealDisk):
    """The real disk, read-only. ``OSError`` with EROFS for each call that would change a file."""

    def open(self, path: Path, *, create: bool = False, write: bool = False, direct: bool = False) -> File:
        """As ``Disk.open``, but the file is opened for reading only."""
        if create:
            raise _refused(path)
        return super().open(path, direct=direct)

    def rename(self, old: Path, new: Path) -> None:
        raise _refused(new)

    def link(self, old: Path, new: Path) -> None:
        raise _refused(new)

    def unlink(self, path: Path) -> None:
        raise _refused(path)

    def remove_tree(self, path: Path) -> None:
        raise _refused(path)

    def remove_directory(self, path: Path) -> bool:
        raise _refused(path)

    def make_directory(self, path: Path, *, durably: bool = True) -> None:
        raise _refused(path)

    def replace_file(self, path: Path, data: bytes) -> None:
        raise _refused(path)

    def lock(self, path: Path) -> Callable[[], None]:
        """Take a shared lock that keeps bookies away. ``DirectoryInUseError`` if one holds the directory."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return lambda: None  # no bookie of this program has ever used the directory
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as exc:
            os.close(descriptor)
            if exc.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            raise DirectoryInUseError(
                f"{path.parent} is in use by another process. Stop that process, then inspect the directory"
            ) from exc
        return functools.partial(_unlock, descriptor)

    def open_key_values(self, path: Path) -> KeyValues:
        return RocksKeyValues(path, self, read_only=True)

    def open_apache_database(self, path: Path, *, create: bool = False) -> KeyValues:
        """Open the database of Apache's bookie for reading. ``OSError`` with ``create``."""
        if create:
            raise _refused(path)
        return RocksKeyValues(path, read_only=True)


def _unlock(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        os.close(descriptor)


def _refused(path: Path) -> OSError:
    return OSError(errno.EROFS, "the directory is opened for inspection only", str(path))
