"""The journals of a bookie as one: which ledger goes to which journal, and batches over several journals.

Inside: submitting and acknowledging batches, the marks, the next file of each journal. Not inside: one
journal's files and thread (``journal``), what records mean (``storage``).
Always: all records of a ledger go to one journal, in order; a batch is acknowledged once, when every part of
it is durable; after the first failure of any journal no batch is acknowledged as durable any more.

Batches that touch different journals are acknowledged in no particular order: each acknowledgement covers
only its own batch. A caller that promises something about a ledger beyond the records of the batch (all its
adds so far are synced) calls ``WriteBatch.await_ledger``, and the ledger's journal takes part in the batch.

Source: BookieImpl.java (getJournal, MathUtils.signSafeMod); docs/storage-format.md 2.10.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

import attrs
import trio

from bookie.disk.disk import Disk
from bookie.errors import StorageFailedError
from bookie.journal.checkpoint import Marks
from bookie.journal.files import JournalConfig, JournalFiles
from bookie.journal.format import NO_MARK, JournalMark, Predecessor
from bookie.journal.group_commit import LENGTH_BYTES, OnDurable, WriteBatch
from bookie.journal.group_writer import GroupWriter
from bookie.journal.journal import Journal, open_journal
from bookie.journal.replay import OnDamage, follows_none, read_journal
from bookie.limits import RECORD_BYTES_MAX
from ledger.runtime.log_lines import get_logger

log = get_logger(__name__)


@attrs.frozen
class NextFile:
    """How a journal continues after its replay."""

    end: JournalMark  # everything before it was replayed
    journal_id: int  # of the next file
    previous: Predecessor


class Journals:
    """All journals: first ``replay``, then ``start``, then ``submit``. On the loop."""

    def __init__(self, disk: Disk, directories: Sequence[Path], config: JournalConfig) -> None:
        self._disk = disk
        self._config = config
        self.files = [JournalFiles(disk, directory, config) for directory in directories]
        self._journals: list[Journal] = []  # after ``start``
        self._error: StorageFailedError | None = None
        self.queued_bytes = 0  # submitted and not committed
        self._on_acknowledged: Callable[[StorageFailedError | None], None] = lambda error: None

    def __len__(self) -> int:
        return len(self.files)

    def scan(self) -> list[list[int]]:
        """The ids of each journal's files, ascending. Blocks."""
        return [files.scan() for files in self.files]

    async def replay(
        self,
        journal_ids: Sequence[Sequence[int]],
        marks: Marks,
        apply: Callable[[Sequence[bytes], Marks], Awaitable[None]],
        *,
        closed: Sequence[bool] | None = None,
        wall_ms: Callable[[], int],
        skip_damaged: OnDamage | None = None,
        accepts_losses: bool = False,
    ) -> list[NextFile]:
        """Call ``apply`` with all records after the marks, journal by journal, and the marks after them.

        Args:
            journal_ids: The result of ``scan``.
            closed: For each journal, whether it was closed in order at its mark. None: none was.
            skip_damaged: See ``read_journal``.
            accepts_losses: A journal without any file was replaced by an empty directory. So was a journal
                whose first file has the id after the mark's and no predecessor: an earlier start created
                that file, and ended before its mark was durable.

        Raises:
            StartError: A journal file is missing or damaged. Nothing was changed.
        """
        nexts: list[NextFile] = []
        closed = closed or [False] * len(self.files)

        async def apply_to(records: Sequence[bytes], end: JournalMark) -> None:
            await apply(records, (*[one.end for one in nexts], end, *marks[len(nexts) + 1 :]))

        for files, ids, mark, is_closed in zip(self.files, journal_ids, marks, closed, strict=True):
            if accepts_losses and not ids and mark != NO_MARK:
                log.error(
                    "%s: empty, and the journal is lost from %s on",
                    files.directory,
                    mark,
                )
                nexts.append(NextFile(mark, mark.journal_id + 1, Predecessor(0, 0)))
                continue
            if (
                accepts_losses
                and ids[:1] == [mark.journal_id + 1]
                and await follows_none(self._disk, files.directory, ids[0])
            ):
                mark = NO_MARK  # the journal now begins with that file
            end = await read_journal(
                self._disk,
                files.directory,
                ids,
                mark,
                apply_to,
                is_closed=is_closed,
                skip_damaged=skip_damaged,
            )
            last_id = max(end.last_id, mark.journal_id)
            next_id = last_id + 1 if last_id else wall_ms() + 1
            previous = Predecessor(end.mark.journal_id, end.mark.offset)
            nexts.append(NextFile(end.mark, next_id, previous))
        return nexts

    async def start(
        self,
        nexts: Sequence[NextFile],
        on_acknowledged: Callable[[StorageFailedError | None], None],
        *,
        is_lazy: bool = False,
    ) -> None:
        """Create the next file of each journal and begin to write. ``OSError`` if a file cannot be created.

        Then it may be called again, to continue ``is_lazy``.

        Args:
            nexts: The result of ``replay``.
            on_acknowledged: Called after each group; with the error once the journals have failed.
            is_lazy: Create a file only for its first record, so that a full disk's reserve stays.
        """
        self._on_acknowledged = on_acknowledged
        for number, (files, one) in enumerate(zip(self.files, nexts, strict=True)):
            if number < len(self._journals):
                continue
            writer = GroupWriter(
                self._disk,
                files,
                self._config,
                next_id=one.journal_id,
                previous=one.previous,
                is_lazy=is_lazy,
            )
            self._journals.append(await open_journal(writer, number, partial(self._acknowledge, number)))

    @property
    def marks(self) -> Marks:
        """Up to where each journal is synced."""
        return tuple([journal.mark for journal in self._journals])

    @property
    def all(self) -> Sequence[Journal]:
        """The journals in their order, for their measurements."""
        return self._journals

    @property
    def can_write(self) -> bool:
        """True if each journal has a file, or one in reserve for its first record."""
        return all(journal.can_write for journal in self._journals)

    @property
    def has_unsynced(self) -> bool:
        return any(journal.has_unsynced for journal in self._journals)

    def number_of(self, ledger_id: int) -> int:
        """The number of the journal that has the ledger's records."""
        return ledger_id % len(self.files)

    def new_batch(self) -> WriteBatch:
        return WriteBatch(len(self.files))

    def submit(self, batch: WriteBatch, on_durable: OnDurable, *, sync: bool) -> tuple[int, int]:
        """Hand a batch to its journals; an empty one to all of them.

        Returns:
            The number of its records, and their bytes.
        """
        if batch.sizes_bytes:  # ``_finish`` makes another for each chunk
            raise AssertionError("a batch is submitted once")
        batch.on_durable, batch.sync = on_durable, sync
        total_count = total_bytes = 0
        touched = []
        for number, records in enumerate(batch.records):
            count = len(records)
            size_bytes = sum(map(len, records))
            if size_bytes > RECORD_BYTES_MAX and max(map(len, records)) > RECORD_BYTES_MAX:
                # ``ClientSession`` refuses longer records. This check keeps a bug from making the journal
                # unreadable.
                raise StorageFailedError("a record is longer than a replay accepts")
            batch.sizes_bytes.append(size_bytes + LENGTH_BYTES * count)
            total_count += count
            total_bytes += size_bytes
            if records or number in batch.awaited_journals:
                touched.append(self._journals[number])
        self.queued_bytes += total_bytes + LENGTH_BYTES * total_count
        touched = touched or self._journals
        batch.parts_left = len(touched)
        for journal in touched:
            journal.submit(batch)
        return total_count, total_bytes

    async def sync(self) -> None:
        """Return when everything submitted so far is synced, or the journals have failed."""
        acknowledged = trio.Event()
        self.submit(self.new_batch(), lambda _: acknowledged.set(), sync=True)
        await acknowledged.wait()

    async def sync_regularly(self, interval_s: float | None) -> None:
        """Sync unsynced records every ``interval_s`` seconds; with None, never."""
        while interval_s is not None:
            await trio.sleep(interval_s)
            if self.has_unsynced:
                await self.sync()

    async def aclose(self) -> None:
        """Commit the queued batches, sync, close the files, end the threads."""
        for journal in self._journals:
            await journal.aclose()

    def _acknowledge(
        self, number: int, group: Sequence[WriteBatch], error: StorageFailedError | None
    ) -> None:
        """The journal of this number has committed its part of these batches, or has failed."""
        if self._error is None:
            self._error = error
        for batch in group:
            self.queued_bytes -= batch.sizes_bytes[number]
            batch.parts_left -= 1
            if not batch.parts_left:
                try:
                    # A journal that continues while another has failed acknowledges nothing either.
                    batch.on_durable(self._error)
                except Exception as exc:
                    # Counts that all connections share may be wrong now, and this call must not raise.
                    error = error or StorageFailedError(f"an acknowledgement failed: {exc!r}")
                    error.__cause__ = error.__cause__ or exc
                    self._error = self._error or error
        self._on_acknowledged(error)
