"""Checkpoints as they are done: sealing all caches at once, waiting for all directories, writing the marks.

Inside: the steps of an epoch, and how much memory the write caches of all directories take together: what one
does not use, another may. Not inside: the rule which marks are true (``checkpoint``), one directory's part
(``directory_store``), when to begin an epoch (``storage``).
Always: marks are written in the order of the epochs, each after everything below it is durable in every
directory, and before the journal files below it go.

Source: SyncThread.java, CheckpointSourceList.java; reference on bookie storage 4, 8.6.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import trio

from bookie.checkpoint import Checkpoints, Marks
from bookie.directory_store import DirectoryStore
from bookie.errors import StorageFailedError
from bookie.journal_files import JournalFiles
from bookie.journal_format import NO_MARK
from bookie.last_mark import LastMarks


class Epochs:
    """On the loop, but for the writing of marks: that is a job of the first directory's storage thread."""

    def __init__(
        self,
        stores: Sequence[DirectoryStore],
        journals: Sequence[JournalFiles],
        last_marks: LastMarks,
        *,
        on_failed: Callable[[BaseException, str], None],
        on_room: Callable[[], None],
    ) -> None:
        """``on_room``: called when sealed caches have gone."""
        self.active_bytes = 0
        self.sealed_bytes = 0
        self._stores = stores
        self._journals = journals
        self._last_marks = last_marks
        self._on_failed = on_failed
        self._on_room = on_room
        self._checkpoints = Checkpoints(len(stores), [NO_MARK] * len(journals))
        self._sizes: deque[tuple[int, int]] = deque()  # epochs not flushed everywhere, their bytes
        self._marked = 0  # the last epoch that is flushed, and its marks written
        self._progress = trio.Event()
        self._failure: BaseException | None = None

    def start_from(self, marks: Marks) -> None:
        """Before the first epoch: what the directories tell of the past."""
        assert self._checkpoints.epoch == 0
        self._checkpoints = Checkpoints(len(self._stores), marks)

    @property
    def epoch(self) -> int:
        """The last one begun."""
        return self._checkpoints.epoch

    @property
    def marks(self) -> Marks:
        """Up to where each journal may be forgotten."""
        return self._checkpoints.marks

    def seal(self, marks: Marks) -> None:
        """Begin an epoch: all in this one step of the loop, or a mark would pass what it must not.

        ``marks``: up to where each journal is synced now.
        """
        epoch = self._checkpoints.begin(marks)
        self._sizes.append((epoch, self.active_bytes))
        self.sealed_bytes += self.active_bytes
        self.active_bytes = 0
        for store in self._stores:
            store.seal(epoch)

    def flushed_in(self, directory: int, epoch: int) -> None:
        """A directory has made everything up to this epoch durable."""
        flushed_before = self._checkpoints.flushed
        marks = self._checkpoints.completed(directory, epoch)
        flushed = self._checkpoints.flushed
        if marks is None and flushed_before == 0 and any(mark != NO_MARK for mark in self.marks):
            # Those that a start has found may not be durable yet; then what lies below them may go.
            marks = self.marks
        if flushed == flushed_before:
            return  # another directory is slower
        while self._sizes and self._sizes[0][0] <= flushed:
            self.sealed_bytes -= self._sizes.popleft()[1]
        # Always in the same thread, so that marks are written in order; also when none has moved, so that
        # nobody takes an epoch for marked before the marks of the one before are on disk.
        self._stores[0].thread.submit(partial(self._write_marks, marks), partial(self._written, flushed))
        self._on_room()

    async def wait_marked(self, epoch: int | None = None) -> None:
        """Return when an epoch, the last one begun by default, is durable and its marks written.

        Raises ``StorageFailedError`` once that cannot happen any more.
        """
        wanted = self._checkpoints.epoch if epoch is None else epoch
        while self._marked < wanted and self._failure is None:
            await self._progress.wait()
        if self._failure is not None:
            raise StorageFailedError(f"the storage has failed: {self._failure}") from self._failure

    def fail(self, failure: BaseException) -> None:
        """Nothing will be durable any more: tell those who wait."""
        self._failure = failure
        self._progress.set()

    def _write_marks(self, marks: Marks | None) -> None:
        if marks is not None:
            self._last_marks.write(marks)
            for files, mark in zip(self._journals, marks, strict=True):
                files.retire_below(mark.journal_id)  # marks before delete

    def _written(self, epoch: int, _: None, error: BaseException | None) -> None:
        if error is not None:
            self._on_failed(error, "writing lastMark")
            return
        self._marked = max(self._marked, epoch)
        self._progress.set()
        self._progress = trio.Event()
