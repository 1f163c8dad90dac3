"""Ids of entry logs: which are there, and the next one, which nobody has ever used.

Inside: the listing, the allocation, the two notes that keep it. Not inside: the logs.
Always: an id is given out once, ever, even if the newest logs were deleted and a note is stale or missing. An
index may still mention a deleted log; another log under its id would answer for entries it never had.

``lastId`` is Apache's note, hex and a line feed; it truncates the file in place, so that it is a hint.
Ours is ``lastId.checked``: id in hex, a space, CRC32C of that id's text in hex, a line feed. Where ours is
missing or damaged the index is asked for the greatest id it mentions: all of it is read, once.

Source: EntryLoggerAllocator.java, LedgerDirUtil.java; apache/bookkeeper#4040, #4041.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from crc32c import crc32c

from bookie.compaction_files import ids_in_name
from bookie.disk import Disk
from bookie.entry_log_format import entry_log_id_of
from bookie.errors import StorageFailedError

LAST_ID = "lastId"
LAST_ID_CHECKED = "lastId.checked"
_ID_MAX = 2**31 - 1


def entry_log_ids(disk: Disk, directory: Path) -> list[int]:
    """Ids of the entry logs present, ascending."""
    ids = [entry_log_id_of(name) for name in disk.list_directory(directory)]
    return sorted(log_id for log_id in ids if log_id is not None)


class EntryLogIds:
    """Gives out ids for one directory. The storage thread's."""

    def __init__(self, disk: Disk, directory: Path, greatest_indexed: Callable[[], int]) -> None:
        """``greatest_indexed``: the greatest id the index mentions, -1 for none; slow, seldom called."""
        self._disk = disk
        self._directory = directory
        self._greatest_indexed = greatest_indexed
        self._next: int | None = None

    def take(self) -> int:
        """The next id, noted durably before it is returned."""
        if self._next is None:
            self._next = self._greatest_used() + 1
        log_id = self._next
        if log_id > _ID_MAX:
            raise StorageFailedError(f"{self._directory}: all {_ID_MAX + 1} ids of entry logs are used up")
        self._next += 1
        # Noted before the log exists: the newest logs may be deleted, and their ids must not come back.
        text = b"%x" % log_id
        self._disk.replace_file(self._directory / LAST_ID_CHECKED, b"%s %08x\n" % (text, crc32c(text)))
        self._disk.replace_file(self._directory / LAST_ID, text + b"\n")
        return log_id

    def _greatest_used(self) -> int:
        names = self._disk.list_directory(self._directory)
        greatest = max((log_id for name in names for log_id in ids_in_name(name)), default=-1)
        if LAST_ID in names:
            with contextlib.suppress(ValueError):
                hint = int(self._disk.read_file(self._directory / LAST_ID), 16)
                greatest = max(greatest, hint if 0 <= hint <= _ID_MAX else -1)
        noted = self._noted() if LAST_ID_CHECKED in names else None
        return max(greatest, self._greatest_indexed() if noted is None else noted)

    def _noted(self) -> int | None:
        text, _, check = self._disk.read_file(self._directory / LAST_ID_CHECKED).strip().partition(b" ")
        try:
            return int(text, 16) if int(check, 16) == crc32c(text) else None
        except ValueError:
            return None
