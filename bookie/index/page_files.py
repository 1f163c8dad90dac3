"""The open index files of one directory. Their number is bounded; a file in use is never closed.

Inside: opening, creating and deleting files, tracking unsynced ones. Not inside: the bytes (``page_file``),
when they are written (``page_index``).
Always: a file with unsynced writes is synced before it is closed, since a failed write-back may not be
reported to a descriptor opened later. The name of a new file is durable after ``sync`` has returned.

Any thread reads; only the storage thread calls the other methods.

Source: FileInfoBackingCache.java, IndexPersistenceMgr.java; apache/bookkeeper#913, #1757.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bookie.disk.disk import Disk, File
from bookie.index.page_file import PAGE_FILE_HEADER_BYTES, page_file_path


class _OpenFile:
    __slots__ = ("file", "header", "is_dropped", "is_unsynced", "users")

    def __init__(self, file: File) -> None:
        self.file = file
        self.header: bytes | None = None  # None: the storage thread has not read it yet
        self.users = 0
        self.is_unsynced = False
        self.is_dropped = False


class PageFiles:
    """The index files below one directory, by ledger."""

    def __init__(self, disk: Disk, directory: Path, open_files_max: int) -> None:
        assert open_files_max >= 1  # a validator of ``PageConfig``
        self._disk = disk
        self._directory = directory
        self._open_files_max = open_files_max
        self._lock = threading.Lock()
        self._open: OrderedDict[int, _OpenFile] = OrderedDict()  # in order of last use, latest last
        self._unsynced_directories: set[Path] = set()

    def __len__(self) -> int:
        return len(self._open)

    def read(self, ledger_id: int, size_bytes: int, offset: int) -> bytes:
        """Read; shorter than ``size_bytes`` only at the end of the file. ``FileNotFoundError`` if absent."""
        with self._using(ledger_id, None) as opened:
            return opened.file.pread(size_bytes, offset)

    def write(
        self,
        ledger_id: int,
        pieces: Sequence[tuple[int, Sequence[bytearray | memoryview]]],
        header: bytes,
        *,
        has_pages: Callable[[], bool],
        grow_to_bytes: int = 0,
    ) -> None:
        """Write buffers at offsets, and the header if it has changed. Durable after ``sync``.

        Args:
            has_pages: Called when the file is opened: True if the index has durable or written pages of the
                ledger. If False, an existing file belongs to a deleted ledger of this id, or to a flush that
                a crash has undone; it is deleted.
            grow_to_bytes: Make the file this long if it is shorter. The part that is not written is a hole.
        """
        with self._using(ledger_id, has_pages) as opened:
            if opened.header is None:
                opened.header = opened.file.pread(PAGE_FILE_HEADER_BYTES, 0)
            opened.is_unsynced = True
            at = 0
            if opened.header != header:
                if pieces and pieces[0][0] == len(header):  # the header and the first page with one write
                    opened.file.pwritev([header, *pieces[0][1]], 0)
                    at = 1
                else:
                    opened.file.pwrite(header, 0)
                opened.header = header
            for offset, buffers in pieces[at:]:
                opened.file.pwritev(buffers, offset)
            if grow_to_bytes > opened.file.size():
                opened.file.truncate(grow_to_bytes)

    def sync(self) -> None:
        """Make writes durable, then the names of created and deleted files."""
        with self._lock:
            unsynced = [opened for opened in self._open.values() if opened.is_unsynced]
        self._disk.sync_all([opened.file for opened in unsynced], sorted(self._unsynced_directories, key=str))
        for opened in unsynced:
            opened.is_unsynced = False
        self._unsynced_directories.clear()

    def sync_file(self, ledger_id: int) -> None:
        """Make the file durable, including the writes of an earlier process."""
        with self._using(ledger_id, None) as opened:
            opened.file.sync()
            opened.is_unsynced = False

    def create_missing(self, ledger_id: int) -> None:
        """Create the ledger's file if it is gone, empty. Its name is durable after ``sync``."""
        try:
            with self._using(ledger_id, None):
                pass
        except FileNotFoundError:
            with self._using(ledger_id, lambda: False):
                pass

    def delete(self, ledger_id: int) -> None:
        """Unlink the ledger's file, and its directories if they are empty. Readers that use it continue."""
        with self._lock:
            opened = self._open.pop(ledger_id, None)
            if opened is not None:
                opened.is_dropped = True
                self._close_unused(opened)
        path = page_file_path(self._directory, ledger_id)
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(path)
            # Ledgers of strangers would leave 65,536 directories behind.
            directory = path.parent
            while directory != self._directory and self._disk.remove_directory(directory):
                self._unsynced_directories.discard(directory)
                directory = directory.parent
            self._unsynced_directories.add(directory)

    def close(self) -> None:
        with self._lock:
            while self._open:
                _, opened = self._open.popitem()
                opened.is_dropped = True
                self._close_unused(opened)

    @contextlib.contextmanager
    def _using(self, ledger_id: int, has_pages: Callable[[], bool] | None) -> Iterator[_OpenFile]:
        with self._lock:
            opened = self._open.get(ledger_id)
            if opened is not None:
                self._open.move_to_end(ledger_id)
                opened.users += 1
        if opened is None:
            opened = self._open_file(ledger_id, has_pages)
        try:
            yield opened
        finally:
            with self._lock:
                opened.users -= 1
                self._close_unused(opened)

    def _open_file(self, ledger_id: int, has_pages: Callable[[], bool] | None) -> _OpenFile:
        path = page_file_path(self._directory, ledger_id)
        may_sync = has_pages is not None  # only the storage thread passes it
        should_exist = has_pages is None or has_pages()
        file = self._disk.open(path, write=True) if should_exist else self._create(path)
        with self._lock:
            if (meanwhile := self._open.get(ledger_id)) is not None:
                file.close()
                meanwhile.users += 1
                return meanwhile
            opened = self._open[ledger_id] = _OpenFile(file)
            if not should_exist:
                opened.header = b""
            opened.users += 1
            surplus = self._take_surplus(may_sync=may_sync)
        try:
            if any(other.is_unsynced for other in surplus):
                self._sync_files(surplus)
        finally:
            for other in surplus:
                other.file.close()
        return opened

    def _take_surplus(self, *, may_sync: bool) -> list[_OpenFile]:
        """Remove as many files as there are too many, those used longest ago first. The caller locks."""
        count = len(self._open) - self._open_files_max
        ledger_ids: list[int] = []
        if count > 0:
            # Not over a copy: this runs for each file that is opened.
            for ledger_id, opened in self._open.items():
                if opened.users == 0 and (may_sync or not opened.is_unsynced):
                    ledger_ids.append(ledger_id)
                    if len(ledger_ids) == count:
                        break
        return [self._open.pop(ledger_id) for ledger_id in ledger_ids]

    def _sync_files(self, closing: Sequence[_OpenFile] = ()) -> None:
        """Sync all unsynced files at once: concurrent syncs are many times as fast as single ones."""
        with self._lock:
            unsynced = [opened for opened in (*self._open.values(), *closing) if opened.is_unsynced]
        self._disk.sync_all([opened.file for opened in unsynced], ())
        for opened in unsynced:
            opened.is_unsynced = False

    def _create(self, path: Path) -> File:
        parent = path.parent
        self._disk.make_directory(parent, durably=False)
        try:
            file = self._disk.open(path, create=True, write=True)
        except FileExistsError:
            self._disk.unlink(path)
            file = self._disk.open(path, create=True, write=True)
        # ``sync`` syncs them all at once. Directories that exist too: a process that was killed may have made
        # them and not synced their names.
        self._unsynced_directories.update((parent, parent.parent, self._directory))
        return file

    def _close_unused(self, opened: _OpenFile) -> None:
        if opened.is_dropped and opened.users == 0:
            opened.file.close()
