"""The journal: append batches in groups, sync, and call the loop back once per group.

Inside: the thread that writes one journal directory's files, the mark. Not inside: creating and recycling
files (``journal.files``), the format (``journal.format``), reading back (``replay``), when the mark is stored
(``storage.checkpointer``).
Always:
- a batch is committed without an error only after the bytes of its group, and all earlier bytes of the file,
  are on stable storage (``sync=False``: are written);
- one thread writes and syncs one file; the file is synced before the next one is created. The loop may take
  the thread's place for one group while the thread has nothing to do (``loop_syncs``);
- a file has zeros beyond its last group, which only the thread writes. It adds some before a group needs
  them, in pieces between the groups, because filling much at once would hold the groups for long;
- after the first error nothing is written and nothing is acknowledged any more: after a failed sync the
  kernel may have dropped the dirty pages, so a second sync could "succeed" without the data;
- ``mark`` never decreases; ``mark`` and ``lastSynced`` are published after the sync, before the
  acknowledgements.

The thread needs Python's interpreter lock back after each write. A program that runs a bookie should set
``sys.setswitchinterval(0.0002)``, or a busy loop delays each group by up to 5 ms. Measured: 5.4 ms for a
group without it, 0.35 to 0.75 ms with it.

Source: Journal.java, JournalChannel.java; docs/storage-format.md 2.6, 12.1.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain

import trio
from crc32c import crc32c

from bookie.disk.disk import NO_SPACE, Disk, File
from bookie.errors import StorageFailedError
from bookie.journal.files import JournalConfig, JournalFiles
from bookie.journal.format import (
    ALIGNMENT_BYTES,
    FIRST_GROUP_OFFSET,
    JournalMark,
    Predecessor,
    encode_group_end,
    group_bytes,
    journal_name,
)
from bookie.journal.group_commit import LENGTH_BYTES, WriteBatch, cut_records, take_group
from bookie.journal.loop_syncs import LoopSyncs
from bookie.latency import Latency
from bookie.length_prefixes import LengthPrefixes
from ledger.runtime.held_directories import DirectoryLostError

log = logging.getLogger(__name__)

_SMALL_RECORD_BYTES = 2048  # below: one join; above: one copy each
FILL_AHEAD_BYTES = 512 << 10  # filled at once before they are needed: it takes about as long as two syncs

OnCommitted = Callable[[Sequence[WriteBatch], StorageFailedError | None], None]
"""Called with batches whose part is synced (``sync=False``: written); with the error if they have failed."""


async def open_journal(
    disk: Disk,
    files: JournalFiles,
    config: JournalConfig,
    *,
    number: int,
    next_id: int,
    previous: Predecessor,
    on_committed: OnCommitted,
    is_lazy: bool = False,
) -> Journal:
    """Create the journal's next file and return the journal, ready to write.

    Args:
        number: Which part of each batch belongs to this journal.
        next_id: The id of the next file.
        previous: The file before it, and how far that one was synced.
        on_committed: Called on the loop after each group, in order of submission.
        is_lazy: Create the file with the first record. It may be the reserve.

    Raises:
        OSError: The file cannot be created. The journal's thread has ended then.
    """
    journal = Journal(
        disk, files, config, number=number, next_id=next_id, previous=previous, on_committed=on_committed
    )
    if is_lazy:
        journal._is_lazy = True
        return journal
    try:
        await journal._thread.call(partial(journal._open_next, may_use_reserve=True))
    except BaseException:
        with trio.CancelScope(shield=True):
            await journal.aclose()
        raise
    return journal


class Journal:
    """One journal directory's open file. Opened by ``open_journal``.

    ``submit``, ``aclose`` and ``on_committed`` are on the loop.
    """

    def __init__(
        self,
        disk: Disk,
        files: JournalFiles,
        config: JournalConfig,
        *,
        number: int,
        next_id: int,
        previous: Predecessor,
        on_committed: OnCommitted,
    ) -> None:
        self._disk = disk
        self._files = files
        self._config = config
        self._number = number
        self._on_committed = on_committed
        self._thread = disk.start_thread("bookie-journal")
        self._waiting: deque[WriteBatch] = deque()
        self._is_awake = False  # written by both threads; see ``_commit_waiting``
        self._loop_syncs = LoopSyncs()  # told by the thread, or by the loop in its place
        self._is_filling = False  # a job of the thread fills the file, or is about to
        self._is_closing = False
        self.queued_bytes = 0  # submitted and not committed; used by the loop only
        self.syncs = Latency()  # of groups, each with its write
        self.adds = Latency()  # of records, from ``submit`` to the end of their group
        self.written_bytes = 0

        # Used by the journal thread only, or by the loop while that thread is idle:
        self._next_id = next_id
        self._previous = previous
        self._file: File | None = None
        self._is_lazy = False  # the file is made for the first record, and nothing is filled ahead
        self._journal_id = 0
        self._position = 0
        self._allocated = 0
        self._synced_below = 0  # < _position while unsynced groups exist
        self._fills_ahead = True
        self._error: StorageFailedError | None = None
        self._prefixes = LengthPrefixes()
        self._buffer = memoryview(disk.aligned_buffer(config.group_bytes_max + (64 << 10)))

        # Written by the journal thread and read by the loop. ``mark`` is replaced as a whole.
        self.mark = JournalMark(0, 0)
        self.has_unsynced = False
        self.sync_count = 0

    def submit(self, batch: WriteBatch) -> None:
        """Queue this journal's part of a batch. ``on_committed`` is called in order of submission.

        A part without records is committed when everything submitted before it is synced.
        """
        self.queued_bytes += batch.sizes_bytes[self._number]
        batch.submitted_s = self._disk.clock_s()
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
        batch = self._waiting[0]
        if not self._may_commit_here(batch):
            self._thread.submit(self._drain, None)
            return
        group = [self._waiting.popleft()]
        try:
            self._commit_timed(group)
        except BaseException as exc:
            self._fail(exc)
        self._is_awake = False  # nothing was submitted meanwhile: that is done on the loop
        self._committed(group, self._error)

    def _may_commit_here(self, batch: WriteBatch) -> bool:
        size_bytes = batch.sizes_bytes[self._number]
        needed = group_bytes(size_bytes) + ALIGNMENT_BYTES
        return (
            LoopSyncs.is_lone(len(self._waiting), size_bytes)
            and self._error is None
            # Only one short write: no file is filled or created here, no other bytes are synced.
            and not self.has_unsynced
            and self._file is not None
            and self._position + needed <= self._allocated
        )

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
            group = take_group(self._waiting, self._number, self._config.group_bytes_max)
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
                    self._commit_timed(group)
                except BaseException as exc:
                    self._fail(exc)
            self._thread.post(self._committed, group, self._error)
            del group

    def _fail(self, exc: BaseException) -> None:
        if self._error is None and isinstance(exc, DirectoryLostError):
            self._error = StorageFailedError(f"{exc.filename}: {exc.strerror}. Nothing more is acknowledged")
        elif self._error is None:
            self._error = StorageFailedError(
                f"journal {self._files.directory}: writing {journal_name(self._journal_id)} at"
                f" {self._position} failed: {str(exc) or repr(exc)}. Nothing more is acknowledged; check the"
                " disk and restart the bookie"
            )
        else:
            return
        self._error.__cause__ = exc
        log.error("%s", self._error)

    def _commit_timed(self, group: list[WriteBatch]) -> None:
        began_s = self._disk.clock_s()
        self._commit(group)
        self._disk.check_in_place()  # not before: what is answered must be where the next start looks
        size_bytes = sum([batch.sizes_bytes[self._number] for batch in group])
        ended_s = self._disk.clock_s()
        self._loop_syncs.synced(len(group), size_bytes, ended_s - began_s)
        self.syncs.add(ended_s - began_s, ended_s)
        for batch in group:
            if count := len(batch.records[self._number]):
                self.adds.add(ended_s - batch.submitted_s, ended_s, count)
        self.written_bytes += size_bytes

    def _commit(self, group: list[WriteBatch]) -> None:
        number = self._number
        if len(group) == 1:
            records = group[0].records[number]
        else:
            records = list(chain.from_iterable([batch.records[number] for batch in group]))
        if not records:
            self._sync()
            return
        size_bytes = sum([batch.sizes_bytes[number] for batch in group])
        sync = any(batch.sync or not batch.records[number] for batch in group)
        if size_bytes <= 2 * self._config.group_bytes_max:
            self._write_group(records, size_bytes, sync)
        else:
            for piece in cut_records(records, self._config.group_bytes_max):
                self._write_group(piece, sum(map(len, piece)) + LENGTH_BYTES * len(piece), sync)

    def _write_group(self, records: Sequence[bytes], size_bytes: int, sync: bool) -> None:
        end = group_bytes(size_bytes)
        needed = end + ALIGNMENT_BYTES  # with a block of zeros behind it, which the next group overwrites
        if (
            self._position + needed > self._config.file_bytes_max and self._position > FIRST_GROUP_OFFSET
        ) or self._file is None:
            self._open_next(may_use_reserve=self._is_lazy)
        assert self._file is not None  # ``_open_next`` has set it, and only ``_close`` clears it
        if self._position + needed > self._allocated:
            self._allocate(self._file, self._position + needed)
        if needed > len(self._buffer):
            self._buffer = memoryview(self._disk.aligned_buffer(needed))
        view = self._buffer
        prefixes = self._prefixes
        count = len(records)
        if size_bytes < count * _SMALL_RECORD_BYTES:
            parts = [b""] * (2 * count)
            parts[::2] = [prefixes[length] for length in map(len, records)]
            parts[1::2] = records
            joined = b"".join(parts)
            assert len(joined) == size_bytes  # ``WriteBatch.sizes_bytes`` was summed over the same records
            view[:size_bytes] = joined
            crc = crc32c(joined)
        else:
            at = 0
            for record in records:
                length = len(record)
                view[at : at + 4] = prefixes[length]
                view[at + 4 : at + 4 + length] = record
                at += 4 + length
            assert at == size_bytes  # likewise
            crc = crc32c(view[:size_bytes])
        tail = encode_group_end(self._journal_id, self._position, self._synced_below, count, size_bytes, crc)
        view[size_bytes:needed] = tail.ljust(needed - size_bytes, b"\0")

        if not sync:
            self._file.pwrite(view[:needed], self._position)
            self.has_unsynced = True
            self._position += end
            return
        if self.has_unsynced:
            self._file.pwrite(view[:needed], self._position)
            self._file.sync()
        else:
            self._file.write_durably(view[:needed], self._position)
        self._position += end
        self._publish()

    def _allocate(self, file: File, needed: int) -> None:
        step = min(self._allocated + self._config.preallocate_bytes, self._config.file_bytes_max)
        step = needed if self._is_lazy else step
        try:
            self._allocated = self._files.fill(file, self._allocated, max(needed, step))
        except OSError as exc:
            if exc.errno not in NO_SPACE or self.has_unsynced or step <= needed:
                raise
            self._allocated = self._files.fill(file, self._allocated, needed)  # what is left of the disk

    def _sync(self) -> None:
        if self.has_unsynced:
            assert self._file is not None  # ``_open_next`` has set it, and only ``_close`` clears it
            self._file.sync()
            self._publish()

    def _publish(self) -> None:
        self._synced_below = self._position
        self.has_unsynced = False
        self.sync_count += 1
        mark = JournalMark(self._journal_id, self._position)
        self._files.last_synced.note(mark)
        self.mark = mark

    def _open_next(self, *, may_use_reserve: bool = False) -> None:
        # The old file is synced before the new one exists. The new file notes the old one's end, and no
        # acknowledgement depends on two files.
        previous = self._previous
        if self._file is not None:
            self._sync()
            previous = Predecessor(self._journal_id, self._position)
            self._file.close()
            self._file = None
        self._file, self._allocated = self._files.create(
            self._next_id, previous, may_use_reserve=may_use_reserve
        )
        self._journal_id = self._next_id
        self._next_id += 1
        self._position = FIRST_GROUP_OFFSET
        self._fills_ahead = not self._is_lazy
        self._publish()

    def _lacks_zeros(self) -> bool:
        return (
            self._fills_ahead
            and self._allocated - self._position < self._config.preallocate_bytes // 2
            and self._allocated < self._config.file_bytes_max
        )

    def _fill_ahead(self) -> None:
        if self._file is None or self._error is not None or not self._lacks_zeros():
            return
        size_bytes = min(FILL_AHEAD_BYTES, self._config.preallocate_bytes)
        stop = min(self._allocated + size_bytes, self._config.file_bytes_max)
        try:
            self._allocated = self._files.fill(self._file, self._allocated, stop)
        except OSError as exc:
            if exc.errno not in NO_SPACE or self.has_unsynced:
                self._fail(exc)  # a failed sync may have dropped groups that are not synced yet
            self._fills_ahead = False  # on a full disk, the group that needs the space fails

    def _close(self) -> None:
        if self._file is not None:
            try:
                if self._error is None:
                    self._sync()
            finally:
                self._file.close()
                self._file = None
                self._files.last_synced.close()
                self._error = self._error or StorageFailedError("the journal is closed")

    # --- on the loop ---

    @property
    def can_write(self) -> bool:
        """True if there is a file, or one in reserve for the first record."""
        return self._file is not None or self._files.has_file_at_hand

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
        """Have the thread fill a piece of the file if few zeros are left, behind what it has to do."""
        if not (self._is_filling or self._is_closing) and self._lacks_zeros():
            self._is_filling = True
            self._thread.submit(self._fill_ahead, self._filled)

    def _filled(self, _result: object, error: BaseException | None) -> None:
        self._is_filling = False
        if error is None and self._error is None:
            self._fill_soon()
