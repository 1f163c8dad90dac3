"""How far the journal may be forgotten.

A checkpoint is an epoch: on the loop, in one step, the synced mark of the journal is copied and the
active write cache of every ledger directory is sealed. An add enters its cache before it enters the
journal, so that everything below the copied mark lies in caches of this epoch or earlier ones. Once all
directories have made all of them durable, and only then, the mark may be written down.

Inside: that rule, for any number of ledger directories. Not inside: caches, files, threads.
Always: the mark never decreases, and never passes what the slowest directory has made durable.

Source: CheckpointSourceList.java and SyncThread.java for the purpose; reference on bookie storage 8.6;
bugs it keeps out: apache/bookkeeper #3329, #4105, #4740, #4843, #4844.
"""

from __future__ import annotations

from collections import deque

from bookie.journal_format import NO_MARK, JournalMark


class Checkpoints:
    """Counts epochs; tells which mark has become true."""

    def __init__(self, directory_count: int, mark: JournalMark = NO_MARK) -> None:
        assert directory_count > 0
        self.mark = mark  # the greatest that may be written down
        self.epoch = 0  # the last one begun
        self._marks: deque[tuple[int, JournalMark]] = deque()  # of epochs not completed, ascending
        self._completed = [0] * directory_count

    def begin(self, journal_mark: JournalMark) -> int:
        """Start an epoch at the journal's synced mark; the caches are to be sealed in the same step."""
        self.epoch += 1
        self._marks.append((self.epoch, journal_mark))
        return self.epoch

    def completed(self, directory: int, epoch: int) -> JournalMark | None:
        """A directory has made everything up to this epoch durable; a mark if that moved it."""
        assert self._completed[directory] < epoch <= self.epoch
        self._completed[directory] = epoch
        slowest = min(self._completed)
        before = self.mark
        while self._marks and self._marks[0][0] <= slowest:
            self.mark = max(self.mark, self._marks.popleft()[1])
        return self.mark if self.mark != before else None
