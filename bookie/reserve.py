"""Space kept back for the day the disk is full: without any, compaction could not free any, what was accepted
could not be flushed, and a bookie could not start to serve reads.

Inside: a file of zeros in a ledger directory, made while there is room, given up when there is none. Not
inside: when (``log_collector``; ``disk_watch`` and ``ledger_directory``).
Always: it never is what fills the disk: it is made only while several times its size is free.

Source: apache/bookkeeper#3150 for the need; reference on bookie storage 5.6, 7.5 (15).
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

from bookie.disk import Disk

log = logging.getLogger(__name__)

RESERVE = "compaction.reserve"
FLUSH_RESERVE = "flush.reserve"
_PIECE_BYTES = 1 << 20
_FREE_FACTOR = 4  # so many times its size must be free before it is made


class Reserve:
    """Its methods block. An ``OSError`` of theirs is told, and is nobody's failure."""

    def __init__(self, disk: Disk, directory: Path, size_bytes: int, *, name: str = RESERVE) -> None:
        self._disk = disk
        self._directory = directory
        self._name = name
        self._path = directory / name
        self._size_bytes = size_bytes

    def held_bytes(self) -> int:
        """What ``release`` would give back."""
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
        """Go on making it, a piece at a time; False when it is whole or there is no room for it."""
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
            return self.release()  # an empty one, left by a crash
        except OSError as exc:
            log.warning("%s: the reserve for a full disk cannot be made: %s", self._path, exc)
            return False
        return True

    def release(self) -> bool:
        """Give the space back; False if that failed."""
        try:
            with contextlib.suppress(FileNotFoundError):
                self._disk.unlink(self._path)
            self._disk.sync_directory(self._directory)
        except OSError as exc:
            log.warning("%s: the reserve for a full disk cannot be given back: %s", self._path, exc)
            return False
        return True
