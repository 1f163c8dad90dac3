"""A disk whose changes stay in memory: a bookie starts on directories that it must not write.

Inside: the files that were there at the start, the changes above them, the check that a file is still the
same. Not inside: databases (``overlay_key_values``), keeping other processes away.
Always: no call creates, writes, renames, deletes or locks a file. A stored file that is missing or has other
bytes than at the start is an error and never an empty result, because another process has begun to write.

A bookie that starts on this disk replays its journal into memory, as it would replay it into its entry logs.
So its entries are those that the next ordinary start serves.

Source: our own; overlayfs for the idea.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs

from bookie.disk.disk import Buffer, DiskUsage, File
from bookie.disk.key_values import KeyValues
from bookie.disk.overlay_key_values import OverlayKeyValues
from bookie.disk.real_disk import RealDisk, RealFile
from bookie.disk.rocksdb import RocksKeyValues

_UNLIMITED = DiskUsage(1 << 62, 1 << 62)  # of memory; the free space of the disk below means nothing


@attrs.frozen
class StoredFile:
    """A file of the real disk, and how to recognize it."""

    path: Path
    inode: int
    size_bytes: int
    modified_ns: int

    @classmethod
    def of(cls, path: Path, found: os.stat_result) -> StoredFile:
        return cls(path, found.st_ino, found.st_size, found.st_mtime_ns)


def stored_files(root: Path) -> tuple[dict[Path, StoredFile], frozenset[Path]]:
    """The regular files below a directory, and the directories, the root among them. Blocks.

    Raises:
        OSError: A directory cannot be read, or is changed at this moment.
    """
    files: dict[Path, StoredFile] = {}
    directories = {root}
    pending = [root]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                path, found = Path(entry.path), entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(found.st_mode):
                    directories.add(path)
                    pending.append(path)
                elif stat.S_ISREG(found.st_mode):
                    files[path] = StoredFile.of(path, found)
    return files, frozenset(directories)


class MemoryFile(File):
    """A file in memory. Several may share the bytes of one name."""

    direct = False

    def __init__(self, content: bytearray, guard: threading.Lock) -> None:
        self._content, self._guard = content, guard

    def pwrite(self, data: Buffer, offset: int) -> None:
        if not len(data):
            return
        with self._guard:
            self._content.extend(bytes(max(0, offset - len(self._content))))
            self._content[offset : offset + len(data)] = data

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        self.pwrite(b"".join(buffers), offset)

    def write_durably(self, data: Buffer, offset: int) -> None:
        self.pwrite(data, offset)

    def pread(self, size_bytes: int, offset: int) -> bytes:
        with self._guard:
            return bytes(self._content[offset : offset + size_bytes])

    def pread_cached(self, size_bytes: int, offset: int) -> bytes | None:
        return self.pread(size_bytes, offset)

    def sync(self) -> None:
        pass

    def size(self) -> int:
        return len(self._content)

    def truncate(self, size_bytes: int) -> None:
        with self._guard:
            self._content.extend(bytes(max(0, size_bytes - len(self._content))))
            del self._content[size_bytes:]

    def close(self) -> None:
        pass


class OverlayDisk(RealDisk):
    """The real disk below a directory, as it is now; changes stay in memory."""

    def __init__(self, root: Path, on_changed: Callable[[], None]) -> None:
        """Take the list of files. Blocks.

        Args:
            on_changed: Called when a stored file is not the same any more; in any thread, maybe repeatedly.

        Raises:
            OSError: A directory cannot be read.
        """
        super().__init__()
        stored, directories = stored_files(root)
        self.stored = stored
        self._files: dict[Path, StoredFile | bytearray] = dict(stored)
        self._directories = set(directories)
        self._on_changed = on_changed
        self._guard = threading.Lock()  # of the two above
        self._content_guard = threading.Lock()

    def open(self, path: Path, *, create: bool = False, write: bool = False, direct: bool = False) -> File:
        with self._guard:
            found = self._files.get(path)
            if create:
                if found is not None:
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
                self._check_parent(path)
                found = self._files[path] = bytearray()
        if found is None:
            raise _missing(path)
        if isinstance(found, StoredFile):
            file = self._open_stored(found)
            if not write:
                return file
            try:
                content = bytearray(file.pread(found.size_bytes, 0))
            finally:
                file.close()
            with self._guard:
                # The file may have several names.
                for name in [name for name, file in self._files.items() if file is found]:
                    self._files[name] = content
            found = content
        return MemoryFile(found, self._content_guard)

    def _open_stored(self, stored: StoredFile) -> File:
        try:
            descriptor = self._open(stored.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise self._changed(stored.path) from None
        if StoredFile.of(stored.path, os.fstat(descriptor)) != stored:
            os.close(descriptor)
            raise self._changed(stored.path)
        return RealFile(stored.path, descriptor, direct=False)

    def _changed(self, path: Path) -> OSError:
        self._on_changed()
        return OSError(
            errno.ESTALE, "another process has changed it since it was opened read-only", str(path)
        )

    def _check_parent(self, path: Path) -> None:
        if path.parent not in self._directories:
            raise _missing(path.parent)

    def rename(self, old: Path, new: Path) -> None:
        with self._guard:
            if old in self._directories:  # an index that was rebuilt; nothing below it is read through here
                raise OSError(errno.EROFS, "a directory is not renamed in memory", str(old))
            if old not in self._files:
                raise _missing(old)
            self._check_parent(new)
            if self._files[old] is not self._files.get(new):  # two names of one file stay
                self._files[new] = self._files.pop(old)

    def link(self, old: Path, new: Path) -> None:
        with self._guard:
            if old not in self._files:
                raise _missing(old)
            if new in self._files:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(new))
            self._check_parent(new)
            self._files[new] = self._files[old]

    def unlink(self, path: Path) -> None:
        with self._guard:
            if self._files.pop(path, None) is None:
                raise _missing(path)

    def remove_tree(self, path: Path) -> None:
        with self._guard:
            self._files = {one: file for one, file in self._files.items() if path not in one.parents}
            self._directories = {one for one in self._directories if path not in (one, *one.parents)}

    def remove_directory(self, path: Path) -> bool:
        return False

    def list_directory(self, path: Path) -> list[str]:
        with self._guard:
            if path not in self._directories:
                raise _missing(path)
            return [one.name for one in (*self._files, *self._directories) if one.parent == path != one]

    def make_directory(self, path: Path, *, durably: bool = True) -> None:
        with self._guard:
            if path in self._files:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
            self._directories |= {path, *path.parents}

    def sync_directory(self, path: Path) -> None:
        pass

    def lock(self, path: Path) -> Callable[[], None]:
        return lambda: None

    def hold(self, path: Path, descriptor: int | None = None) -> Callable[[], None]:
        return lambda: None  # each stored file is recognized by itself

    def usage(self, path: Path) -> DiskUsage:
        return _UNLIMITED

    def check_directory(self, path: Path) -> None:
        self.list_directory(path)

    def open_key_values(self, path: Path) -> KeyValues:
        """The database below this path, with its changes in memory. ``OSError``, ``StartError``."""
        is_stored = any(path == one.parent for one in self.stored)
        self.make_directory(path)
        return OverlayKeyValues(
            RocksKeyValues(path, self, read_only=True) if is_stored else None, self._on_changed
        )


def _missing(path: Path) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
