"""Writing entry logs: append what the write cache held; which ledgers a log holds; ids of logs.

Inside: all that changes entry logs, in the storage thread. Not inside: the format
(``entry_log_format``), reading entries (``entry_log_reader``), where entries lie (``index``).
Always: a location is handed out only after the system call that wrote the entry has returned; a log is
never appended to after an error or by a later process; an id is never used twice.

Source: DefaultEntryLogger.java, EntryLoggerAllocator.java; reference on bookie storage 7.3 (#4040,
#4607, #4855) and 8.5.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path

from crc32c import crc32c

from bookie.disk import Disk, File
from bookie.entry_log_format import (
    HEADER_BYTES,
    LENGTH_BYTES,
    OFFSET_MAX,
    EntryLogScan,
    FoundEntry,
    decode_map,
    encode_header,
    encode_map,
    entry_log_id_of,
    entry_log_name,
)
from bookie.errors import FormatError
from bookie.index import LedgerRun
from bookie.journal import LengthPrefixes

log = logging.getLogger(__name__)

_WRITE_BYTES = 1 << 20
_SYNC_EVERY_BYTES = 32 << 20  # so that the last sync of a flush is short
_GATHER_ABOVE_BYTES = 4096  # mean size of entries from which a gathering write beats joining
_LAST_ID = "lastId"


class EntryLogWriter:
    """Appends to the current log of one directory. Everything here is the storage thread's."""

    def __init__(self, disk: Disk, directory: Path, *, log_bytes_max: int) -> None:
        assert HEADER_BYTES < log_bytes_max <= OFFSET_MAX
        self._disk = disk
        self._directory = directory
        self._log_bytes_max = log_bytes_max
        self._next_id: int | None = None
        self._file: File | None = None
        self.current_id: int | None = None
        self._position = 0
        self._unsynced_bytes = 0
        self._ledger_bytes: dict[int, int] = {}
        self._prefixes = LengthPrefixes()
        self._summaries: dict[int, set[int]] = {}  # ledgers of complete logs, as far as asked for
        self._quarantined: set[int] = set()

    def append(self, ledgers: Mapping[int, Mapping[int, bytes]]) -> Iterator[LedgerRun]:
        """Append all entries, ledger by ledger in order of their ids; yields where they lie.

        Durable after ``sync``. After an ``OSError`` this writer refuses to go on.
        """
        for ledger_id in sorted(ledgers):
            entries = ledgers[ledger_id]
            entry_ids = sorted(entries)
            bodies = list(map(entries.__getitem__, entry_ids))
            start = 0
            while start < len(bodies):
                stop = _slice_end(bodies, start)
                yield LedgerRun(ledger_id, entry_ids[start:stop], self._append(ledger_id, bodies[start:stop]))
                start = stop

    def sync(self) -> None:
        """Make what was appended durable."""
        if self._file is not None and self._unsynced_bytes:
            self._file.sync()
            self._unsynced_bytes = 0

    def close(self) -> None:
        """Complete the current log with its map."""
        if self._file is not None:
            self._complete()

    def abandon(self) -> None:
        """Close the current log as it is, after an error."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self.current_id = None

    def remove_dead(self, is_live: Callable[[int], bool]) -> list[int]:
        """Delete the complete logs that hold no entry of a live ledger; return their ids.

        A log that cannot be followed to its end stays: it may hold what its reader did not see.
        """
        removed = []
        for log_id in entry_log_ids(self._disk, self._directory):
            if log_id == self.current_id or log_id in self._quarantined:
                continue
            if log_id not in self._summaries:
                try:
                    self._summaries[log_id] = ledgers_in_log(self._disk, self._directory, log_id)
                except FormatError as exc:
                    log.warning("an entry log is damaged and is kept: %s", exc)
                    self._quarantined.add(log_id)
                    continue
            if not any(map(is_live, self._summaries[log_id])):
                self._disk.unlink(self._directory / entry_log_name(log_id))
                del self._summaries[log_id]
                removed.append(log_id)
        if removed:
            self._disk.sync_directory(self._directory)
        return removed

    def _append(self, ledger_id: int, bodies: Sequence[bytes]) -> list[int]:
        lengths = list(map(len, bodies))
        size_bytes = sum(lengths) + LENGTH_BYTES * len(bodies)
        if self._file is not None and self._position + size_bytes > self._log_bytes_max:
            self._complete()
        if self._file is None:
            self._start()
        assert self._file is not None
        assert self.current_id is not None
        parts = [b""] * (2 * len(bodies))
        prefixes = self._prefixes
        parts[::2] = [prefixes[length] for length in lengths]
        parts[1::2] = bodies
        try:
            if size_bytes > len(bodies) * _GATHER_ABOVE_BYTES:
                self._file.pwritev(parts, self._position)
            else:
                self._file.pwrite(b"".join(parts), self._position)
            first = (self.current_id << 32) + self._position + LENGTH_BYTES
            self._position += size_bytes
            self._unsynced_bytes += size_bytes
            if self._unsynced_bytes >= _SYNC_EVERY_BYTES:
                self.sync()
        except BaseException:
            self.abandon()
            raise
        self._ledger_bytes[ledger_id] = self._ledger_bytes.get(ledger_id, 0) + size_bytes
        locations = list(accumulate([length + LENGTH_BYTES for length in lengths], initial=first))
        locations.pop()
        return locations

    def _start(self) -> None:
        if self._next_id is None:
            self._next_id = _first_free_id(self._disk, self._directory)
        log_id = self._next_id
        self._next_id += 1
        # Noted before the log exists: the newest logs may be deleted, and their ids must not come back
        # while any index can still name them.
        self._disk.replace_file(self._directory / _LAST_ID, b"%x\n" % log_id)
        path = self._directory / entry_log_name(log_id)
        file = self._disk.open(path, create=True, write=True)
        try:
            file.pwrite(encode_header(), 0)
            self._disk.sync_directory(self._directory)
        except BaseException:
            file.close()
            raise
        self._file, self.current_id, self._position = file, log_id, HEADER_BYTES
        self._unsynced_bytes = HEADER_BYTES
        self._ledger_bytes = {}

    def _complete(self) -> None:
        """Sync, write the map, sync, and only then let the header point to it."""
        assert self._file is not None
        try:
            ledgers_map = encode_map(self._ledger_bytes)
            self._file.pwrite(ledgers_map, self._position)
            self._file.sync()
            header = encode_header(self._position, len(self._ledger_bytes), crc32c(ledgers_map))
            self._file.pwrite(header, 0)
            self._file.sync()
        finally:
            self.abandon()


def _slice_end(bodies: Sequence[bytes], start: int) -> int:
    """Where a piece of about one write ends that begins at ``start``."""
    stop = min(start + 1024, len(bodies))
    size_bytes = 0
    for at in range(start, stop):
        size_bytes += len(bodies[at])
        if size_bytes >= _WRITE_BYTES:
            return at + 1
    return stop


def _first_free_id(disk: Disk, directory: Path) -> int:
    """Above every id a name in the directory mentions, and above the last one noted."""
    greatest = -1
    for name in disk.list_directory(directory):
        for part in name.split(".")[:1] + (name.split(".")[2:3] if name.endswith(".compacted") else []):
            with contextlib.suppress(ValueError):
                if ".log" in name:
                    greatest = max(greatest, int(part, 16))
        if name == _LAST_ID:
            with contextlib.suppress(ValueError):  # a hint: Apache truncates it in place
                greatest = max(greatest, int(disk.read_file(directory / name), 16))
    return greatest + 1


def entry_log_ids(disk: Disk, directory: Path) -> list[int]:
    """Ids of the entry logs present, ascending."""
    ids = [entry_log_id_of(name) for name in disk.list_directory(directory)]
    return sorted(log_id for log_id in ids if log_id is not None)


def ledgers_in_log(disk: Disk, directory: Path, log_id: int) -> set[int]:
    """Which ledgers have entries in a log, by its map or by a scan; blocks.

    ``FormatError`` if the log cannot be followed to its end: then nobody may conclude what is not in it.
    """
    file = disk.open(directory / entry_log_name(log_id))
    try:
        size = file.size()
        ledgers = decode_map(file.pread(HEADER_BYTES, 0), file.pread, size)
        if ledgers is not None:
            return set(ledgers)
        scan = EntryLogScan(file.pread, size)
        found = {entry.ledger_id for entry in scan.entries()}
    finally:
        file.close()
    if scan.damage is not None:
        raise FormatError(f"{directory / entry_log_name(log_id)}: {scan.damage}")
    return found


def scan_log(disk: Disk, directory: Path, log_id: int) -> tuple[list[FoundEntry], str | None]:
    """All entries a scan of the log finds, and the damage it stopped at, if any; blocks."""
    file = disk.open(directory / entry_log_name(log_id))
    try:
        scan = EntryLogScan(file.pread, file.size())
        return list(scan.entries()), scan.damage
    finally:
        file.close()
