"""The journal: append runs in groups, sync, and tell the loop once per group.

Inside: the thread that writes one journal directory's files, the mark. Not inside: making and recycling files
(``journal_files``), the format (``journal_format``), reading back (``replay``), when the mark is stored
(``epochs``).
Always:
- a run is answered without an error only after the bytes of its group, and all before them in the
  file, are on stable storage (``sync=False``: are written);
- write and sync happen in one thread, on one file; the file is synced before the next one is made;
- after the first error nothing is written and nothing is acknowledged any more: a kernel that failed
  to sync may have dropped the dirty pages, so trying again could "succeed" without the data;
- ``mark`` never decreases and is published after the sync, before the answers; ``lastSynced`` with it.

The interpreter lock: the thread needs it back after each write. A program that runs a bookie should set
``sys.setswitchinterval(0.0002)``, or a busy loop delays every group by up to 5 ms; measured without it:
5.4 ms a group, with it 0.35 to 0.75.

Source: Journal.java, JournalChannel.java; reference on bookie storage 7.2, 7.4 and 8.4.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain

from crc32c import crc32c

from bookie.disk import Disk, File
from bookie.errors import StorageFailedError
from bookie.group_commit import OnDurable, Run, cut_batches, take_group
from bookie.journal_files import JournalConfig, JournalFiles
from bookie.journal_format import (
    ALIGNMENT_BYTES,
    FIRST_BATCH_OFFSET,
    LENGTH,
    JournalMark,
    Predecessor,
    batch_bytes,
    encode_batch_end,
    journal_name,
)

log = logging.getLogger(__name__)

_SMALL_RECORD_BYTES = 2048  # below: one join; above: one copy each
_PREFIXES_MAX = 4096


class LengthPrefixes(dict[int, bytes]):
    """Length to its 4 bytes: entries of one writer mostly have one length."""

    def __missing__(self, length: int) -> bytes:
        if len(self) >= _PREFIXES_MAX:
            self.clear()
        prefix = self[length] = LENGTH.pack(length)
        return prefix


class Journal:
    """One journal directory's open file. ``submit`` and the answers are on the loop."""

    def __init__(
        self,
        disk: Disk,
        files: JournalFiles,
        config: JournalConfig,
        *,
        next_id: int,
        previous: Predecessor,
        on_answered: Callable[[StorageFailedError | None], None],
    ) -> None:
        self._disk = disk
        self._files = files
        self._config = config
        self._on_answered = on_answered
        self._thread = disk.start_thread("bookie-journal")
        self._waiting: deque[Run] = deque()
        self._awake = False  # written by both threads; see _drain
        self.queued_bytes = 0  # submitted and not answered; the loop's

        # Owned by the journal thread from here on.
        self._next_id = next_id
        self._previous = previous
        self._file: File | None = None
        self._journal_id = 0
        self._position = 0
        self._allocated = 0
        self._synced_below = 0  # < _position while unsynced batches exist
        self._error: StorageFailedError | None = None
        self._prefixes = LengthPrefixes()
        self._buffer = memoryview(disk.aligned_buffer(config.group_bytes_max + (64 << 10)))

        # Published by the journal thread, read by the loop: one reference, replaced whole.
        self.mark = JournalMark(0, 0)
        self.has_unsynced = False
        self.sync_count = 0

    async def start(self) -> None:
        """Make the first file. ``OSError`` if that fails."""
        await self._thread.call(partial(self._open_next, may_use_reserve=True))

    def submit(self, records: list[bytes], size_bytes: int, on_durable: OnDurable, *, sync: bool) -> None:
        """Queue a run; ``on_durable`` is called on the loop with None or the error, in order of submission.

        A run without records is answered when everything submitted before it is synced.
        ``size_bytes`` counts the records with 4 bytes each.
        """
        self.queued_bytes += size_bytes
        self._waiting.append(Run(records, size_bytes, on_durable, sync or not records))
        if not self._awake:
            self._awake = True
            self._thread.submit(self._drain, None)

    async def aclose(self) -> None:
        """Answer what is queued, sync, close the file, end the thread."""
        with contextlib.suppress(OSError):  # those who waited were told already
            await self._thread.call(self._close)
        await self._thread.aclose()

    # --- in the journal thread ---

    def _drain(self) -> None:
        try:
            self._commit_waiting()
        except BaseException as exc:
            # No write has failed: the memory is used up, or the fault is ours. Unsaid, it would let everybody
            # wait for ever, since nothing would be drained any more.
            self._fail(exc)
            self._awake = False
            self._thread.post(self._on_answered, self._error)

    def _commit_waiting(self) -> None:
        while True:
            runs = take_group(self._waiting, self._config.group_bytes_max)
            if not runs:
                # The loop appends and then looks at _awake; here it is cleared and then the queue looked
                # at again. Whatever the interleaving, one of the two sees the other.
                self._awake = False
                if not self._waiting:
                    return
                self._awake = True
                continue
            if self._error is None:
                try:
                    self._commit(runs)
                except BaseException as exc:
                    self._fail(exc)
            self._thread.post(self._answer, runs, self._error)
            del runs

    def _fail(self, exc: BaseException) -> None:
        if self._error is None:
            self._error = StorageFailedError(
                f"journal {self._files.directory}: writing {journal_name(self._journal_id)} at"
                f" {self._position} failed: {str(exc) or repr(exc)}. Nothing more is acknowledged; see to the"
                " disk and restart"
            )
            self._error.__cause__ = exc
            log.error("%s", self._error)

    def _commit(self, runs: list[Run]) -> None:
        if len(runs) == 1:
            records = runs[0].records
            size_bytes, sync = runs[0].size_bytes, runs[0].sync
        else:
            records = list(chain.from_iterable([run.records for run in runs]))
            size_bytes, sync = sum([run.size_bytes for run in runs]), any(run.sync for run in runs)
        if not records:
            self._sync()
        elif size_bytes <= 2 * self._config.group_bytes_max:
            self._write_batch(records, size_bytes, sync)
        else:
            for batch in cut_batches(records, self._config.group_bytes_max):
                self._write_batch(batch, sum(map(len, batch)) + 4 * len(batch), sync)

    def _write_batch(self, records: Sequence[bytes], size_bytes: int, sync: bool) -> None:
        end = batch_bytes(size_bytes)
        needed = end + ALIGNMENT_BYTES  # and a block of zeros, which the next batch overwrites
        if (
            self._position + needed > self._config.file_bytes_max and self._position > FIRST_BATCH_OFFSET
        ) or self._file is None:
            self._open_next()
        assert self._file is not None
        if self._position + needed > self._allocated:
            step = min(self._allocated + self._config.preallocate_bytes, self._config.file_bytes_max)
            self._allocated = self._files.fill(
                self._file, self._allocated, max(self._position + needed, step)
            )
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
            assert len(joined) == size_bytes
            view[:size_bytes] = joined
            crc = crc32c(joined)
        else:
            at = 0
            for record in records:
                length = len(record)
                view[at : at + 4] = prefixes[length]
                view[at + 4 : at + 4 + length] = record
                at += 4 + length
            assert at == size_bytes
            crc = crc32c(view[:size_bytes])
        tail = encode_batch_end(self._journal_id, self._position, self._synced_below, count, size_bytes, crc)
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

    def _sync(self) -> None:
        if self.has_unsynced:
            assert self._file is not None
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
        # Everything in the old file is durable before the new one exists: its end is noted there, and no
        # answer ever depends on two files.
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
        self._position = FIRST_BATCH_OFFSET
        self._publish()

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

    def _answer(self, runs: list[Run], error: StorageFailedError | None) -> None:
        for run in runs:
            self.queued_bytes -= run.size_bytes
            run.on_durable(error)
        self._on_answered(error)
