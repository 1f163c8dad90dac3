"""How far the journals may be forgotten.

A checkpoint is an epoch: on the loop, in one step, the synced marks of all journals are copied and the
active write caches of all ledger directories are sealed. An add enters its cache before it enters its
journal, so that everything below the copied marks lies in caches of this epoch or earlier ones. Once all
directories have made all of them durable, and only then, the marks may be written down.

Inside: that rule, for any number of journals and ledger directories. Not inside: caches, files, threads.
Always: no journal's mark decreases, and none passes what the slowest directory has made durable. Marks of
different journals are compared each with its own predecessor, never as a list: one that stands still must
not hold back, or be taken for, another.

Source: CheckpointSourceList.java and SyncThread.java for the purpose; reference on bookie storage 8.6;
bugs it keeps out: apache/bookkeeper #3329, #4105, #4740, #4843, #4844.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from bookie.journal_format import NO_MARK, JournalMark

Marks = tuple[JournalMark, ...]
"""One mark for each journal, in the order of the journal directories."""


class Checkpoints:
    """Counts epochs; tells which marks have become true."""

    def __init__(self, directory_count: int, marks: Sequence[JournalMark] = (NO_MARK,)) -> None:
        assert directory_count > 0
        assert len(marks) > 0
        self.marks: Marks = tuple(marks)  # the greatest that may be written down
        self.epoch = 0  # the last one begun
        self.flushed = 0  # the last one that is durable in every directory
        self._begun: deque[tuple[int, Marks]] = deque()  # epochs not completed, ascending
        self._completed = [0] * directory_count

    def begin(self, journal_marks: Sequence[JournalMark]) -> int:
        """Start an epoch at the journals' synced marks; all caches are to be sealed in the same step."""
        assert len(journal_marks) == len(self.marks)
        self.epoch += 1
        self._begun.append((self.epoch, tuple(journal_marks)))
        return self.epoch

    def completed(self, directory: int, epoch: int) -> Marks | None:
        """A directory has made everything up to this epoch durable; the marks if that moved one."""
        assert self._completed[directory] < epoch <= self.epoch
        self._completed[directory] = epoch
        self.flushed = min(self._completed)
        before = self.marks
        while self._begun and self._begun[0][0] <= self.flushed:
            self.marks = tuple(map(max, self.marks, self._begun.popleft()[1]))
        return self.marks if self.marks != before else None
