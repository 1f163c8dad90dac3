"""Reading entries by their location.

Inside: open files of logs, reads that try the page cache on the loop and fall back to a thread.
Not inside: locations (``index``), writing (``entrylog.writer``), caching of entries (``entry_reads``).
Always: a returned entry has the requested ids. All other bytes are an ``EntryUnreadableError``, never "no
such entry". Each length is compared with its limit before it is used. A file stays open while a read uses it,
also if its log is deleted meanwhile.

Source: DefaultEntryLogger.java (readEntry, its id check); docs/storage-format.md 4.6.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from struct import Struct

from bookie.disk.disk import Disk, File
from bookie.entrylog.format import (
    ENTRY_BYTES_MIN,
    LENGTH_BYTES,
    RECORD_PREFIX,
    entry_log_name,
    split_location,
)
from bookie.errors import EntryUnreadableError
from bookie.limits import RECORD_BYTES_MAX
from ledger.packed_entries import PackedEntries

FIRST_READ_BYTES = 4096  # size of the first read for an entry of unknown length
READ_BYTES_MAX = 256 << 10  # size of one read ahead of the requests
BATCH_BYTES_MAX = 1 << 20  # size of one read for a batch that was requested
_OPEN_LOGS_MAX = 64
_LOST_ERRNOS = (errno.EIO, errno.ENOENT)  # a bad sector; a log that is gone
_UNIFORM_MIN = 4  # entries of one size; of fewer each one is looked at
_UNIFORM_BYTES_MAX = 4096
_BLOCK_ENTRIES = 64
_COLD_MISSES = 3  # after this many misses in a row, only some reads try the page cache
_COLD_TRY_EVERY = 16  # then every this many reads try it


class _LogFile:
    __slots__ = ("file", "is_dropped", "misses", "users")

    def __init__(self, file: File) -> None:
        self.file = file
        self.users = 0
        self.is_dropped = False
        self.misses = 0  # page-cache misses in a row

    def pread_cached(self, size_bytes: int, offset: int) -> bytes | None:
        """As ``File.pread_cached``, but mostly None without a system call after several misses.

        A miss is not free: Linux starts to read the pages, and that takes time of the loop.
        """
        if self.misses >= _COLD_MISSES and self.misses % _COLD_TRY_EVERY:
            self.misses += 1
            return None
        data = self.file.pread_cached(size_bytes, offset)
        self.misses = self.misses + 1 if data is None else 0
        return data


class EntryLogReader:
    """Reads the logs of one directory. Used on the loop; waits for the disk only in reader threads."""

    def __init__(self, disk: Disk, directory: Path, *, open_logs_max: int = _OPEN_LOGS_MAX) -> None:
        """``open_logs_max``: the maximum number of open files, besides those that reads are using."""
        assert open_logs_max > 0  # a constant of this module
        self._disk = disk
        self._directory = directory
        self._open_logs_max = open_logs_max
        self._open: dict[int, _LogFile] = {}  # in order of last use, latest last
        self._opening: dict[int, int] = {}  # log id -> number of reads that are opening it
        self._gone: set[int] = set()  # logs in ``_opening`` that were deleted meanwhile

    @property
    def open_logs_count(self) -> int:
        return len(self._open)

    async def read(self, ledger_id: int, entry_id: int, location: int, *, next_location: int = 0) -> bytes:
        """The entry at the location. ``EntryUnreadableError`` if another entry or no entry is there.

        ``next_location``: the location of a later entry, which this one must not overlap; 0: unknown.
        """
        span_bytes = _span_bytes(location, next_location)
        first_read_bytes = span_bytes if 0 < span_bytes <= READ_BYTES_MAX else FIRST_READ_BYTES
        log_id, offset = split_location(location)
        opened = await self._acquire(ledger_id, entry_id, log_id)
        try:
            file, start = opened.file, offset - LENGTH_BYTES
            data = opened.pread_cached(first_read_bytes, start)
            if data is not None and len(data) >= RECORD_PREFIX.size:
                size = _checked_size(data, ledger_id, entry_id, location, span_bytes)
                if size > len(data):
                    data = opened.pread_cached(size, start)
                if data is not None and len(data) >= size:
                    return data[LENGTH_BYTES:size]
            try:
                return await self._disk.run(
                    _read_one, file, ledger_id, entry_id, location, first_read_bytes, span_bytes
                )
            except OSError as exc:
                raise _failed(ledger_id, entry_id, exc) from exc
        finally:
            self._release(opened)

    async def read_batch(
        self, ledger_id: int, entry_ids: Sequence[int], locations: Sequence[int], size_bytes_max: int
    ) -> Sequence[bytes]:
        """The first entries, as many as one read returns, at least one. Neighbours are ``PackedEntries``.

        ``size_bytes_max`` counts 4 bytes more for each; the first entry is returned at any size. The result
        ends before an entry that does not match its id; ``EntryUnreadableError`` if that is the first one.
        """
        bytes_max = min(BATCH_BYTES_MAX, size_bytes_max)
        uniform_count = _uniform_count(locations, bytes_max)
        if uniform_count:
            count, span = uniform_count, (uniform_count - 1) * (locations[1] - locations[0])
        else:
            count, span = neighbours(locations, bytes_max)
        if count < 2:
            return [await self._read_first(ledger_id, entry_ids, locations)]
        log_id, offset = split_location(locations[0])
        start = offset - LENGTH_BYTES
        # The length of the last entry is unknown; most entries of a ledger have about the same length.
        average = span // (count - 1)
        wanted = span + (average if uniform_count else min(2 * average, bytes_max - span))
        opened = await self._acquire(ledger_id, entry_ids[0], log_id)
        try:
            data = opened.pread_cached(wanted, start)
            if data is None or len(data) < span:
                try:
                    data = await self._disk.run(opened.file.pread, wanted, start)
                except OSError as exc:
                    raise _failed(ledger_id, entry_ids[0], exc) from exc
        finally:
            self._release(opened)
        bodies: Sequence[bytes] | None = None
        if uniform_count:
            bodies = _split_uniform(data, ledger_id, entry_ids[:count], average)
        if bodies is None:
            bodies = _split(data, ledger_id, entry_ids[:count], locations[:count], size_bytes_max)
        if not bodies:  # read it alone: that returns it, or raises the error that names the damage
            return [await self._read_first(ledger_id, entry_ids, locations)]
        return bodies

    async def location_behind(self, ledger_id: int, entry_id: int, location: int) -> int:
        """The location of a neighbour right after the entry; 0 if the log ends within its prefix.

        Raises ``EntryUnreadableError`` if the entry is not there.
        """
        log_id, offset = split_location(location)
        opened = await self._acquire(ledger_id, entry_id, log_id)
        try:
            start = offset - LENGTH_BYTES
            data = opened.pread_cached(RECORD_PREFIX.size, start)
            if data is None:
                data = await self._disk.run(opened.file.pread, RECORD_PREFIX.size, start)
        except OSError as exc:
            raise _failed(ledger_id, entry_id, exc) from exc
        finally:
            self._release(opened)
        if len(data) < RECORD_PREFIX.size:
            return 0
        return location + _checked_size(data, ledger_id, entry_id, location, 0)

    async def _read_first(self, ledger_id: int, entry_ids: Sequence[int], locations: Sequence[int]) -> bytes:
        next_location = locations[1] if len(locations) > 1 else 0
        return await self.read(ledger_id, entry_ids[0], locations[0], next_location=next_location)

    def forget(self, log_id: int) -> None:
        """Close a deleted log's file. Reads that use it finish undisturbed."""
        if log_id in self._opening:
            self._gone.add(log_id)
        if (opened := self._open.pop(log_id, None)) is not None:
            self._drop(opened)

    def close(self) -> None:
        for log_id in list(self._open):
            self.forget(log_id)

    async def _acquire(self, ledger_id: int, entry_id: int, log_id: int) -> _LogFile:
        opened = self._open.pop(log_id, None)
        if opened is None:
            opened = await self._open_log(ledger_id, entry_id, log_id)
        opened.users += 1
        if opened.is_dropped:
            return opened  # the log was deleted while it was opened: only this read uses the file
        self._open[log_id] = opened
        while len(self._open) > self._open_logs_max:
            self._drop(self._open.pop(next(iter(self._open))))
        return opened

    async def _open_log(self, ledger_id: int, entry_id: int, log_id: int) -> _LogFile:
        path = self._directory / entry_log_name(log_id)
        self._opening[log_id] = self._opening.get(log_id, 0) + 1
        try:
            file = await self._disk.run(self._disk.open, path)
        except OSError as exc:
            raise _failed(ledger_id, entry_id, exc) from exc
        finally:
            self._opening[log_id] -= 1
            is_gone = log_id in self._gone
            if not self._opening[log_id]:
                del self._opening[log_id]
                self._gone.discard(log_id)
        opened = _LogFile(file)
        if is_gone:
            # If the file stayed open, the deleted log would occupy its space until other logs evicted it.
            opened.is_dropped = True
        elif (meanwhile := self._open.pop(log_id, None)) is not None:
            file.close()
            opened = meanwhile
        return opened

    def _release(self, opened: _LogFile) -> None:
        opened.users -= 1
        if opened.is_dropped and opened.users == 0:
            opened.file.close()

    def _drop(self, opened: _LogFile) -> None:
        opened.is_dropped = True
        if opened.users == 0:
            opened.file.close()


