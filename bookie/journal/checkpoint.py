"""Which marks a checkpoint may write: up to where the journals are no longer needed.

A checkpoint begins in one step on the loop: the synced marks of all journals are copied, and the active write
caches of all ledger directories are sealed. An add enters its cache before it enters its journal, so every
record below the copied marks lies in a cache of this checkpoint or of an earlier one. When every directory
has flushed all of these caches, the marks may be written.

Inside: that rule, for any number of journals and ledger directories. Not inside: caches, files, threads.
Always: no journal's mark decreases, and none passes what the slowest directory has flushed. Each journal's
mark is compared with its own predecessor. Comparing them as a list would let one journal hold back another,
or take its place.

Source: CheckpointSourceList.java and SyncThread.java for the purpose; docs/storage-format.md 8.3;
bugs that this rule prevents: apache/bookkeeper #3329, #4105, #4740, #4843, #4844.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from bookie.journal.format import NO_MARK, JournalMark

Marks = tuple[JournalMark, ...]
"""One mark for each journal, in the order of the journal directories."""


class CheckpointMarks:
    """Numbers the checkpoints, and computes the marks that may be written."""

    def __init__(self, directory_count: int, marks: Sequence[JournalMark] = (NO_MARK,)) -> None:
        """``marks``: the marks that an earlier run has written."""
        assert directory_count > 0  # ``StorageConfig`` has at least one
        assert len(marks) > 0  # likewise
        self.marks: Marks = tuple(marks)  # the greatest that may be written
        self.begun_id = 0  # the last checkpoint that has begun
        self.flushed_id = 0  # the last checkpoint that every directory has flushed
        self._begun: deque[tuple[int, Marks]] = deque()  # checkpoints not flushed everywhere, ascending
        self._flushed_by = [0] * directory_count

    def begin(self, journal_marks: Sequence[JournalMark]) -> int:
        """Begin a checkpoint at the journals' synced marks and return its id.

        The caller seals all caches in the same step.
        """
        assert len(journal_marks) == len(self.marks)  # both have one for each configured journal
        self.begun_id += 1
        self._begun.append((self.begun_id, tuple(journal_marks)))
        return self.begun_id

    def flushed(self, directory: int, checkpoint_id: int) -> Marks | None:
        """A directory has flushed everything up to this checkpoint. Return the marks if one has moved."""
        # a storage thread flushes in the order of ``begin``
        if not self._flushed_by[directory] < checkpoint_id <= self.begun_id:
            raise AssertionError(f"checkpoint {checkpoint_id} after {self._flushed_by[directory]}")
        self._flushed_by[directory] = checkpoint_id
        self.flushed_id = min(self._flushed_by)
        before = self.marks
        while self._begun and self._begun[0][0] <= self.flushed_id:
            self.marks = tuple(map(max, self.marks, self._begun.popleft()[1]))
        return self.marks if self.marks != before else None
