"""The journal: append batches in groups, sync, and call the loop back once per group.

Inside: the queue of one journal directory and the thread that empties it. Not inside: the bytes of a group
and their position (``group_writer``), reading back (``replay``), when the mark is stored
(``storage.checkpointer``).
Always:
- a batch is committed without an error only after the bytes of its group, and all earlier bytes of the file,
  are on stable storage (``sync=False``: are written);
- one thread writes and syncs one file. The loop may take the thread's place for one group while the thread
  has nothing to do (``LoopSyncs``);
- after the first error nothing is written and nothing is acknowledged any more: after a failed sync the
  kernel may have dropped the dirty pages, so a second sync could "succeed" without the data;
- ``mark`` and ``lastSynced`` are published after the sync, before the acknowledgements.

The thread needs Python's interpreter lock back after each write. A program that runs a bookie should set
``sys.setswitchinterval(0.0002)``, or a busy loop delays each group by up to 5 ms. Measured: 5.4 ms for a
group without it, 0.35 to 0.75 ms with it.

Source: Journal.java; docs/storage-format.md 2.6, 12.1.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain

import trio

from bookie.errors import StorageFailedError
from bookie.journal.format import JournalMark
from bookie.journal.group_commit import LENGTH_BYTES, WriteBatch, cut_records, take_group
from bookie.journal.group_writer import GroupWriter
from bookie.latency import Latency
from ledger.runtime.held_directories import DirectoryLostError
from ledger.runtime.log_lines import get_logger
from ledger.runtime.loop_calls import LoopCalls

log = get_logger(__name__)

LONE_BYTES_MAX = 32 << 10

OnCommitted = Callable[[Sequence[WriteBatch], StorageFailedError | None], None]
"""Called with batches whose part is synced (``sync=False``: written); with the error if they have failed."""


class LoopSyncs:
    """Whether the loop writes and syncs the next group itself, instead of handing it to the journal's thread.

    A lone add waits for nothing but its sync. Handing it to a thread and back takes two switches of threads
    and one more turn of the loop, about as long as the sync of a good SSD. But while the loop syncs, it
    serves no peer. So it does so only for a group that would be alone in the thread too, and only while syncs
    are fast:

    - the group is one small batch, and so was the group before. Batches that come together share one write in
      the thread, and the loop takes more of them during the sync;
    - groups were fast of late, in the thread too: a disk is known before the loop waits for it, and one that
      stalls holds the loop once (``ledger.runtime.loop_calls``).
    """

    def __init__(self) -> None:
        self._calls = LoopCalls()
        self._was_lone = True
        self.may_sync = False  # the loop may sync a lone group now

    def __repr__(self) -> str:
        return f"<LoopSyncs: {self._calls!r}, lone {self._was_lone}>"

    @staticmethod
    def is_lone(batch_count: int, size_bytes: int) -> bool:
        """True if these batches are a group that gains nothing in the thread."""
        return batch_count == 1 and size_bytes <= LONE_BYTES_MAX

    def synced(self, batch_count: int, size_bytes: int, took_s: float) -> None:
        """A group was written and synced, by the loop or by the thread."""
        self._was_lone = self.is_lone(batch_count, size_bytes)
        self._calls.called(took_s)
        self.may_sync = self._was_lone and self._calls.may_call


async def open_journal(writer: GroupWriter, number: int, on_committed: OnCommitted) -> Journal:
    """Create the journal's next file and return the journal, ready to write.

    A lazy writer creates the file with the first record.

    Args:
        number: Which part of each batch belongs to this journal.
        on_committed: Called on the loop after each group, in order of submission.

    Raises:
        OSError: The file cannot be created. The journal's thread has ended then.
    """
    journal = Journal(writer, number, on_committed)
    if writer.is_lazy:
        return journal
    try:
        await journal._thread.call(partial(writer.open_next, may_use_reserve=True))
    except BaseException:
        with trio.CancelScope(shield=True):
            await journal.aclose()
        raise
    return journal


class Journal:
    """The queue of one journal directory, and the thread that empties it. Opened by ``open_journal``.

    ``submit``, ``aclose`` and ``on_committed`` are on the loop.
    """

    def __init__(self, writer: GroupWriter, number: int, on_committed: OnCommitted) -> None:
        self._writer = writer  # used by the journal's thread, or by the loop while that thread is idle
        self._disk = writer.disk
        self._clock_s = writer.disk.clock_s
        self._group_bytes_max = writer.config.group_bytes_max
        self._number = number
        self._on_committed = on_committed
        self._thread = self._disk.start_thread("bookie-journal")
        self._waiting: deque[WriteBatch] = deque()
        self._is_awake = False  # written by both threads; see ``_commit_waiting``
        self._loop_syncs = LoopSyncs()  # the thread reports to it, or the loop in its place
        self._error: StorageFailedError | None = None  # likewise
        self._is_filling = False  # a job of the thread fills the file, or is about to
        self._is_closing = False
        self.queued_bytes = 0  # submitted and not committed; used by the loop only
        self.syncs = Latency()  # of groups, each with its write
        self.adds = Latency()  # of records, from ``submit`` to the end of their group
        self.written_bytes = 0

    def __repr__(self) -> str:
        return f"<Journal {self._number}, {len(self._waiting)} batches wait, {self._writer!r}>"

    @property
    def mark(self) -> JournalMark:
        """Up to where it is synced. It never decreases."""
        return self._writer.mark

    @property
    def has_unsynced(self) -> bool:
        return self._writer.has_unsynced

    @property
    def sync_count(self) -> int:
        return self._writer.sync_count

    @property
    def can_write(self) -> bool:
        """True if there is a file, or one in reserve for the first record."""
        return self._writer.can_write

    def submit(self, batch: WriteBatch) -> None:
        """Queue this journal's part of a batch. ``on_committed`` is called in order of submission.

        A part without records is committed when everything submitted before it is synced.
        """
        self.queued_bytes += batch.sizes_bytes[self._number]
        batch.submitted_s = self._clock_s()
        self._waiting.append(batch)
        if not self._is_awake:
            self._is_awake = True
            if self._loop_syncs.may_sync:
                # Not in this step: batches of other connections may come in it, and share the write.
                self._thread.call_soon(self._drain_here)
            else:
                self._thread.submit(self._drain, None)

    async def aclose(self) -> None:
        """Commit the queued batches, sync, close the file, end the thread."""
        self._is_closing = True
        self._thread.submit(self._drain, None)  # also those that the loop was about to commit
        with contextlib.suppress(OSError):  # already reported to ``on_committed``
            await self._thread.call(self._close)
        await self._thread.aclose()

    def _drain_here(self) -> None:
        """Commit a lone group on the loop, or wake the thread."""
        if self._waiting and not self._thread.run_here(self._commit_lone):
            self._thread.submit(self._drain, None)

    # --- in the journal thread, or on the loop in its place ---

    def _commit_lone(self) -> None:
        size_bytes = self._waiting[0].sizes_bytes[self._number]
        if (
            not LoopSyncs.is_lone(len(self._waiting), size_bytes)
            or self._error is not None
            or not self._writer.is_one_write(size_bytes)
        ):
            self._thread.submit(self._drain, None)
            return
        group = [self._waiting.popleft()]
        try:
            self._commit(group)
        except BaseException as exc:
            self._fail(exc)
        self._is_awake = False  # nothing was submitted meanwhile: that is done on the loop
        self._committed(group, self._error)

    def _drain(self) -> None:
        try:
            self._commit_waiting()
        except BaseException as exc:
            # No write has failed: there is no memory, or a fault in this module. The error must be reported,
            # because nothing is committed any more, and all batches would wait for ever.
            self._fail(exc)
            self._is_awake = False
            self._thread.post(self._on_committed, [], self._error)

    def _commit_waiting(self) -> None:
        while True:
            group = take_group(self._waiting, self._number, self._group_bytes_max)
            if not group:
                # The loop appends a batch and then reads ``_is_awake``. This thread clears ``_is_awake`` and
                # then reads the queue again. In every interleaving one of the two sees the other's change.
                self._is_awake = False
                if not self._waiting:
                    return
                self._is_awake = True
                continue
            if self._error is None:
                try:
                    self._commit(group)
                except BaseException as exc:
                    self._fail(exc)
            self._thread.post(self._committed, group, self._error)
            del group

    def _fail(self, exc: BaseException) -> None:
        if self._error is None and isinstance(exc, DirectoryLostError):
            self._error = StorageFailedError(f"{exc.filename}: {exc.strerror}. Nothing more is acknowledged")
        elif self._error is None:
            self._error = StorageFailedError(
                f"journal {self._writer.directory}: writing {self._writer.place} failed:"
                f" {str(exc) or repr(exc)}. Nothing more is acknowledged; check the disk and restart the"
                " bookie"
            )
        else:
            return
        self._error.__cause__ = exc
        log.error("%s", self._error)

    def _commit(self, group: list[WriteBatch]) -> None:
        """Write and sync the group, and measure it."""
        began_s, number = self._clock_s(), self._number
        size_bytes = self._write(group)
        self._disk.check_in_place()  # not before: what is answered must be where the next start looks
        ended_s = self._clock_s()
        self._loop_syncs.synced(len(group), size_bytes, ended_s - began_s)
        self.syncs.add(ended_s - began_s, ended_s)
        for batch in group:
            if count := len(batch.records[number]):
                self.adds.add(ended_s - batch.submitted_s, ended_s, count)
        self.written_bytes += size_bytes

    def _write(self, group: list[WriteBatch]) -> int:
        """Write the group, and sync it if one of its batches asks for that; return its size in bytes."""
        number = self._number
        if len(group) == 1:
            batch = group[0]
            records, size_bytes, sync = batch.records[number], batch.sizes_bytes[number], batch.sync
        else:
            records = list(chain.from_iterable([batch.records[number] for batch in group]))
            size_bytes = sum([batch.sizes_bytes[number] for batch in group])
            sync = any(batch.sync or not batch.records[number] for batch in group)
        if not records:
            self._writer.sync()
        elif size_bytes <= 2 * self._group_bytes_max:
            self._writer.write(records, size_bytes, sync=sync)
        else:
            for piece in cut_records(records, self._group_bytes_max):
                piece_bytes = sum(map(len, piece)) + LENGTH_BYTES * len(piece)
                self._writer.write(piece, piece_bytes, sync=sync)
        return size_bytes

    def _fill_ahead(self) -> None:
        if self._error is None:
            try:
                self._writer.fill_ahead()
            except OSError as exc:
                self._fail(exc)

    def _close(self) -> None:
        if self._writer.is_open:
            try:
                self._writer.close(sync=self._error is None)
            finally:
                self._error = self._error or StorageFailedError("the journal is closed")

    # --- on the loop ---

    @property
    def waiting_count(self) -> int:
        """Batches that no group has taken yet."""
        return len(self._waiting)

    def _committed(self, group: list[WriteBatch], error: StorageFailedError | None) -> None:
        for batch in group:
            self.queued_bytes -= batch.sizes_bytes[self._number]
        self._on_committed(group, error)
        self._fill_soon()

    def _fill_soon(self) -> None:
        """Have the thread fill a piece of the file if few zeros are left, after what it has to do."""
        if not (self._is_filling or self._is_closing) and self._writer.lacks_zeros:
            self._is_filling = True
            self._thread.submit(self._fill_ahead, self._filled)

    def _filled(self, _result: object, error: BaseException | None) -> None:
        self._is_filling = False
        if error is None and self._error is None:
            self._fill_soon()
