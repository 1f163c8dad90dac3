"""Checkpoints: seal all write caches in one step, wait for all directories, write the marks.

Inside: the steps of a checkpoint; the memory of the write caches of all directories together, which they
share. Not inside: the rule which marks may be written (``journal.checkpoint``), one directory's part
(``directory_store``), when to begin a checkpoint (``storage``).
Always: marks are written in the order of the checkpoints, after everything below them is durable in every
directory, and before the journal files below them are removed.

Source: SyncThread.java, CheckpointSourceList.java; docs/storage-format.md 8.3.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import trio

from bookie.journal.checkpoint import CheckpointMarks, Marks
from bookie.journal.files import JournalFiles
from bookie.journal.format import NO_MARK
from bookie.journal.last_mark import LastMarks
from bookie.storage.directory_store import DirectoryStore
from bookie.storage.failure import Failure


class Checkpointer:
    """On the loop, except for writing marks: that is a job of the first directory's storage thread."""

    def __init__(
        self,
        stores: Sequence[DirectoryStore],
        journals: Sequence[JournalFiles],
        last_marks: LastMarks,
        marks: Marks,
        failure: Failure,
        *,
        on_flushed: Callable[[], None],
    ) -> None:
        """``marks``: the marks found on disk. ``on_flushed`` is called when sealed caches are freed."""
        self.gives_back = False  # space of journals below the marks, on a full disk; until that fails
        self.active_bytes = 0
        self.sealed_bytes = 0
        self._stores = stores
        self._journals = journals
        self._last_marks = last_marks
        self._failure = failure
        self._on_flushed = on_flushed
        self._checkpoints = CheckpointMarks(len(stores), marks)
        self._sizes: deque[tuple[int, int]] = deque()  # checkpoints not flushed everywhere, their bytes
        self._marked_id = 0  # the last checkpoint whose marks are written
        self._progress = trio.Event()
        failure.call_back(self._wake)

    @property
    def begun_id(self) -> int:
        """The last checkpoint that has begun."""
        return self._checkpoints.begun_id

    @property
    def marks(self) -> Marks:
        """Up to where each journal is no longer needed."""
        return self._checkpoints.marks

    def is_marked(self, marks: Marks) -> bool:
        """True if the last checkpoint was of these marks, and they are written."""
        return self._marked_id == self._checkpoints.begun_id and self.marks == marks

    def dropped(self, size_bytes: int) -> None:
        """So much of the caches was given up, because its ledgers were deleted."""
        of_active = min(size_bytes, self.active_bytes)
        self.active_bytes -= of_active
        if self._failure.full is not None:  # else the sealed caches are flushed as they are
            self.sealed_bytes = max(0, self.sealed_bytes - (size_bytes - of_active))

    def begin(self, marks: Marks) -> None:
        """Begin a checkpoint, all in one step of the loop: otherwise a mark could pass an unsealed record.

        ``marks``: up to where each journal is synced now.
        """
        checkpoint_id = self._checkpoints.begin(marks)
        self._sizes.append((checkpoint_id, self.active_bytes))
        self.sealed_bytes += self.active_bytes
        self.active_bytes = 0
        for store in self._stores:
            store.seal(checkpoint_id, self.flushed)

    def flushed(self, directory: int, checkpoint_id: int) -> None:
        """A directory has flushed everything up to this checkpoint."""
        flushed_before = self._checkpoints.flushed_id
        marks = self._checkpoints.flushed(directory, checkpoint_id)
        flushed_id = self._checkpoints.flushed_id
        if marks is None and flushed_before == 0 and any(mark != NO_MARK for mark in self.marks):
            # The marks that this start has found may not be durable yet. Journal files are removed only after
            # they are written again.
            marks = self.marks
        if flushed_id == flushed_before:
            return  # another directory is slower
        while self._sizes and self._sizes[0][0] <= flushed_id:
            self.sealed_bytes -= self._sizes.popleft()[1]
        # Always in the same thread, so that marks are written in order. Also if no mark has moved: a
        # checkpoint must not count as marked before the marks of the one before it are on disk.
        marked = self._failure.guard(partial(self._marked, flushed_id), "noting a checkpoint")
        self._stores[0].thread.submit(partial(self._write_marks, marks), marked)
        self._on_flushed()

    async def wait_marked(self, checkpoint_id: int | None = None) -> None:
        """Return when a checkpoint, by default the last that has begun, is durable and its marks are written.

        Or when a start found no space for it: see ``Failure.full``. Raises ``StorageFailedError`` if the
        storage has failed.
        """
        wanted_id = self._checkpoints.begun_id if checkpoint_id is None else checkpoint_id
        failure = self._failure
        while self._marked_id < wanted_id and failure.error is None and failure.full is None:
            await self._progress.wait()
        self._failure.check()

    async def wait_next(self) -> None:
        """Return when another checkpoint is marked. Never, if the storage fails."""
        marked_id = self._marked_id
        while self._marked_id == marked_id:
            await self._progress.wait()

    def _write_marks(self, marks: Marks | None) -> None:
        if marks is not None:
            self._last_marks.write(marks)
            for files, mark in zip(self._journals, marks, strict=True):
                files.retire_below(mark.journal_id)  # after the marks are durable
                if self.gives_back:
                    self.gives_back = files.give_back(mark)

    def _marked(self, checkpoint_id: int, _: None, error: BaseException | None) -> None:
        if error is not None:
            if not self._failure.hold(error):
                self._failure.report(error, "writing lastMark")
            return
        self._marked_id = max(self._marked_id, checkpoint_id)
        self._wake()

    def _wake(self) -> None:
        self._progress.set()
        self._progress = trio.Event()
