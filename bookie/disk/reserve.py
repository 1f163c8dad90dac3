"""Reserved disk space for a full disk. Without it, compaction could not free space, the write cache could not
be flushed, and a bookie could not start to serve reads.

Inside: a file of zeros in a ledger directory, created while space is free and deleted when it is needed. Not
inside: when to create or delete it (``log_collector``; ``disk_watch`` and ``directory_files``).
Always: the reserve does not fill the disk: it grows only while several times its missing size is free.

Source: apache/bookkeeper#3150 for the need; docs/storage-format.md 10.2.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

from bookie.disk.disk import Disk

log = logging.getLogger(__name__)

RESERVE = "compaction.reserve"
FLUSH_RESERVE = "flush.reserve"
_PIECE_BYTES = 1 << 20
_FREE_FACTOR = 4  # the reserve grows only if this multiple of its missing size is free


class Reserve:
    """One reserve file. Its methods block; they log an ``OSError`` and do not raise it."""

    def __init__(self, disk: Disk, directory: Path, size_bytes: int, *, name: str = RESERVE) -> None:
        self._disk = disk
        self._directory = directory
        self._name = name
        self._path = directory / name
        self._size_bytes = size_bytes

    def held_bytes(self) -> int:
        """The bytes that ``release`` would free."""
        try:
            if self._name not in self._disk.list_directory(self._directory):
                return 0
            file = self._disk.open(self._path)
            try:
                return file.size()
            finally:
                file.close()
        except OSError:
            return 0

    def fill(self) -> bool:
        """Grow the file by one piece. False if it is complete or there is not enough free space."""
        held = self.held_bytes()
        if held >= self._size_bytes:
            if held and not self._size_bytes:
                self.release()
            return False
        try:
            if self._disk.usage(self._directory).free_bytes < _FREE_FACTOR * (self._size_bytes - held):
                return False
            file = self._disk.open(self._path, create=not held, write=True)
            try:
                file.pwrite(bytes(min(_PIECE_BYTES, self._size_bytes - held)), held)
                file.sync()
            finally:
                file.close()
        except FileExistsError:
            return self.release()  # an empty file, left by a crash
        except OSError as exc:
            log.warning("%s: the reserve for a full disk cannot be created: %s", self._path, exc)
            return False
        return True

    def release(self) -> bool:
        """Delete the file; False if that failed."""
        try:
            with contextlib.suppress(FileNotFoundError):
                self._disk.unlink(self._path)
            self._disk.sync_directory(self._directory)
        except OSError as exc:
            log.warning("%s: the reserve for a full disk cannot be deleted: %s", self._path, exc)
            return False
        return True
