"""The open index files of one directory: at most so many, each closed only when nobody is in it.

Inside: opening, making and deleting files, which of them are not synced yet. Not inside: what is written
(``page_file``), when (``page_index``).
Always: a file with unsynced writes is synced before it is closed, since a later descriptor may not be told
of a write-back that failed; a file made anew is durable by name once ``sync`` has returned.

Any thread reads; the storage thread does the rest.

Source: FileInfoBackingCache.java, IndexPersistenceMgr.java; apache/bookkeeper#913, #1757.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bookie.disk import Disk, File
from bookie.page_file import PAGE_FILE_HEADER_BYTES, page_file_path


class _OpenFile:
    __slots__ = ("file", "header", "is_dropped", "is_unsynced", "users")

    def __init__(self, file: File) -> None:
        self.file = file
        self.header: bytes | None = None  # as far as the storage thread knows it
        self.users = 0
        self.is_unsynced = False
        self.is_dropped = False


class PageFiles:
    """See the module."""

    def __init__(self, disk: Disk, directory: Path, open_files_max: int) -> None:
        assert open_files_max >= 1
        self._disk = disk
        self._directory = directory
        self._open_files_max = open_files_max
        self._lock = threading.Lock()
        self._open: OrderedDict[int, _OpenFile] = OrderedDict()  # the one used last is last
        self._unsynced_directories: set[Path] = set()

    def __len__(self) -> int:
        return len(self._open)

    def read(self, ledger_id: int, size_bytes: int, offset: int) -> bytes:
        """Shorter only at the end of the file. ``FileNotFoundError`` if there is none."""
        with self._using(ledger_id, None) as opened:
            return opened.file.pread(size_bytes, offset)

    def write(
        self,
        ledger_id: int,
        pieces: Sequence[tuple[int, Sequence[bytearray]]],
        header: bytes,
        *,
        is_known: Callable[[], bool],
    ) -> None:
        """Write buffers at offsets, and the header if it is another; durable after ``sync``.

        ``is_known`` is asked when the file is opened: whether it should be there. If not, one that is there
        is what is left of a deleted ledger of this id, or of a flush that did not happen, and goes.
        """
        with self._using(ledger_id, is_known) as opened:
            if opened.header is None:
                opened.header = opened.file.pread(PAGE_FILE_HEADER_BYTES, 0)
            opened.is_unsynced = True
            if opened.header != header:
                opened.file.pwrite(header, 0)
                opened.header = header
            for offset, buffers in pieces:
                opened.file.pwritev(buffers, offset)

    def sync(self) -> None:
        """Make what was written durable, then what was made or deleted."""
        with self._lock:
            unsynced = [opened for opened in self._open.values() if opened.is_unsynced]
        self._disk.sync_all([opened.file for opened in unsynced], sorted(self._unsynced_directories))
        for opened in unsynced:
            opened.is_unsynced = False
        self._unsynced_directories.clear()

    def sync_file(self, ledger_id: int) -> None:
        """Make durable also what an earlier process wrote to it."""
        with self._using(ledger_id, None) as opened:
            opened.file.sync()
            opened.is_unsynced = False

    def delete(self, ledger_id: int) -> None:
        """Unlink the ledger's file; readers that are in it finish undisturbed."""
        with self._lock:
            opened = self._open.pop(ledger_id, None)
            if opened is not None:
                opened.is_dropped = True
                self._close_unused(opened)
        path = page_file_path(self._directory, ledger_id)
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(path)
            self._unsynced_directories.add(path.parent)

    def close(self) -> None:
        with self._lock:
            while self._open:
                _, opened = self._open.popitem()
                opened.is_dropped = True
                self._close_unused(opened)

    @contextlib.contextmanager
    def _using(self, ledger_id: int, is_known: Callable[[], bool] | None) -> Iterator[_OpenFile]:
        with self._lock:
            opened = self._open.get(ledger_id)
            if opened is not None:
                self._open.move_to_end(ledger_id)
                opened.users += 1
        if opened is None:
            opened = self._open_file(ledger_id, is_known)
        try:
            yield opened
        finally:
            with self._lock:
                opened.users -= 1
                self._close_unused(opened)

    def _open_file(self, ledger_id: int, is_known: Callable[[], bool] | None) -> _OpenFile:
        path = page_file_path(self._directory, ledger_id)
        may_sync = is_known is not None  # it is the storage thread
        is_there = is_known is None or is_known()
        file = self._disk.open(path, write=True) if is_there else self._make(path)
        surplus: list[_OpenFile] = []
        with self._lock:
            if (meanwhile := self._open.get(ledger_id)) is not None:
                file.close()
                meanwhile.users += 1
                return meanwhile
            opened = self._open[ledger_id] = _OpenFile(file)
            opened.users += 1
            for other_id, other in list(self._open.items()):
                if len(self._open) <= self._open_files_max:
                    break
                if other.users == 0 and (may_sync or not other.is_unsynced):
                    del self._open[other_id]
                    surplus.append(other)
        for other in surplus:
            try:
                if other.is_unsynced:
                    other.file.sync()
            finally:
                other.file.close()
        return opened

    def _make(self, path: Path) -> File:
        self._disk.make_directory(path.parent)
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(path)
        file = self._disk.open(path, create=True, write=True)
        self._unsynced_directories.add(path.parent)
        return file

    def _close_unused(self, opened: _OpenFile) -> None:
        if opened.is_dropped and opened.users == 0:
            opened.file.close()
