"""One ledger directory as the storage thread sees it: entry logs and index.

Inside: the order of a checkpoint's writes; opening, closing. Not inside: when to do any of it
(``directory_store``), which marks are true (``checkpoint``) and where they stand (``last_mark``).
Always: entry bytes are synced before the index that names them; whoever writes a mark does so after that;
after a flush that failed there is no other, but for one that the disk had no room for and that got some.

Source: SingleDirectoryDbLedgerStorage.java (checkpoint); reference on bookie storage 3.4, 7.2, 8.5, 8.6.
"""

from __future__ import annotations

import errno
import logging
from pathlib import Path

from bookie.disk import Disk
from bookie.entry_log import EntryLogWriter
from bookie.errors import StorageFailedError
from bookie.index import EntryIndex, LedgerRun
from bookie.index_kinds import open_index
from bookie.journal_format import JournalMark
from bookie.mentions import greatest_log_id
from bookie.rebuild import check_index
from bookie.reserve import FLUSH_RESERVE, Reserve
from bookie.storage_config import StorageConfig
from bookie.write_cache import SealedCache

log = logging.getLogger(__name__)

START_FREE_BYTES = 48 << 20  # an index opened, a journal file, what a replay flushes


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
        self._reserve = Reserve(disk, directory, 0, name=FLUSH_RESERVE)
        self._is_open = False
        self._is_broken = False  # a flush has begun and not succeeded

    def open(self, mark: JournalMark, *, rebuild_index: bool) -> None:
        """Open the index. ``mark``: the greatest one that stands in this directory."""
        # On a full disk neither the index nor a journal could be opened, and no read be served
        # (apache/bookkeeper#3150).
        if self._disk.usage(self._directory).free_bytes < START_FREE_BYTES:
            self._give_up_reserve("starting")
        self.index = open_index(self._disk, self._index_directory, self._index_config)
        self._is_open = True
        check_index(self._disk, self._directory, self.index, mark, rebuild=rebuild_index)

    def flush(self, sealed: SealedCache) -> None:
        """Make a sealed cache durable: entries, index, ledger data."""
        if self._is_broken:
            raise StorageFailedError("an earlier flush failed")  # the mark must not pass that one
        self._is_broken = True
        try:
            runs = self._append(sealed)
        except OSError as exc:
            if exc.errno not in (errno.ENOSPC, errno.EDQUOT) or not self._give_up_reserve("flushing"):
                raise
            # Nothing of it is in the index. The log that took a part is closed for good and has no reader;
            # all of it goes into another one.
            runs = self._append(sealed)
        if runs or sealed.ledgers:
            self.index.put(runs, sealed.ledgers)
            self.index.sync()  # index before mark
        self._is_broken = False

    def _append(self, sealed: SealedCache) -> list[LedgerRun]:
        try:
            runs = list(self.writer.append(sealed.entries))
            self.writer.sync()  # data before index
        except BaseException:
            self.writer.abandon()
            raise
        return runs

    def _give_up_reserve(self, doing: str) -> bool:
        """Make room from what was kept back for it; False if there was nothing."""
        held_bytes = self._reserve.held_bytes()
        if held_bytes:
            log.warning(
                "%s: the disk is full; %s goes on in the %d bytes kept back for it. Free some space",
                self._directory,
                doing,
                held_bytes,
            )
            self._reserve.release()
        return held_bytes > 0

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
