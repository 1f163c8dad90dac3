"""The files of one ledger directory, which its storage thread writes: entry logs and index.

Inside: the order of a flush's writes; opening and closing. Not inside: when to flush (``directory_store``),
which marks may be written (``journal.checkpoint``) and where (``journal.last_mark``).
Always: entry bytes are synced before the index that names them, and both before a mark passes them. After a
failed flush there is no other flush. One exception: a flush for which the disk had no space is tried again
after space was freed.

Source: SingleDirectoryDbLedgerStorage.java (checkpoint); docs/storage-format.md 8.4, 12.1.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping
from pathlib import Path

from bookie.damage.rebuild import check_index
from bookie.disk.disk import Disk
from bookie.disk.reserve import FLUSH_RESERVE, Reserve
from bookie.entrylog.writer import EntryLogWriter
from bookie.errors import IndexMissingError, StorageFailedError
from bookie.index.apache_refusal import refuse_apache, shows_databases
from bookie.index.entry_index import EntryIndex, EntryRange
from bookie.index.index_factory import IndexKind, open_index
from bookie.index.index_scan import greatest_log_id
from bookie.journal.format import JournalMark
from bookie.storage.config import StorageConfig
from bookie.storage.write_cache import SealedCache
from ledger.runtime.log_lines import get_logger

log = get_logger(__name__)

START_FREE_BYTES = 48 << 20  # for opening the index, a journal file, and the flushes of a replay


def is_space_scarce(disk: Disk, directory: Path) -> bool:
    """True if less is free than a start may need, without what a reserve gives. Blocks."""
    return disk.usage(directory).free_bytes < START_FREE_BYTES


def open_directory_files(
    disk: Disk, directory: Path, index_directory: Path, config: StorageConfig, mark: JournalMark
) -> DirectoryFiles:
    """Open and check the index of a ledger directory. Blocks. Nothing stays open if it raises.

    Args:
        mark: The greatest mark found in this directory.

    Raises:
        FormatError: The index is damaged.
        IndexFailedError: The index's database cannot be opened.
        StartError: The index is missing, or a log that it must be rebuilt from is damaged.
        OSError: The disk fails or is full.
    """
    reserve = Reserve(disk, directory, 0, name=FLUSH_RESERVE)
    # On a full disk neither the index nor a journal could be opened, and no read could be served
    # (apache/bookkeeper#3150).
    if is_space_scarce(disk, directory):
        _release(reserve, directory, "starting")
    index = open_index(disk, index_directory, config.index)
    try:
        if not (index.is_complete or config.rebuild_index) and shows_databases(disk, index_directory):
            raise IndexMissingError(
                f"{index_directory} has the RocksDB databases of Apache's DbLedgerStorage, which this bookie"
                " does not read. `dlog bookie convert-index` makes its index from them, with keys and fences"
            )
        check_index(disk, directory, index, mark, rebuild=config.rebuild_index)
        refuse_apache(disk, index_directory, has_page_files=config.index.kind is IndexKind.PAGES)
    except BaseException:
        index.close()
        raise
    return DirectoryFiles(disk, directory, index, reserve, config)


class DirectoryFiles:
    """Opened by ``open_directory_files``. Its methods block; only the storage thread calls them.

    The loop reads ``index`` as well.
    """

    def __init__(
        self, disk: Disk, directory: Path, index: EntryIndex, reserve: Reserve, config: StorageConfig
    ) -> None:
        self.index = index
        self.writer = EntryLogWriter(
            disk,
            directory,
            log_bytes_max=config.entry_log_bytes_max,
            per_ledger=config.per_ledger_logs,
            greatest_indexed=lambda: greatest_log_id(index),
        )
        self._disk, self._directory = disk, directory
        self._reserve, self._keeps_reserve = reserve, config.reserve_is_for_starts
        self._is_broken = False  # a flush has begun and has not succeeded

    def flush(self, sealed: SealedCache) -> None:
        """Make a sealed cache durable: entries, index, ledger data."""
        if self._is_broken:
            raise StorageFailedError("an earlier flush failed")  # the marks would pass that one
        self._is_broken = True
        self._disk.check_in_place()
        try:
            ranges = self._append(sealed)
        except OSError as exc:
            has_no_space = exc.errno in (errno.ENOSPC, errno.EDQUOT)
            may_use_reserve = has_no_space and not self._keeps_reserve
            if not may_use_reserve or not _release(self._reserve, self._directory, "flushing"):
                raise
            # What the failed attempt wrote is removed: the index names none of it. The whole cache goes into
            # another log.
            ranges = self._append(sealed)
        if ranges or sealed.ledgers:
            self.index.put(ranges, sealed.ledgers)
            self.index.sync()  # before the mark
        self.writer.keep()
        self._is_broken = False

    def _check_space(self, sealed: SealedCache) -> None:
        """Raise ``ENOSPC`` at once: a flush in vain would take all that is free from others for a while."""
        free_bytes = self._disk.usage(self._directory).free_bytes
        if free_bytes < START_FREE_BYTES:
            needed_bytes = sum(sum(map(len, entries.values())) for entries in sealed.entries.values())
            if free_bytes < needed_bytes:
                message = f"no space left to flush {needed_bytes} bytes; {free_bytes} are free"
                raise OSError(errno.ENOSPC, message, str(self._directory))

    def _append(self, sealed: SealedCache) -> list[EntryRange]:
        try:
            self._check_space(sealed)
            ranges = list(self.writer.append(sealed.entries))
            self.writer.sync()  # before the index
        except BaseException:
            self.writer.discard()  # nothing was put into the index
            raise
        return ranges

    def append_copies(self, ledger_id: int, entries: Mapping[int, bytes]) -> dict[int, int]:
        """Append entries that no cache holds; their locations. Durable on return.

        Empty if the disk is full.
        """
        if self._is_broken:
            raise StorageFailedError("an earlier flush failed")
        try:
            ranges = list(self.writer.append({ledger_id: entries}))
            self.writer.sync()
            self.writer.keep()  # the caller puts them into the index
        except OSError as exc:
            self.writer.discard()
            if exc.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            return {}
        return {
            entry_id: location
            for one in ranges
            for entry_id, location in zip(one.entry_ids, one.locations, strict=True)
        }

    def delete_ledgers(self, ledger_ids: Iterable[int]) -> None:
        """Delete the parts of the index that belong to these ledgers, with one sync. Durable on return."""
        for ledger_id in ledger_ids:
            self.index.delete_ledger(ledger_id)
        self.index.sync()

    def close(self, *, has_failed: bool) -> None:
        """Complete the current logs, unless something has failed; close the index."""
        try:
            if has_failed or self._is_broken:
                self.writer.abandon()
            else:
                self.writer.close()
        finally:
            self.index.close()


def _release(reserve: Reserve, directory: Path, doing: str) -> bool:
    """Free the space that is kept in reserve; False if there was none."""
    held_bytes = reserve.held_bytes()
    if held_bytes:
        log.warning(
            "%s: the disk is full; %s goes on in the %d bytes kept back for it. Free some space",
            directory,
            doing,
            held_bytes,
        )
        reserve.release()
    return held_bytes > 0
