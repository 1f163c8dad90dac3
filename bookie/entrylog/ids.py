"""Ids of entry logs: those of the existing logs, and the allocation of new ones.

Inside: the listing, the allocation, the two files that record the last id. Not inside: the logs.
Always: an id is allocated only once, even if the newest logs were deleted and a file is stale or missing. An
index may still reference a deleted log. A new log with the same id would return wrong entries for it.

``lastId`` is Apache's file: id in hex, a line feed. Apache truncates it in place, so it is only a hint. Our
file is ``lastId.checked``: id in hex, a space, CRC32C of that id's text in hex, a line feed. If ours is
missing or damaged, the greatest id that the index references is used; that reads the whole index, once.

Source: EntryLoggerAllocator.java, LedgerDirUtil.java; apache/bookkeeper#4040, #4041.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from crc32c import crc32c

from bookie.disk.disk import Disk
from bookie.entrylog.compaction_files import ids_in_name
from bookie.entrylog.format import entry_log_id_of
from bookie.errors import StorageFailedError

LAST_ID = "lastId"
LAST_ID_CHECKED = "lastId.checked"
_ID_MAX = 2**31 - 1


def entry_log_ids(disk: Disk, directory: Path) -> list[int]:
    """Ids of the existing entry logs, ascending."""
    ids = [entry_log_id_of(name) for name in disk.list_directory(directory)]
    return sorted(log_id for log_id in ids if log_id is not None)


class EntryLogIds:
    """Allocates ids for one directory. Used by the storage thread only."""

    def __init__(self, disk: Disk, directory: Path, greatest_indexed: Callable[[], int]) -> None:
        """``greatest_indexed``: the greatest id the index references, -1 for none; slow, rarely called."""
        self._disk = disk
        self._directory = directory
        self._greatest_indexed = greatest_indexed
        self._next: int | None = None
        self.first: int | None = None  # the first one that this process has allocated

    def allocate(self) -> int:
        """The next id. It is recorded durably before it is returned."""
        if self._next is None:
            self._next = self._greatest_used() + 1
        log_id = self._next
        self.first = log_id if self.first is None else self.first
        if log_id > _ID_MAX:
            raise StorageFailedError(f"{self._directory}: all {_ID_MAX + 1} ids of entry logs are used up")
        self._next += 1
        # Recorded before the log exists: the newest logs may be deleted, and their ids must not be reused.
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
        recorded = self._recorded() if LAST_ID_CHECKED in names else None
        return max(greatest, self._greatest_indexed() if recorded is None else recorded)

    def _recorded(self) -> int | None:
        text, _, check = self._disk.read_file(self._directory / LAST_ID_CHECKED).strip().partition(b" ")
        try:
            return int(text, 16) if int(check, 16) == crc32c(text) else None
        except ValueError:
            return None