def _span_bytes(location: int, next_location: int) -> int:
    """Bytes from one entry to a later one in the same log; 0: unknown."""
    return (
        next_location - location if location < next_location and location >> 32 == next_location >> 32 else 0
    )


def _checked_size(data: bytes, ledger_id: int, entry_id: int, location: int, span_bytes: int) -> int:
    """Size of the first record in ``data``, including its length field."""
    size, stored_ledger_id, stored_entry_id = RECORD_PREFIX.unpack_from(data)
    if (stored_ledger_id, stored_entry_id) != (ledger_id, entry_id):
        what = f"entry {stored_entry_id} of ledger {stored_ledger_id} is stored there"
        raise unreadable(ledger_id, entry_id, location, what)
    if not ENTRY_BYTES_MIN <= size <= RECORD_BYTES_MAX:
        raise unreadable(ledger_id, entry_id, location, f"its length reads as {size}")
    if 0 < span_bytes < LENGTH_BYTES + size:
        raise unreadable(ledger_id, entry_id, location, f"its length, {size}, overlaps the next entry")
    return LENGTH_BYTES + int(size)


def _read_one(
    file: File, ledger_id: int, entry_id: int, location: int, first_read_bytes: int, span_bytes: int
) -> bytes:
    """As ``EntryLogReader.read``, in one job of a reader thread. ``OSError`` if the disk fails."""
    start = split_location(location)[1] - LENGTH_BYTES
    data = file.pread(first_read_bytes, start)
    if len(data) < RECORD_PREFIX.size:
        raise unreadable(ledger_id, entry_id, location, "the log ends before it")
    size = _checked_size(data, ledger_id, entry_id, location, span_bytes)
    if len(data) < size:
        data = file.pread(size, start)
        if len(data) < size:
            raise unreadable(ledger_id, entry_id, location, "the log ends within it")
        if _checked_size(data, ledger_id, entry_id, location, span_bytes) != size:
            raise unreadable(ledger_id, entry_id, location, "two reads of it return different lengths")
    return data[LENGTH_BYTES:size]


