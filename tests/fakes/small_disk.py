"""A small file system: a mounted one, or a disk of the bookie that counts what its files take."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bookie.disk.disk import Buffer, DiskUsage, File
from bookie.disk.real_disk import RealDisk, RealFile
from tests.mounts import mount_memory, unmount


class SmallFile(RealFile):
    """A file that grows only as far as its disk has room."""

    disk: SmallDisk
    path: Path

    def _grow(self, size_bytes: int, offset: int) -> None:
        growth = offset + size_bytes - self.size()
        if growth > 0 and growth > self.disk.free_bytes():
            raise self.disk.refusal(self.path)

    def pwrite(self, data: Buffer, offset: int) -> None:
        self._grow(len(data), offset)
        super().pwrite(data, offset)

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        # Part of it may still find room, as on a real disk.
        free = self.disk.free_bytes()
        try:
            self._grow(sum(map(len, buffers)), offset)
        except OSError:
            super().pwrite(b"".join(map(bytes, buffers))[:free], offset)
            raise
        super().pwritev(buffers, offset)

    def write_durably(self, data: Buffer, offset: int) -> None:
        self._grow(len(data), offset)
        super().write_durably(data, offset)

    def give_back(self, start: int, stop: int) -> bool:
        if not self.disk.can_give_back or not super().give_back(start, stop):
            return False
        if start < self.size():
            self.disk.on_given_back()
        return True


class SmallDisk(RealDisk):
    """So many bytes for all files under a directory, but for the index, whose files are RocksDB's own."""

    def __init__(self, path: Path, total_bytes: int) -> None:
        super().__init__()
        self.path = path
        self.total_bytes = total_bytes
        self.others_bytes = 0  # what other programs have written there
        self.has_refused = False
        self.can_give_back = True
        self.on_given_back: Callable[[], None] = lambda: None

    def used_bytes(self) -> int:
        used = self.others_bytes
        for path, _, names in os.walk(self.path):
            if not path.endswith("/index"):
                for name in names:
                    with contextlib.suppress(FileNotFoundError):
                        found = os.stat(os.path.join(path, name))
                        used += min(found.st_size, found.st_blocks * 512)
        return used

    def free_bytes(self) -> int:
        return max(0, self.total_bytes - self.used_bytes())

    def refusal(self, path: Path) -> OSError:
        """The error of a write without space."""
        self.has_refused = True
        return OSError(errno.ENOSPC, "no space left on device", str(path))

    def fill(self) -> None:
        """Other programs take all that is left."""
        self.others_bytes += self.free_bytes()

    def usage(self, path: Path) -> DiskUsage:
        return DiskUsage(self.total_bytes, self.free_bytes())

    def open(self, path: Path, *, create: bool = False, write: bool = False, direct: bool = False) -> File:
        if create and not self.free_bytes():
            raise self.refusal(path)
        opened = super().open(path, create=create, write=write, direct=False)
        assert isinstance(opened, RealFile)
        file = SmallFile(path, opened._descriptor, direct=False)
        file.disk, file.path = self, path
        return file


class SmallDirectory:
    """A directory on a file system of a few MiB, which other programs fill and free."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def free_bytes(self) -> int:
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def fill(self, left_bytes: int = 0) -> None:
        """Other programs take all but this."""
        fd = os.open(self._ballast, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            with contextlib.suppress(OSError):
                while (more := min(1 << 16, self.free_bytes() - left_bytes)) > 0:
                    os.write(fd, bytes(more))
        finally:
            os.close(fd)

    def free(self, size_bytes: int | None = None) -> None:
        """Other programs free this much of it; None: all."""
        size = self._ballast.stat().st_size
        os.truncate(self._ballast, 0 if size_bytes is None else max(0, size - size_bytes))


@contextlib.contextmanager
def small_directory(path: Path, total_bytes: int) -> Iterator[SmallDirectory]:
    """A directory on a file system of its own, for a test that is marked ``mounts``."""
    path.mkdir()
    mount_memory(path, total_bytes)
    try:
        yield SmallDirectory(path)
    finally:
        unmount(path)
