"""One ledger directory as the storage thread sees it: entry logs, index, ``lastMark``, its lock.

Inside: the order of a checkpoint's writes; opening, closing. Not inside: when to do any of it
(``storage``), which mark is true (``checkpoint``).
Always: entry bytes are synced before the index that names them, the index before the mark that forgets
their journal, the mark before the journal files below it go; after a flush that failed there is no other.

Source: SingleDirectoryDbLedgerStorage.java (checkpoint); reference on bookie storage 3.4, 7.2, 8.5, 8.6.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from bookie.chunk_index import ChunkIndex
from bookie.disk import Disk
from bookie.entry_log import EntryLogWriter
from bookie.errors import FormatError, StorageFailedError
from bookie.index import EntryIndex
from bookie.journal import JournalFiles
from bookie.journal_format import NO_MARK, JournalMark, decode_mark, encode_mark
from bookie.mentions import greatest_log_id
from bookie.rebuild import check_index
from bookie.write_cache import SealedCache

log = logging.getLogger(__name__)

_LAST_MARK = "lastMark"
_LOCK = "LOCK"
_INDEX = "index"


class LedgerDirectory:
    """Its methods block and are the storage thread's, but for ``index``, which the loop reads too."""

    index: EntryIndex  # after ``open``

    def __init__(self, disk: Disk, directory: Path, journal: JournalFiles, *, log_bytes_max: int) -> None:
        self._disk = disk
        self._directory = directory
        self._journal = journal
        self._writer = EntryLogWriter(
            disk,
            directory,
            log_bytes_max=log_bytes_max,
            greatest_indexed=lambda: greatest_log_id(self.index),
        )
        self._unlocks: list[Callable[[], None]] = []
        self._is_open = False
        self._is_broken = False  # a flush has begun and not succeeded

    def open(self, *, rebuild_index: bool) -> tuple[JournalMark, list[int]]:
        """Take the locks, open the index; the stored mark, and the ids of the journal files."""
        for directory in dict.fromkeys((self._journal.directory, self._directory)):
            self._disk.make_directory(directory)
            self._unlocks.append(self._disk.lock(directory / _LOCK))
        mark = self._read_mark()
        self.index = ChunkIndex(self._disk.open_key_values(self._directory / _INDEX))
        self._is_open = True
        check_index(self._disk, self._directory, self.index, mark, rebuild=rebuild_index)
        return mark, self._journal.scan()

    def flush(self, sealed: SealedCache) -> None:
        """Make a sealed cache durable: entries, index, ledger data."""
        if self._is_broken:
            raise StorageFailedError("an earlier flush failed")  # the mark must not pass that one
        self._is_broken = True
        try:
            runs = list(self._writer.append(sealed.entries))
            self._writer.sync()  # data before index
        except BaseException:
            self._writer.abandon()
            raise
        if runs or sealed.ledgers:
            self.index.put(runs, sealed.ledgers)
            self.index.sync()  # index before mark
        self._is_broken = False

    def write_mark(self, mark: JournalMark) -> None:
        """Remember that all below the mark is flushed, and let the journal files below it go."""
        self._disk.replace_file(self._directory / _LAST_MARK, encode_mark(mark))
        self._journal.retire_below(mark.journal_id)  # mark before delete

    def delete_ledger(self, ledger_id: int) -> None:
        """Forget a ledger, durably."""
        self.index.delete_ledger(ledger_id)
        self.index.sync()

    def remove_dead_logs(self, is_live: Callable[[int], bool]) -> list[int]:
        """Delete the complete logs that hold no live ledger; their ids."""
        return self._writer.remove_dead(is_live)

    def close(self, *, has_failed: bool) -> None:
        """Complete the current log, unless something has failed; close the index, give the locks back."""
        try:
            if has_failed or self._is_broken:
                self._writer.abandon()
            else:
                self._writer.close()
        finally:
            if self._is_open:
                self.index.close()
            while self._unlocks:
                self._unlocks.pop()()

    def _read_mark(self) -> JournalMark:
        try:
            return decode_mark(self._disk.read_file(self._directory / _LAST_MARK))
        except FileNotFoundError:
            return NO_MARK
        except FormatError as exc:
            # Apache rewrites it in place: a crash may leave it short. Replaying everything is always right.
            log.warning("%s: %s; the whole journal is replayed", self._directory, exc)
            return NO_MARK