def neighbours(locations: Sequence[int], bytes_max: int) -> tuple[int, int]:
    """How many of the locations one read can cover, and the distance from the first to the last of them.

    Ascending locations in one log are usually adjacent records.
    """
    first = locations[0]
    last, count = first, 1
    stop = first + bytes_max
    for location in locations[1:]:
        if not last < location < stop:
            break
        last = location
        count += 1
    return count, last - first


def _split(
    data: bytes, ledger_id: int, entry_ids: Sequence[int], locations: Sequence[int], size_bytes_max: int
) -> Sequence[bytes]:
    """The entries in ``data``, which begins with the length of the first. Ends before an entry that is
    incomplete or does not match its id."""
    unpack = RECORD_PREFIX.unpack_from
    size_bytes, used = len(data), 0
    begins: list[int] = []
    ends: list[int] = []
    starts = [location - locations[0] for location in locations]
    for entry_id, start, limit in zip(entry_ids, starts, [*starts[1:], size_bytes], strict=True):
        if start > size_bytes - RECORD_PREFIX.size:
            break
        size, stored_ledger_id, stored_entry_id = unpack(data, start)
        at = start + LENGTH_BYTES
        used += size + LENGTH_BYTES
        if (
            stored_entry_id != entry_id
            or stored_ledger_id != ledger_id
            or size < ENTRY_BYTES_MIN
            or at + size > limit  # overlaps the next entry
            or at + size > size_bytes  # incomplete in ``data``
            or (used > size_bytes_max and begins)
        ):
            break
        begins.append(at)
        ends.append(at + size)
    if starts[1 : len(begins)] == ends[:-1]:
        return PackedEntries(data, begins, ends[-1] if ends else 0)
    return [data[at:end] for at, end in zip(begins, ends, strict=True)]


