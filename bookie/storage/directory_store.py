"""One ledger directory on the loop: its write cache, its storage thread, its reads, its deletions.

Inside: all that belongs to one ledger directory. Not inside: journals, checkpoints and marks, which all
directories share; which ledger lives in which directory (``storage``); the storage thread's jobs
(``directory_files``).
Always: sealed caches are flushed in order, each before a deletion that is requested later; an error here is
reported to ``Failure``: it stops the whole bookie.

Source: SingleDirectoryDbLedgerStorage.java; docs/storage-format.md 8.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import attrs
import trio

from bookie.damage.damaged_entries import DamagedEntries
from bookie.damage.directory_entries import DirectoryEntries
from bookie.damage.scrubber import Scrubber
from bookie.digest_checker import DigestTypeOf
from bookie.disk.disk import Disk, DiskThread
from bookie.entrylog.reader import EntryLogReader
from bookie.errors import (
    BookieServerError,
    FormatError,
    IndexFailedError,
    StartError,
    StorageClosedError,
    StorageFailedError,
)
from bookie.gc.log_collector import LogCollector, StoreCalls
from bookie.index.entry_index import DamagedRange, EntryIndex
from bookie.journal.format import JournalMark
from bookie.latency import Latency
from bookie.ledger_record import LedgerRecord, credible_data
from bookie.storage.config import StorageConfig
from bookie.storage.directory_files import DirectoryFiles, open_directory_files
from bookie.storage.entry_reads import EntryReads
from bookie.storage.failure import Failure
from bookie.storage.write_cache import WriteCache
from ledger.runtime.log_lines import get_logger

T = TypeVar("T")
log = get_logger(__name__)


@attrs.frozen
class DirectoryPlace:
    """One ledger directory among those of the storage."""

    number: int
    directory: Path
    index_directory: Path
    thread: DiskThread  # from now on the only thread that writes here; whoever made it closes it


@attrs.frozen
class StorageParts:
    """The parts that the directories of one storage share."""

    disk: Disk
    config: StorageConfig
    failure: Failure
    digest_type_of: DigestTypeOf | None = None  # see ``Scrubber``


async def open_directory_store(
    shared: StorageParts, place: DirectoryPlace, mark: JournalMark
) -> DirectoryStore:
    """Open a ledger directory's index and load the ledgers that live there.

    Args:
        mark: The greatest mark found in this directory.

    Raises:
        StartError: The index is missing or damaged. Nothing stays open.
        OSError: The disk fails or is full. Nothing stays open.
    """
    try:
        open_files = partial(
            open_directory_files, shared.disk, place.directory, place.index_directory, shared.config, mark
        )
        files = await place.thread.call(open_files)
        try:
            # In the thread: the scan may be long, and waits for file descriptors.
            ledgers = await place.thread.call(partial(_load_ledgers, files.index, place.number))
            return DirectoryStore(shared, place, files, ledgers)
        except BaseException:
            await place.thread.call(partial(files.close, has_failed=True))
            raise
    except (FormatError, IndexFailedError) as exc:
        raise StartError(
            f"{place.directory}: {exc}. The index is damaged: let `dlog bookie rebuild-index` rebuild it"
            " from the entry logs; it fences every ledger found"
        ) from exc


class DirectoryStore:
    """See the module. Opened by ``open_directory_store``."""

    def __init__(
        self,
        shared: StorageParts,
        place: DirectoryPlace,
        files: DirectoryFiles,
        ledgers: dict[int, LedgerRecord],
    ) -> None:
        config = shared.config
        self._disk = disk = shared.disk
        self.thread = place.thread
        self.number = place.number
        self.directory = directory = place.directory
        self.files = files
        self.ledgers = ledgers  # the ledgers that live here
        self.deleting: dict[int, int] = {}  # ledgers whose index is still to be deleted -> how many times
        self.dirty: dict[int, LedgerRecord] = {}  # ledgers whose data changed since the last seal
        self.cache = WriteCache()
        self.reader = EntryLogReader(disk, directory)
        self.damaged = DamagedEntries()
        entries = DirectoryEntries(
            disk=disk,
            ledgers=self.ledgers,
            deleting=self.deleting,
            index=files.index,
            reader=self.reader,
            damaged=self.damaged,
        )
        self.reads = EntryReads(entries, self.cache, config.reads)
        self.scrubber = Scrubber(
            entries,
            config.scrub,
            digest_type_of=shared.digest_type_of,
            is_busy=lambda: bool(self.cache.sealed),
        )
        self.collector = LogCollector(
            disk,
            directory,
            files.index,
            files.writer,
            StoreCalls(
                # After a crash a ledger may come back whose index is not deleted yet.
                is_live=lambda ledger_id: ledger_id in self.ledgers or ledger_id in self.deleting,
                in_thread=self.in_thread,
                on_deleted=self.reader.forget,
            ),
            log_bytes_max=config.entry_log_bytes_max,
            config=config.compaction,
        )
        self._failure = shared.failure
        self._is_closed = False
        self.flushes, self.failed_flushes = Latency(), Latency()

    def __repr__(self) -> str:
        return f"<DirectoryStore {self.directory}, {len(self.ledgers)} ledgers>"

    @property
    def is_clean(self) -> bool:
        """True if nothing was staged here since the last seal."""
        return self.cache.is_empty and not self.dirty

    async def aclose(self) -> None:
        """Close the files. Logs an error and does not raise it."""
        self._is_closed = True
        try:
            await self.thread.call(partial(self.files.close, has_failed=self._failure.error is not None))
        except OSError as exc:
            log.error("%s: closing failed: %s", self.directory, exc)
        self.reader.close()

    def seal(self, checkpoint_id: int, on_flushed: Callable[[int, int], None]) -> None:
        """Seal the active cache, empty or not, and have it flushed.

        ``on_flushed(number, checkpoint_id)`` is called when everything up to the checkpoint is durable here.
        """
        for record in self.cache.records():
            self.dirty[record.ledger_id] = record
        ledgers = [(ledger_id, record.stored()) for ledger_id, record in self.dirty.items()]
        self.dirty.clear()
        sealed = self.cache.seal(checkpoint_id, ledgers)
        done = partial(self._flushed, checkpoint_id, trio.current_time(), on_flushed)
        self.thread.submit(
            partial(self.files.flush, sealed), self._failure.guard(done, f"{self.directory}: ending a flush")
        )

    def _flushed(
        self,
        checkpoint_id: int,
        began_s: float,
        on_flushed: Callable[[int, int], None],
        _: None,
        error: BaseException | None,
    ) -> None:
        now_s = trio.current_time()
        (self.flushes if error is None else self.failed_flushes).add(now_s - began_s, now_s)
        if error is not None:
            if not self._failure.hold(error):
                self._failure.report(error, f"{self.directory}: flushing to the entry logs")
            return
        self.cache.remove_flushed(checkpoint_id)
        self.files.index.forget_cached()
        on_flushed(self.number, checkpoint_id)

    def forget_ledgers(self, records: Sequence[LedgerRecord]) -> tuple[int, trio.Event]:
        """Forget ledgers and their entries. One job deletes them, with one sync.

        Returns:
            How many bytes of cache that frees; an event that is set when the deletions are durable, and also
            when they have failed.
        """
        freed_bytes = 0
        ledger_ids = [record.ledger_id for record in records]
        for record in records:
            ledger_id = record.ledger_id
            del self.ledgers[ledger_id]
            freed_bytes += self.cache.drop_ledger(record)
            if self._failure.full is not None:
                freed_bytes += self.cache.drop_sealed(ledger_id)  # never flushed
            self.reads.drop_ledger(ledger_id)
            self.dirty.pop(ledger_id, None)
            self.deleting[ledger_id] = self.deleting.get(ledger_id, 0) + 1
        self.files.index.forget_cached()
        deleted = trio.Event()

        def done(_: None, error: BaseException | None) -> None:
            # In the callback, not after the wait: the next job may flush a ledger created again with this id.
            try:
                if error is not None:
                    self._failure.report(error, f"{self.directory}: deleting a ledger")
                    return
                for ledger_id in ledger_ids:
                    if self.deleting[ledger_id] > 1:
                        self.deleting[ledger_id] -= 1
                    else:
                        del self.deleting[ledger_id]
            finally:
                deleted.set()

        # Behind the flush of every cache sealed so far, so that none of them brings a ledger back.
        self.thread.submit(
            partial(self.files.delete_ledgers, ledger_ids),
            self._failure.guard(done, f"{self.directory}: ending a deletion"),
        )
        return freed_bytes, deleted

    async def damaged_ranges(self, ledger_id: int) -> list[DamagedRange]:
        """See ``EntryIndex.damaged_ranges``."""
        return await self._disk.run(self.files.index.damaged_ranges, ledger_id)

    async def append_copies(self, record: LedgerRecord, entries: Mapping[int, bytes]) -> dict[int, int]:
        """Append copies of a ledger's entries to the entry log; their locations, which no index names yet.

        Durable on return. Empty if the disk is full or the ledger was deleted.
        """
        if not entries or self.ledgers.get(record.ledger_id) is not record:
            return {}
        return await self.in_thread(partial(self.files.append_copies, record.ledger_id, entries))

    async def replace_index_range(
        self, record: LedgerRecord, damaged: DamagedRange, locations: Mapping[int, int]
    ) -> bool:
        """See ``EntryIndex.replace``. False also if the ledger was deleted."""
        if self.ledgers.get(record.ledger_id) is not record:
            return False
        # A deletion requested from now on comes later in the thread.
        return await self.in_thread(partial(self.files.index.replace, damaged, locations))

    async def in_thread(self, job: Callable[[], T]) -> T:
        """Run a job that writes in the storage thread. Its ``OSError`` fails the storage.

        So does an unexpected error: it may have come out of a half-made change of the index or of a log. An
        error that the job raises as ours, such as ``CompactionError``, has changed nothing.

        Raises ``StorageFailedError`` then, and ``StorageClosedError`` once the files are being closed.
        """
        if self._is_closed:  # a job would meet closed files, or a thread that has ended
            await trio.lowlevel.cancel_shielded_checkpoint()
            raise StorageClosedError(self.directory)
        try:
            return await self.thread.call(job)
        except OSError as exc:
            self._failure.report(exc, f"{self.directory}: writing")
            raise StorageFailedError(f"{self.directory}: {exc}") from exc
        except BookieServerError:
            raise
        except Exception as exc:
            raise self._failure.half_made(exc, f"{self.directory}: writing") from exc


def _load_ledgers(index: EntryIndex, directory_number: int) -> dict[int, LedgerRecord]:
    ledgers: dict[int, LedgerRecord] = {}
    for ledger_id, data in index.ledgers():
        record = LedgerRecord(ledger_id, **attrs.asdict(credible_data(data)))
        record.directory = directory_number
        ledgers[ledger_id] = record
    return ledgers
