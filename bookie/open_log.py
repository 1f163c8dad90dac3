"""An entry log that is being written.

Inside: one file, what it holds so far, its map. Not inside: which entries go where (``entry_log``,
``compactor``).
Always: a position is handed out only after the system call that wrote there has returned; the map is synced
before the header points to it; after an error the log is never written to again.

Source: BufferedLogChannel, EntryLogManagerBase.java; apache/bookkeeper#4607, #4855.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from crc32c import crc32c

from bookie.disk import Buffer, Disk, File
from bookie.entry_log_format import HEADER_BYTES, encode_header, encode_map

_SYNC_EVERY_BYTES = 32 << 20  # so that the last sync of a flush is short


class OpenLog:
    """Made durable by ``sync``; finished by ``complete``. The storage thread's."""

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
        """Write records of one ledger behind the others; where they begin."""
        self.write(buffers, size_bytes)
        self.ledger_bytes[ledger_id] = self.ledger_bytes.get(ledger_id, 0) + size_bytes
        return self.position - size_bytes

    def write(self, buffers: Sequence[Buffer], size_bytes: int) -> None:
        """Write records; ``ledger_bytes`` is the caller's to keep."""
        file = self._file
        assert file is not None, "a log that is closed or has failed"
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
        """Make what was appended durable."""
        assert self._file is not None
        if self._unsynced_bytes:
            self._file.sync()
            self._unsynced_bytes = 0

    def complete(self) -> None:
        """Sync, write the map, sync, and only then let the header point to it. Closes the file."""
        assert self._file is not None
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
        """Close the file as it is."""
        if self._file is not None:
            self._file.close()
            self._file = None