def _uniform_count(locations: Sequence[int], bytes_max: int) -> int:
    """How many entries one read of ``bytes_max`` covers if all locations are equally far from each other, as
    those of entries of one size are; else 0, also for few entries."""
    if len(locations) < _UNIFORM_MIN:
        return 0
    first, step = locations[0], locations[1] - locations[0]
    if not LENGTH_BYTES + ENTRY_BYTES_MIN <= step <= _UNIFORM_BYTES_MAX:
        return 0
    count = min(len(locations), bytes_max // step)
    if count < _UNIFORM_MIN or tuple(locations[:count]) != tuple(range(first, first + count * step, step)):
        return 0
    return count


@lru_cache(maxsize=64)
def _record_layout(step: int, count: int) -> Struct:
    """The layout of records of ``step`` bytes, length included: length, ledger id, entry id of each."""
    record = f"{RECORD_PREFIX.format[1:]}{step - RECORD_PREFIX.size}x"
    return Struct(RECORD_PREFIX.format[0] + record * count)


def _split_uniform(data: bytes, ledger_id: int, entry_ids: Sequence[int], step: int) -> PackedEntries | None:
    """As ``_split``, by a few calls for many entries, if all have ``step`` bytes and are sound; else None."""
    count = len(entry_ids)
    stop = count * step
    if len(data) < stop:
        return None
    view = memoryview(data)
    at = 0
    # In blocks: one record at a time would leave a tuple for each to the garbage collector.
    for block_count in (_BLOCK_ENTRIES, 1):
        end = count if block_count == 1 else count - count % block_count
        for block in _record_layout(step, block_count).iter_unpack(view[at * step : end * step]):
            if (
                block[::3].count(step - LENGTH_BYTES) != block_count
                or block[1::3].count(ledger_id) != block_count
                or block[2::3] != tuple(entry_ids[at : at + block_count])
            ):
                return None
            at += block_count
    return PackedEntries(data, range(LENGTH_BYTES, stop + 1, step), stop)


def unreadable(ledger_id: int, entry_id: int, location: int, what: str) -> EntryUnreadableError:
    """The error for an entry that is not at its location; names the log and the offset."""
    log_id, offset = split_location(location)
    return EntryUnreadableError(
        ledger_id, entry_id, f"at offset {offset} of {entry_log_name(log_id)}: {what}", is_lost=True
    )


def _failed(ledger_id: int, entry_id: int, error: OSError) -> EntryUnreadableError:
    # Without a descriptor or memory the read fails although the entry is sound.
    return EntryUnreadableError(ledger_id, entry_id, str(error), is_lost=error.errno in _LOST_ERRNOS)
