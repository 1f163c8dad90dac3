"""The journals of a bookie as one: which ledger goes to which, and runs that touch several.

Inside: the staged runs, submitting them, the marks, which file is each one's next. Not inside: one journal's
files and thread (``journal``), what records mean (``storage``).
Always: all records of a ledger go to one journal, in order; a run is answered once, when every part of it
is durable; after the first failure of any journal no run is answered as durable any more.

With one journal a run is its one part, and nothing is added to its way.

Runs that touch different journals are answered in no particular order: each answer says only what it
covers. Whoever promises something about a ledger beyond the staged records (all its adds so far are
synced) says so with ``await_ledger``, and the ledger's journal takes part in the run.

Source: BookieImpl.java (getJournal, MathUtils.signSafeMod); reference on bookie storage 2.4, 2.5.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import trio

from bookie.checkpoint import Marks
from bookie.disk import Disk
from bookie.errors import StorageFailedError
from bookie.group_commit import OnDurable
from bookie.journal import Journal
from bookie.journal_files import JournalConfig, JournalFiles
from bookie.journal_format import NO_MARK, RECORD_BYTES_MAX, Predecessor
from bookie.replay import follows_none, read_journal

log = logging.getLogger(__name__)

_LENGTH_BYTES = 4  # before each record


class Journals:
    """On the loop, but for what ``files`` and the journals do in their threads."""

    def __init__(
        self,
        disk: Disk,
        directories: Sequence[Path],
        config: JournalConfig,
        *,
        on_answered: Callable[[StorageFailedError | None], None],
    ) -> None:
        self._disk = disk
        self._config = config
        self._on_answered = on_answered
        self.files = [JournalFiles(disk, directory, config) for directory in directories]
        self._staged: list[list[bytes]] = [[] for _ in directories]  # of each, what is not submitted
        self._awaited: set[int] = set()  # journals without staged records that the next run waits for
        self._next: list[tuple[int, Predecessor]] = []  # the id of each one's next file, what it follows
        self._journals: list[Journal] = []
        self._error: StorageFailedError | None = None

    def __len__(self) -> int:
        return len(self.files)

    async def replay(
        self,
        journal_ids: Sequence[Sequence[int]],
        marks: Marks,
        apply: Callable[[Sequence[bytes]], Awaitable[None]],
        *,
        wall_ms: Callable[[], int],
        skip_damaged: bool = False,
        accepts_losses: bool = False,
    ) -> Marks:
        """Hand over all records behind the marks, one journal after the other; where each journal ends.

        ``accepts_losses``: a journal that has no file at all was replaced by an empty directory. So was one
        whose first file comes next to the lost one and follows none: an earlier start made it here, and ended
        before its mark was durable.

        Raises ``StartError``; nothing has been changed then.
        """
        self._next = []
        ends = []
        for files, ids, mark in zip(self.files, journal_ids, marks, strict=True):
            if accepts_losses and not ids and mark != NO_MARK:
                log.error(
                    "%s: empty, and the journal is lost from %s on",
                    files.directory,
                    mark,
                )
                ends.append(mark)
                self._next.append((mark.journal_id + 1, Predecessor(0, 0)))
                continue
            if (
                accepts_losses
                and ids[:1] == [mark.journal_id + 1]
                and await follows_none(self._disk, files.directory, ids[0])
            ):
                mark = NO_MARK  # the journal begins with that file
            end = await read_journal(self._disk, files.directory, ids, mark, apply, skip_damaged=skip_damaged)
            last_id = max(end.last_id, mark.journal_id)
            before = Predecessor(end.mark.journal_id, end.mark.offset)
            self._next.append((last_id + 1 if last_id else wall_ms() + 1, before))
            ends.append(end.mark)
        return tuple(ends)

    async def start(self) -> None:
        """Make the next file of each, after ``replay``. ``OSError`` if that fails."""
        for files, (next_id, before) in zip(self.files, self._next, strict=True):
            journal = Journal(
                self._disk,
                files,
                self._config,
                next_id=next_id,
                previous=before,
                on_answered=self._answered,
            )
            self._journals.append(journal)
            await journal.start()

    @property
    def marks(self) -> Marks:
        """Of each journal, up to where it is synced."""
        return tuple([journal.mark for journal in self._journals])

    @property
    def queued_bytes(self) -> int:
        """Submitted and not answered."""
        if len(self._journals) == 1:  # asked for each chunk that arrives
            return self._journals[0].queued_bytes
        return sum([journal.queued_bytes for journal in self._journals])

    @property
    def has_unsynced(self) -> bool:
        return any(journal.has_unsynced for journal in self._journals)

    def staged_for(self, ledger_id: int) -> list[bytes]:
        """Where the ledger's records are gathered until the next submission: always the same list."""
        return self._staged[ledger_id % len(self._staged)]

    def await_ledger(self, ledger_id: int) -> None:
        """Let the next run be answered only when all that was submitted for this ledger is durable too."""
        self._awaited.add(ledger_id % len(self._staged))

    def drop_staged(self) -> None:
        """Forget what is staged."""
        for staged in self._staged:
            staged.clear()
        self._awaited.clear()

    def submit(self, on_durable: OnDurable, *, sync: bool) -> tuple[int, int]:
        """Hand over what is staged; how many records that is, and how many bytes."""
        if len(self._staged) == 1:
            staged = self._staged[0]
            records = staged.copy()
            staged.clear()
            count = len(records)
            size_bytes = sum(map(len, records))
            _check_lengths(records, size_bytes)
            self._journals[0].submit(records, size_bytes + _LENGTH_BYTES * count, on_durable, sync=sync)
            return count, size_bytes
        touched = [number for number, staged in enumerate(self._staged) if staged or number in self._awaited]
        return self._submit(touched or range(len(self._staged)), on_durable, sync=sync)

    def _submit(self, touched: Sequence[int], on_durable: OnDurable, *, sync: bool) -> tuple[int, int]:
        self._awaited.clear()
        parts = _Parts(len(touched), on_durable, self)
        total_count = total_bytes = 0
        for number in touched:
            staged = self._staged[number]
            records = staged.copy()
            staged.clear()
            count = len(records)
            size_bytes = sum(map(len, records))
            _check_lengths(records, size_bytes)
            total_count += count
            total_bytes += size_bytes
            self._journals[number].submit(
                records, size_bytes + _LENGTH_BYTES * count, parts.part_answered, sync=sync
            )
        return total_count, total_bytes

    async def sync(self) -> None:
        """Return when everything submitted so far is synced, or can never be."""
        answered = trio.Event()
        parts = _Parts(len(self._journals), lambda _: answered.set(), self)
        for journal in self._journals:
            journal.submit([], 0, parts.part_answered, sync=True)
        await answered.wait()

    async def sync_regularly(self, interval_s: float | None) -> None:
        """Sync what was written unsynced, every so often; with None, never."""
        while interval_s is not None:
            await trio.sleep(interval_s)
            if self.has_unsynced:
                await self.sync()

    async def aclose(self) -> None:
        """Answer what is queued, sync, close the files, end the threads."""
        for journal in self._journals:
            await journal.aclose()

    @property
    def error(self) -> StorageFailedError | None:
        """The first failure of any journal."""
        return self._error

    def _answered(self, error: StorageFailedError | None) -> None:
        if error is not None and self._error is None:
            self._error = error
        self._on_answered(error)


def _check_lengths(records: list[bytes], size_bytes: int) -> None:
    if size_bytes > RECORD_BYTES_MAX:
        # Whoever takes entries in refuses longer ones. The last place to stop what no replay would read.
        assert max(map(len, records)) <= RECORD_BYTES_MAX, "a record that could not be read back"


class _Parts:
    """One run over several journals: answered when its last part is."""

    __slots__ = ("_error", "_journals", "_left", "_on_durable")

    def __init__(self, count: int, on_durable: OnDurable, journals: Journals) -> None:
        self._left = count
        self._on_durable = on_durable
        self._journals = journals
        self._error: BaseException | None = None

    def part_answered(self, error: BaseException | None) -> None:
        if error is not None:
            self._error = self._error or error
        self._left -= 1
        if not self._left:
            # A journal that goes on while another has failed acknowledges nothing either.
            self._on_durable(self._error or self._journals.error)
