"""One ledger directory as the storage thread sees it: entry logs and index.

Inside: the order of a checkpoint's writes; opening, closing. Not inside: when to do any of it
(``directory_store``), which marks are true (``checkpoint``) and where they stand (``last_mark``).
Always: entry bytes are synced before the index that names them; whoever writes a mark does so after that;
after a flush that failed there is no other.

Source: SingleDirectoryDbLedgerStorage.java (checkpoint); reference on bookie storage 3.4, 7.2, 8.5, 8.6.
"""

from __future__ import annotations

from pathlib import Path

from bookie.disk import Disk
from bookie.entry_log import EntryLogWriter
from bookie.errors import StorageFailedError
from bookie.index import EntryIndex
from bookie.index_kinds import open_index
from bookie.journal_format import JournalMark
from bookie.mentions import greatest_log_id
from bookie.rebuild import check_index
from bookie.storage_config import StorageConfig
from bookie.write_cache import SealedCache


class LedgerDirectory:
    """Its methods block and are the storage thread's, but for ``index``, which the loop reads too."""

    index: EntryIndex  # after ``open``

    def __init__(self, disk: Disk, directory: Path, index_directory: Path, config: StorageConfig) -> None:
        self._disk = disk
        self._directory = directory
        self._index_directory = index_directory
        self._index_config = config.index
        self.writer = EntryLogWriter(
            disk,
            directory,
            log_bytes_max=config.entry_log_bytes_max,
            per_ledger=config.per_ledger_logs,
            greatest_indexed=lambda: greatest_log_id(self.index),
        )
        self._is_open = False
        self._is_broken = False  # a flush has begun and not succeeded

    def open(self, mark: JournalMark, *, rebuild_index: bool) -> None:
        """Open the index. ``mark``: the greatest one that stands in this directory."""
        self.index = open_index(self._disk, self._index_directory, self._index_config)
        self._is_open = True
        check_index(self._disk, self._directory, self.index, mark, rebuild=rebuild_index)

    def flush(self, sealed: SealedCache) -> None:
        """Make a sealed cache durable: entries, index, ledger data."""
        if self._is_broken:
            raise StorageFailedError("an earlier flush failed")  # the mark must not pass that one
        self._is_broken = True
        try:
            runs = list(self.writer.append(sealed.entries))
            self.writer.sync()  # data before index
        except BaseException:
            self.writer.abandon()
            raise
        if runs or sealed.ledgers:
            self.index.put(runs, sealed.ledgers)
            self.index.sync()  # index before mark
        self._is_broken = False

    def delete_ledger(self, ledger_id: int) -> None:
        """Forget a ledger, durably."""
        self.index.delete_ledger(ledger_id)
        self.index.sync()

    def close(self, *, has_failed: bool) -> None:
        """Complete the current log, unless something has failed; close the index."""
        try:
            if has_failed or self._is_broken:
                self.writer.abandon()
            else:
                self.writer.close()
        finally:
            if self._is_open:
                self.index.close()
