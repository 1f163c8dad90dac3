"""The bytes of an SQLite database, read without SQLite: no lock, no session, no file is made or written.

SQLite itself cannot read a database in WAL mode without the right to write beside it. The file
``metadata.sqlite`` alone is not enough either: a killed process leaves its last commits in the WAL.

Inside: reading the file and its write-ahead log at one moment, and joining them. Not inside: the tables
(``reader``).
Always: an image is the result of a prefix of the commits, with every commit whose call had returned; a frame
counts only if its salts and its checksum are right and a commit frame follows, as in SQLite's recovery. A
descriptor of the database is not closed while this process has the database open in SQLite: closing one
releases the POSIX locks of the whole process.

A read is consistent if the WAL had the same header before and after the database was read. Then a checkpoint
in between copied only frames of this WAL into the database, and the image takes these pages from the WAL.

Source: sqlite.org/fileformat2.html, section 4 (the write-ahead log); fcntl(2) for the locks.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from struct import Struct, unpack

from ledger.metadata_store.errors import StoreReplacedError, StoreUnreachableError

ATTEMPTS = 20
_HEADER = Struct(">8I")  # magic, version, page size, checkpoint, two salts, two sums
_FRAME = Struct(">6I")  # page, pages after a commit or 0, two salts, two sums
_MAGIC = 0x377F0682  # the lowest bit: checksums of big-endian words
_JOURNAL_MAGIC = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
_MODIFICATION_TIME_S = 0.2  # a file system's clock may be so coarse
_FILE_FORMATS = slice(18, 20)  # in the header of a database; 2 in both bytes: it has a WAL
_ROLLBACK_FORMAT = b"\x01\x01"


class Wal:
    """The committed pages of a write-ahead log; a later ``read`` continues after the last commit."""

    def __init__(self) -> None:
        self._restart(b"")

    def _restart(self, header: bytes) -> None:
        self.header = header
        self.pages: dict[int, bytes] = {}
        self.pages_count = 0  # of the database after the last commit; 0: there is no commit here
        self.page_bytes = 0
        self._end = _HEADER.size
        self._sums, self._words = (0, 0), "<"
        if len(header) < _HEADER.size:
            return
        magic, _, page_bytes, _, _, _, *sums = _HEADER.unpack(header)
        if magic & ~1 != _MAGIC:
            return
        self._words = ">" if magic & 1 else "<"
        if self._checksum(header[: _HEADER.size - 8], (0, 0)) == tuple(sums):
            self.page_bytes, self._sums = page_bytes, (sums[0], sums[1])

    def read(self, descriptor: int) -> None:
        """Add the commits of this open file that are new."""
        header = os.pread(descriptor, _HEADER.size, 0)
        if header != self.header:
            self._restart(header)
        if not self.page_bytes:
            return
        rest = os.pread(descriptor, max(0, os.fstat(descriptor).st_size - self._end), self._end)
        salts, frame_bytes, first = header[16:24], _FRAME.size + self.page_bytes, self._end
        sums = self._sums
        pending: dict[int, bytes] = {}
        for start in range(0, len(rest) - frame_bytes + 1, frame_bytes):
            page, committed, _, _, *wanted = _FRAME.unpack_from(rest, start)
            data = rest[start + _FRAME.size : start + frame_bytes]
            if rest[start + 8 : start + 16] != salts:
                return  # the rest is of an older WAL
            sums = self._checksum(rest[start : start + 8] + data, sums)
            if sums != tuple(wanted) or not page:
                return  # a torn frame, or one that is being written
            pending[page] = data
            if committed:
                self.pages |= pending
                self.pages_count, self._sums, pending = committed, sums, {}
                self._end = first + start + frame_bytes

    def _checksum(self, data: bytes, sums: tuple[int, int]) -> tuple[int, int]:
        one, other = sums
        words = unpack(f"{self._words}{len(data) // 4}I", data)
        for even, odd in zip(words[::2], words[1::2], strict=True):
            one = (one + even + other) & 0xFFFFFFFF
            other = (other + odd + one) & 0xFFFFFFFF
        return one, other


class DatabaseFiles:
    """A database and its write-ahead log, read again and again. Its methods block; one thread at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._wal_path = path.with_name(path.name + "-wal")
        self._wal = Wal()
        self._seen: tuple[object, ...] | None = None
        self._seen_since_s = 0.0
        self._is_settled = False

    def read_if_changed(self) -> bytes | None:
        """The image of the database; None if it cannot have changed since the last call.

        Raises:
            StoreUnreachableError: It was never completely created, or changes faster than it can be read.
            OSError
        """
        if self._seen is not None and self._is_settled and self._seen == self._stats():
            return None
        for _ in range(ATTEMPTS):
            started_s = time.monotonic()
            seen = self._stats()
            self._read_wal()
            header = self._wal.header
            database = _read_database(self.path)
            self._read_wal()
            after = self._stats()
            # Without a WAL only the times of the files tell that a commit came between.
            if header == self._wal.header and (header or seen == after):
                if seen != self._seen:
                    self._seen, self._seen_since_s = seen, started_s
                # A file that changed a moment ago may change again without another modification time.
                self._is_settled = started_s - self._seen_since_s > _MODIFICATION_TIME_S
                return self._joined(database)
        raise StoreUnreachableError(f"metadata store {self.path} changes all the time; try again")

    def _stats(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_stat(path) for path in (self.path, self._wal_path))

    def _read_wal(self) -> None:
        try:
            descriptor = os.open(self._wal_path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            self._wal = Wal()
            return
        try:
            self._wal.read(descriptor)
        finally:
            os.close(descriptor)  # SQLite has no locks on this file

    def _joined(self, database: bytes) -> bytes:
        wal, image = self._wal, bytearray(database)
        if not wal.pages_count and self._has_hot_journal():
            raise StoreUnreachableError(
                f"metadata store {self.path}: its creation was interrupted; open it once for writing"
            )
        if wal.pages_count:
            size_bytes = wal.pages_count * wal.page_bytes
            image.extend(bytes(max(0, size_bytes - len(image))))
            for page, data in wal.pages.items():
                if page <= wal.pages_count:
                    image[(page - 1) * wal.page_bytes : page * wal.page_bytes] = data
            del image[size_bytes:]
        if image:
            image[_FILE_FORMATS] = _ROLLBACK_FORMAT  # the image has no WAL
        return bytes(image)

    def _has_hot_journal(self) -> bool:
        try:
            with open(self.path.with_name(self.path.name + "-journal"), "rb") as journal:
                return journal.read(len(_JOURNAL_MAGIC)) == _JOURNAL_MAGIC
        except FileNotFoundError:
            return False


def _stat(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


# Descriptors of databases that this process has open in SQLite, by device and inode.
_guard = threading.Lock()
_users: dict[tuple[int, int], int] = {}
_postponed: dict[tuple[int, int], list[int]] = {}


def begin_use(path: Path) -> tuple[int, int]:
    """Note that SQLite is about to open this database; the result is for ``end_use``."""
    found = os.stat(path)
    identity = (found.st_dev, found.st_ino)
    with _guard:
        _users[identity] = _users.get(identity, 0) + 1
    return identity


def check_identity(path: Path, identity: tuple[int, int]) -> None:
    """Check that the database is the file of ``begin_use``.

    Raises:
        StoreReplacedError: It is another one, or there is none.
    """
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        raise StoreReplacedError(f"metadata store {path}: the file was removed while it was open") from None
    if (found.st_dev, found.st_ino) != identity:
        raise StoreReplacedError(
            f"metadata store {path}: another file replaced it while it was open (inode {found.st_ino}, not"
            f" {identity[1]})"
        )


def end_use(identity: tuple[int, int]) -> None:
    """Note that SQLite has closed the database; close what was postponed."""
    with _guard:
        _users[identity] -= 1
        if _users[identity]:
            return
        del _users[identity]
        for descriptor in _postponed.pop(identity, ()):
            os.close(descriptor)


def _read_database(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        found = os.fstat(descriptor)
        parts = []
        offset = 0
        while part := os.pread(descriptor, 1 << 20, offset):
            parts.append(part)
            offset += len(part)
        return b"".join(parts)
    finally:
        with _guard:
            identity = (found.st_dev, found.st_ino)
            if identity in _users:
                _postponed.setdefault(identity, []).append(descriptor)
            else:
                os.close(descriptor)


def _forget() -> None:
    # A forked child has none of its parent's POSIX locks, and another thread may have held the guard.
    global _guard
    _guard = threading.Lock()


os.register_at_fork(after_in_child=_forget)
