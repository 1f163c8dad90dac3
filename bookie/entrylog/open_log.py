"""An entry log that is being written.

Inside: one file, the bytes of each ledger in it, its map. Not inside: the choice of a log for an entry
(``entrylog.writer``, ``compactor``).
Always: a position is returned only after the system call that wrote there has returned. The map is synced
before the header points to it. After an error the log is never written again.

Source: BufferedLogChannel, EntryLogManagerBase.java; apache/bookkeeper#4607, #4855.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from crc32c import crc32c

from bookie.disk.disk import Buffer, Disk, File
from bookie.entrylog.format import HEADER_BYTES, LENGTH_BYTES, RECORD_PREFIX, encode_header, encode_map

_SYNC_EVERY_BYTES = 32 << 20  # keeps the last sync of a flush short


class OpenLog:
    """One log; ``sync`` makes it durable, ``complete`` ends it. Used by the storage thread only."""

    def __init__(
        self, disk: Disk, path: Path, log_id: int, *, sync_every_bytes: int = _SYNC_EVERY_BYTES
    ) -> None:
        """Create the file, durably."""
        self.log_id = log_id
        self.position = HEADER_BYTES
        self.ledger_bytes: dict[int, int] = {}
        self._sync_every_bytes = sync_every_bytes
        self._unsynced_bytes = HEADER_BYTES
        self._file: File | None = None
        file = disk.open(path, create=True, write=True)
        try:
            file.pwrite(encode_header(), 0)
            disk.sync_directory(path.parent)
        except BaseException:
            file.close()
            raise
        self._file = file

    def append(self, ledger_id: int, buffers: Sequence[Buffer], size_bytes: int) -> int:
        """Append records of one ledger; return their offset."""
        self.write(buffers, size_bytes)
        self.ledger_bytes[ledger_id] = self.ledger_bytes.get(ledger_id, 0) + size_bytes
        return self.position - size_bytes

    def write(self, buffers: Sequence[Buffer], size_bytes: int) -> None:
        """Append records; the caller must update ``ledger_bytes``."""
        file = self._file
        # ``EntryLogWriter`` drops a log that it closes
        assert file is not None, "the log is closed or has failed"
        try:
            if len(buffers) > 1:
                file.pwritev(buffers, self.position)
            else:
                file.pwrite(buffers[0], self.position)
            self.position += size_bytes
            self._unsynced_bytes += size_bytes
            if self._unsynced_bytes >= self._sync_every_bytes:
                self.sync()
        except BaseException:
            self.close()
            raise

    def sync(self) -> None:
        """Make all appended records durable."""
        assert self._file is not None  # likewise
        if self._unsynced_bytes:
            self._file.sync()
            self._unsynced_bytes = 0

    def complete(self) -> None:
        """Write the map, sync, then write the header that points to the map, sync. Closes the file."""
        assert self._file is not None  # likewise
        try:
            ledgers_map = encode_map(self.ledger_bytes)
            self._file.pwrite(ledgers_map, self.position)
            self._file.sync()
            header = encode_header(self.position, len(self.ledger_bytes), crc32c(ledgers_map))
            self._file.pwrite(header, 0)
            self._file.sync()
        finally:
            self.close()

    def close(self) -> None:
        """Close the file without a map."""
        if self._file is not None:
            self._file.close()
            self._file = None


def cut_back(disk: Disk, path: Path, size_bytes: int) -> None:
    """Cut a closed log back to its first bytes; it has no map then. Durable on return."""
    file = disk.open(path, write=True)
    try:
        file.pwrite(encode_header(), 0)  # first: no header may point to a map that is cut off
        file.sync()
        file.truncate(size_bytes)
        file.sync()
    finally:
        file.close()


def end_of_entry(disk: Disk, path: Path, ledger_id: int, entry_id: int, offset: int) -> int | None:
    """Where the entry ends whose body is at this offset; None if another one is there."""
    file = disk.open(path)
    try:
        prefix = file.pread(RECORD_PREFIX.size, offset - LENGTH_BYTES)
    finally:
        file.close()
    if len(prefix) < RECORD_PREFIX.size:
        return None
    length, *ids = RECORD_PREFIX.unpack(prefix)
    return int(offset + length) if ids == [ledger_id, entry_id] else None
