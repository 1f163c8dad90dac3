"""The bytes of one journal's groups: the open file, the position of the next group, what of it is synced.

Inside: one group's bytes, writing and syncing them, the next file, the zeros ahead of the position. Not
inside: which batches are a group, threads, errors that were seen before (``journal``); creating and recycling
files (``files``), the format (``format``).
Always:
- a file is synced before the next one is created;
- a file has zeros beyond its last group. Some are added before a group needs them, in pieces between the
  groups, because filling much at once would hold the groups for long;
- ``mark`` never decreases; ``mark`` and ``lastSynced`` are published after the sync.

Source: JournalChannel.java; docs/storage-format.md 2.6, 12.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from crc32c import crc32c

from bookie.disk.disk import NO_SPACE, Disk, File
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
from bookie.length_prefixes import LengthPrefixes

_SMALL_RECORD_BYTES = 2048  # below: one join; above: one copy each
FILL_AHEAD_BYTES = 512 << 10  # filled at once before they are needed: it takes about as long as two syncs


class GroupWriter:
    """One journal directory's open file. In the journal's thread, or on the loop while that one is idle.

    After an error from ``write``, ``sync`` or ``open_next`` nothing more may be written.
    """

    def __init__(
        self,
        disk: Disk,
        files: JournalFiles,
        config: JournalConfig,
        *,
        next_id: int,
        previous: Predecessor,
        is_lazy: bool = False,
    ) -> None:
        """
        Args:
            next_id: The id of the next file.
            previous: The file before it, and how far that one was synced.
            is_lazy: The file is made for the first record, may be the reserve, and nothing is filled ahead.
        """
        self.disk = disk
        self.config = config
        self.is_lazy = is_lazy
        self._files = files
        self._next_id = next_id
        self._previous = previous
        self._file: File | None = None
        self._journal_id = 0
        self._position = 0
        self._allocated = 0
        self._synced_below = 0  # < _position while unsynced groups exist
        self._fills_ahead = True
        self._prefixes = LengthPrefixes()
        self._buffer = memoryview(disk.aligned_buffer(config.group_bytes_max + (64 << 10)))

        # Read by the loop, too. ``mark`` is replaced as a whole.
        self.mark = JournalMark(0, 0)
        self.has_unsynced = False
        self.sync_count = 0

    def __repr__(self) -> str:
        return f"<GroupWriter at {self.place}>"

    @property
    def place(self) -> str:
        """Where the next group goes, for messages."""
        return f"{journal_name(self._journal_id)} at {self._position}"

    @property
    def directory(self) -> Path:
        return self._files.directory

    @property
    def is_open(self) -> bool:
        return self._file is not None

    @property
    def can_write(self) -> bool:
        """True if there is a file, or one in reserve for the first record."""
        return self._file is not None or self._files.has_file_at_hand

    def is_one_write(self, size_bytes: int) -> bool:
        """True if a group of this size fills and creates no file, and its sync covers no other bytes."""
        needed = group_bytes(size_bytes) + ALIGNMENT_BYTES
        return not self.has_unsynced and self._file is not None and self._position + needed <= self._allocated

    def write(self, records: Sequence[bytes], size_bytes: int, *, sync: bool) -> None:
        """Append one group. ``sync``: it, and all before it, are on stable storage on return.

        Raises:
            OSError: The disk failed, or is full.
        """
        end = group_bytes(size_bytes)
        needed = end + ALIGNMENT_BYTES  # with a block of zeros after it, which the next group overwrites
        if (
            self._position + needed > self.config.file_bytes_max and self._position > FIRST_GROUP_OFFSET
        ) or self._file is None:
            self.open_next(may_use_reserve=self.is_lazy)
        assert self._file is not None  # ``open_next`` has set it, and only ``close`` clears it
        if self._position + needed > self._allocated:
            self._allocate(self._file, self._position + needed)
        if needed > len(self._buffer):
            self._buffer = memoryview(self.disk.aligned_buffer(needed))
        view = self._buffer
        prefixes = self._prefixes
        count = len(records)
        if size_bytes < count * _SMALL_RECORD_BYTES:
            parts = [b""] * (2 * count)
            parts[::2] = map(prefixes.__getitem__, map(len, records))
            parts[1::2] = records
            joined = b"".join(parts)
            at = len(joined)
            view[:size_bytes] = joined
            crc = crc32c(joined)
        else:
            at = 0
            for record in records:
                length = len(record)
                view[at : at + 4] = prefixes[length]
                view[at + 4 : at + 4 + length] = record
                at += 4 + length
            crc = crc32c(view[:size_bytes])
        if at != size_bytes:  # ``WriteBatch.sizes_bytes`` was summed over the same records
            raise AssertionError(f"records of {at} bytes were counted as {size_bytes}")
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
        step = min(self._allocated + self.config.preallocate_bytes, self.config.file_bytes_max)
        step = needed if self.is_lazy else step
        try:
            self._allocated = self._files.fill(file, self._allocated, max(needed, step))
        except OSError as exc:
            if exc.errno not in NO_SPACE or self.has_unsynced or step <= needed:
                raise
            self._allocated = self._files.fill(file, self._allocated, needed)  # what is left of the disk

    def sync(self) -> None:
        """Put all groups on stable storage. Raises ``OSError``."""
        if self.has_unsynced:
            assert self._file is not None  # ``open_next`` has set it, and only ``close`` clears it
            self._file.sync()
            self._publish()

    def _publish(self) -> None:
        self._synced_below = self._position
        self.has_unsynced = False
        self.sync_count += 1
        mark = JournalMark(self._journal_id, self._position)
        self._files.last_synced.note(mark)
        self.mark = mark

    def open_next(self, *, may_use_reserve: bool = False) -> None:
        """Create the next file. Raises ``OSError``."""
        # The old file is synced before the new one exists. The new file notes the old one's end, and no
        # acknowledgement depends on two files.
        previous = self._previous
        if self._file is not None:
            self.sync()
            previous = Predecessor(self._journal_id, self._position)
            self._file.close()
            self._file = None
        self._file, self._allocated = self._files.create(
            self._next_id, previous, may_use_reserve=may_use_reserve
        )
        self._journal_id = self._next_id
        self._next_id += 1
        self._position = FIRST_GROUP_OFFSET
        # A smaller file was made of what a full disk had left, which a flush or a compaction may need.
        self._fills_ahead = not self.is_lazy and self._allocated >= self._files.first_bytes
        self._publish()

    @property
    def lacks_zeros(self) -> bool:
        """True if ``fill_ahead`` should be called soon."""
        return (
            self._fills_ahead
            and self._allocated - self._position < self.config.preallocate_bytes // 2
            and self._allocated < self.config.file_bytes_max
        )

    def fill_ahead(self) -> None:
        """Fill a piece of the file with zeros, if few are left.

        Raises:
            OSError: The disk failed. A disk that is only full shows when a group needs the space.
        """
        if self._file is None or not self.lacks_zeros:
            return
        size_bytes = min(FILL_AHEAD_BYTES, self.config.preallocate_bytes)
        stop = min(self._allocated + size_bytes, self.config.file_bytes_max)
        try:
            self._allocated = self._files.fill(self._file, self._allocated, stop)
        except OSError as exc:
            self._fills_ahead = False
            if exc.errno not in NO_SPACE or self.has_unsynced:
                raise  # a failed sync may have dropped groups that are not synced yet

    def close(self, *, sync: bool) -> None:
        """Close the file. Raises ``OSError`` if it cannot be synced first."""
        if self._file is None:
            return
        try:
            if sync:
                self.sync()
        finally:
            self._file.close()
            self._file = None
            self._files.last_synced.close()
