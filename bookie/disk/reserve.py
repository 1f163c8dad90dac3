"""Reserved disk space for a full disk. Without it, compaction could not free space, the write cache could not
be flushed, and a bookie could not start to serve reads.

Inside: a file of zeros in a ledger directory, created while space is free, and deleted or lent piece by piece
when it is needed. Not inside: when (``log_collector``; ``disk_watch``, ``directory_files`` and ``main``).
Always: the reserve does not fill the disk: it grows only while several times its missing size is free, or
takes back, when the disk's user stops, what it has given. An empty file says that it was given: then the
space counts as used, or clients would take it, and nothing could be started in it again.

Source: apache/bookkeeper#3150 for the need; docs/storage-format.md 10.2.
"""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

from bookie.disk.disk import Disk
from ledger.runtime.log_lines import get_logger

log = get_logger(__name__)

RESERVE = "compaction.reserve"
FLUSH_RESERVE = "flush.reserve"
START_RESERVE = "start.reserve"
START_RESERVE_BYTES = 1 << 20  # each start after a kill on a full disk takes two or three loans
LOAN_BYTES = 64 << 10  # RocksDB needs some 130 KiB to open
_PIECE_BYTES = 1 << 20
_BLOCK_BYTES = 4096
_FREE_FACTOR = 4  # the reserve grows only if this multiple of its missing size is free


class Reserve:
    """One reserve file. Its methods block; they log an ``OSError`` and do not raise it."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        size_bytes: int,
        *,
        name: str = RESERVE,
        below_bytes: float = math.inf,
    ) -> None:
        """``below_bytes``: a disk with this much free space needs no reserve yet."""
        self._disk = disk
        self._below_bytes = below_bytes
        self.directory = directory
        self._name = name
        self._path = directory / name
        self._size_bytes = size_bytes

    def held_bytes(self) -> int:
        """The bytes that ``release`` would free."""
        try:
            if self._name not in self._disk.list_directory(self.directory):
                return 0
            file = self._disk.open(self._path)
            try:
                return file.size()
            finally:
                file.close()
        except OSError:
            return 0

    def given_bytes(self) -> int:
        """What the file lacks after ``release``, or while it grows: free on the disk, and not for clients."""
        try:
            is_there = self._name in self._disk.list_directory(self.directory)
        except OSError:
            return 0
        return max(0, self._size_bytes - self.held_bytes()) if is_there else 0

    def take_back(self, left_bytes: int = 0) -> None:
        """Fill the file with what is free, however little, if it was released; leave this much for others."""
        try:
            while (given := self.given_bytes()) > 0:
                free_bytes = self._disk.usage(self.directory).free_bytes - left_bytes
                free_bytes = free_bytes // _BLOCK_BYTES * _BLOCK_BYTES
                if free_bytes <= 0:
                    break
                self._grow(self.held_bytes(), min(_PIECE_BYTES, free_bytes, given))
        except OSError as exc:
            log.warning("%s: the reserve for a full disk cannot be filled: %s", self._path, exc)

    def fill(self) -> bool:
        """Grow the file by one piece. False if it is complete or there is not enough free space."""
        held = self.held_bytes()
        if held >= self._size_bytes:
            if held and not self._size_bytes:
                self.release(is_given=False)
            return False
        try:
            free_bytes = self._disk.usage(self.directory).free_bytes
            if not _FREE_FACTOR * (self._size_bytes - held) <= free_bytes < self._below_bytes:
                return False
            self._grow(held, min(_PIECE_BYTES, self._size_bytes - held))
        except OSError as exc:
            log.warning("%s: the reserve for a full disk cannot be created: %s", self._path, exc)
            return False
        return True

    def _grow(self, held: int, size_bytes: int) -> None:
        is_there = self._name in self._disk.list_directory(self.directory)
        file = self._disk.open(self._path, create=not is_there, write=True)
        try:
            file.pwrite(bytes(size_bytes), held)
            file.sync()
        finally:
            file.close()

    def lend(self) -> bool:
        """Give ``LOAN_BYTES`` to a start that found no space; False if too little is left."""
        left_bytes = self.held_bytes() - LOAN_BYTES
        if left_bytes < 0:
            return False
        try:
            file = self._disk.open(self._path, write=True)
            try:
                file.truncate(left_bytes)
            finally:
                file.close()
        except OSError as exc:
            log.warning("%s: the reserve for a start on a full disk cannot be used: %s", self._path, exc)
            return False
        return True

    def release(self, *, is_given: bool = True) -> bool:
        """Give the space; an empty file stays. Or keep no reserve any more. False if that failed."""
        try:
            with contextlib.suppress(FileNotFoundError):
                self._disk.unlink(self._path)
            self._disk.sync_directory(self.directory)
            if is_given:
                with contextlib.suppress(OSError):
                    self._disk.open(self._path, create=True, write=True).close()
        except OSError as exc:
            log.warning("%s: the reserve for a full disk cannot be deleted: %s", self._path, exc)
            return False
        return True
