"""The disk for those who only look: nothing is made, written, renamed or deleted, databases included.

Inside: the refusals. Not inside: reading (``disk``).
Always: a lock is shared, and taken only where a bookie has left its file: looking leaves no trace.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
from collections.abc import Callable
from pathlib import Path

from bookie.disk import File, RealDisk
from bookie.errors import DirectoryInUseError
from bookie.key_values import KeyValues, RocksKeyValues


class ReadOnlyDisk(RealDisk):
    """See the module. ``OSError`` with EROFS for everything that would change something."""

    def open(self, path: Path, *, create: bool = False, write: bool = False, direct: bool = False) -> File:
        """As ``Disk.open``, but writing to the file fails."""
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

    def make_directory(self, path: Path) -> None:
        raise _refused(path)

    def replace_file(self, path: Path, data: bytes) -> None:
        raise _refused(path)

    def lock(self, path: Path) -> Callable[[], None]:
        """Keep bookies away while looking. ``DirectoryInUseError`` if one is there."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return lambda: None  # no bookie of ours has ever been here
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as exc:
            os.close(descriptor)
            if exc.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            raise DirectoryInUseError(f"{path.parent} is in use by another process") from exc
        return functools.partial(_unlock, descriptor)

    def open_key_values(self, path: Path) -> KeyValues:
        return RocksKeyValues(path, self, read_only=True)


def _unlock(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        os.close(descriptor)


def _refused(path: Path) -> OSError:
    return OSError(errno.EROFS, "this disk is only looked at", str(path))
