"""One ledger directory on the loop: its write cache, its storage thread, its reads, its deletions.

Inside: what belongs to one ledger directory and to no other. Not inside: journals, epochs and marks, which
all directories share, which ledger lives where (``storage``), what the thread does (``ledger_directory``).
Always: sealed caches are flushed in order, each before a deletion that was asked for later; what fails here
is told to ``on_failed``, and is the failure of the whole bookie.

Source: SingleDirectoryDbLedgerStorage.java; reference on bookie storage 3.4, 8.3, 8.6.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import attrs
import trio

from bookie.damaged_entries import DamagedEntries
from bookie.disk import Disk, DiskThread
from bookie.entry_log_reader import EntryLogReader
from bookie.entry_reads import EntryReads
from bookie.errors import FormatError, IndexFailedError, StartError, StorageFailedError
from bookie.journal_format import JournalMark
from bookie.ledger_directory import LedgerDirectory
from bookie.ledgers import LedgerRecord
from bookie.log_collector import LogCollector
from bookie.scrubber import Scrubber
from bookie.storage_config import StorageConfig
from bookie.write_cache import WriteCache

T = TypeVar("T")
log = logging.getLogger(__name__)


class DirectoryStore:
    """See the module. Made by ``Storage``."""

    thread: DiskThread  # after ``start_thread``: the only one that writes in this directory
    reads: EntryReads  # after ``open``
    collector: LogCollector  # after ``open``
    scrubber: Scrubber  # likewise

    def __init__(
        self,
        disk: Disk,
        number: int,
        directory: Path,
        index_directory: Path,
        config: StorageConfig,
        *,
        on_flushed: Callable[[int, int], None],
        on_failed: Callable[[BaseException, str], None],
    ) -> None:
        """``on_flushed(number, epoch)``: this directory has made everything up to the epoch durable."""
        self.number = number
        self.directory = directory
        self.ledgers: dict[int, LedgerRecord] = {}  # those that live here
        self.deleting: dict[int, int] = {}  # ledgers whose index is still to be deleted, how often
        self.dirty: dict[int, LedgerRecord] = {}  # ledger data changed since the last seal
        self.cache = WriteCache()
        self.files = LedgerDirectory(disk, directory, index_directory, config)
        self.reader = EntryLogReader(disk, directory)
        self._disk = disk
        self._config = config
        self._on_flushed = on_flushed
        self._on_failed = on_failed

    def __repr__(self) -> str:
        return f"<DirectoryStore {self.directory}, {len(self.ledgers)} ledgers>"

    @property
    def is_clean(self) -> bool:
        """Nothing was staged here since the last seal."""
        return self.cache.is_empty and not self.dirty

    # --- start and stop ---

    def start_thread(self) -> None:
        self.thread = self._disk.start_thread(f"bookie-storage-{self.number}")

    async def open(self, mark: JournalMark) -> None:
        """Open the index and learn of the ledgers that live here. ``mark``: the one that stands here."""
        try:
            await self.thread.call(partial(self.files.open, mark, rebuild_index=self._config.rebuild_index))
            index = self.files.index
            damaged = DamagedEntries()
            self.reads = EntryReads(
                self._disk,
                self.ledgers,
                self.deleting,
                self.cache,
                index,
                self.reader,
                self._config.reads,
                damaged,
            )
            self.scrubber = Scrubber(
                self._disk,
                self.ledgers,
                self.deleting,
                index,
                self.reader,
                damaged,
                self._config.scrub,
                is_busy=lambda: bool(self.cache.sealed),
            )
            self.collector = LogCollector(
                self._disk,
                self.directory,
                index,
                self.files.writer,
                # From any thread. A ledger whose index is not deleted yet may be found there after a crash.
                is_live=lambda ledger_id: ledger_id in self.ledgers or ledger_id in self.deleting,
                in_thread=self.in_thread,
                on_deleted=self.reader.forget,
                log_bytes_max=self._config.entry_log_bytes_max,
                config=self._config.compaction,
            )
            for ledger_id, data in index.ledgers():
                record = LedgerRecord(ledger_id, **attrs.asdict(data))
                record.directory = self.number
                self.ledgers[ledger_id] = record
        except (FormatError, IndexFailedError) as exc:
            raise StartError(
                f"{self.directory}: {exc}. The index is damaged: let `dlog bookie rebuild-index` derive it"
                " from the entry logs; it fences every ledger found"
            ) from exc

    async def aclose(self, *, has_failed: bool) -> None:
        """Close the files, end the thread."""
        if hasattr(self, "thread"):
            try:
                await self.thread.call(partial(self.files.close, has_failed=has_failed))
            except OSError as exc:
                log.error("%s: closing failed: %s", self.directory, exc)
            await self.thread.aclose()
        self.reader.close()

    # --- what is written ---

    def seal(self, epoch: int) -> None:
        """Close the active cache and have it flushed; ``on_flushed`` follows, also if it was empty."""
        for record in self.cache.records():
            self.dirty[record.ledger_id] = record
        ledgers = [(ledger_id, record.stored()) for ledger_id, record in self.dirty.items()]
        self.dirty.clear()
        sealed = self.cache.seal(epoch, ledgers)
        self.thread.submit(partial(self.files.flush, sealed), partial(self._flushed, epoch))

    def _flushed(self, epoch: int, _: None, error: BaseException | None) -> None:
        if error is not None:
            self._on_failed(error, f"{self.directory}: flushing to the entry logs")
            return
        self.cache.remove_flushed(epoch)
        self.files.index.forget_cached()
        self._on_flushed(self.number, epoch)

    def forget_ledger(self, record: LedgerRecord) -> tuple[int, trio.Event]:
        """Forget a ledger and its entries; how many bytes of cache that frees, and when it is durable.

        The event is set after a failure as well.
        """
        ledger_id = record.ledger_id
        del self.ledgers[ledger_id]
        freed_bytes = self.cache.drop_ledger(record)
        self.reads.drop_ledger(ledger_id)
        self.dirty.pop(ledger_id, None)
        self.files.index.forget_cached()
        self.deleting[ledger_id] = self.deleting.get(ledger_id, 0) + 1
        deleted = trio.Event()

        def done(_: None, error: BaseException | None) -> None:
            # In the callback, not after the wait: the flush of a ledger made anew may be next in line.
            if error is not None:
                self._on_failed(error, f"{self.directory}: deleting a ledger")
            elif self.deleting[ledger_id] > 1:
                self.deleting[ledger_id] -= 1
            else:
                del self.deleting[ledger_id]
            deleted.set()

        # Behind the flush of every cache sealed so far, so that none of them brings it back.
        self.thread.submit(partial(self.files.delete_ledger, ledger_id), done)
        return freed_bytes, deleted

    async def in_thread(self, job: Callable[[], T]) -> T:
        """A job that writes, in the storage thread. Its ``OSError`` is the bookie's failure."""
        try:
            return await self.thread.call(job)
        except OSError as exc:
            self._on_failed(exc, f"{self.directory}: writing")
            raise StorageFailedError(f"{self.directory}: {exc}") from exc
