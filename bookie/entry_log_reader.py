"""Reading entries back by their location.

Inside: open files of logs, reads that try the page cache on the loop and fall back to a thread.
Not inside: where entries lie (``index``), writing (``entry_log``).
Always: an entry that is returned has the ids that were asked for; anything else is an
``EntryUnreadableError``, never "no such entry".

Source: DefaultEntryLogger.java (readEntry, its id check); reference on bookie storage 8.7.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bookie.disk import Disk, File
from bookie.entry_log_format import (
    ENTRY_BYTES_MIN,
    LENGTH_BYTES,
    RECORD_PREFIX,
    entry_log_name,
    split_location,
)
from bookie.errors import EntryUnreadableError
from bookie.journal_format import RECORD_BYTES_MAX

_READ_GUESS_BYTES = 4096
_RUN_BYTES_MAX = 256 << 10  # one read
_OPEN_LOGS_MAX = 64


class _OpenLog:
    __slots__ = ("file", "is_dropped", "users")

    def __init__(self, file: File) -> None:
        self.file = file
        self.users = 0
        self.is_dropped = False


class EntryLogReader:
    """The logs of one directory, for readers. On the loop; waits for the disk in reader threads only."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self._open: dict[int, _OpenLog] = {}  # the one used last is last

    async def read(self, ledger_id: int, entry_id: int, location: int) -> bytes:
        """The entry at the location. ``EntryUnreadableError`` if it is not there or is another one."""
        log_id, offset = split_location(location)
        opened = await self._acquire(ledger_id, entry_id, log_id)
        try:
            file, start = opened.file, offset - LENGTH_BYTES
            data = file.pread_cached(_READ_GUESS_BYTES, start)
            if data is None or len(data) < RECORD_PREFIX.size:
                data = await self._pread(ledger_id, entry_id, file, _READ_GUESS_BYTES, start)
            if len(data) < RECORD_PREFIX.size:
                raise _unreadable(ledger_id, entry_id, location, "the log ends before it")
            size, stored_ledger_id, stored_entry_id = RECORD_PREFIX.unpack_from(data)
            if (stored_ledger_id, stored_entry_id) != (ledger_id, entry_id):
                what = f"entry {stored_entry_id} of ledger {stored_ledger_id} is there"
                raise _unreadable(ledger_id, entry_id, location, what)
            if not ENTRY_BYTES_MIN <= size <= RECORD_BYTES_MAX:
                raise _unreadable(ledger_id, entry_id, location, f"its length reads as {size}")
            end = LENGTH_BYTES + size
            if len(data) < end:
                whole = file.pread_cached(end, start)
                if whole is None or len(whole) < end:
                    whole = await self._pread(ledger_id, entry_id, file, end, start)
                if len(whole) < end:
                    raise _unreadable(ledger_id, entry_id, location, "the log ends within it")
                data = whole
            return data[LENGTH_BYTES:end]
        finally:
            self._release(opened)

    async def read_run(
        self, ledger_id: int, first_entry_id: int, locations: Sequence[int], size_bytes_max: int
    ) -> list[bytes]:
        """Entries with consecutive ids from ``first_entry_id``: as many as one read brings, at least one.

        ``size_bytes_max`` counts 4 bytes more for each; the first is returned whatever its size.
        """
        base = locations[0] - LENGTH_BYTES
        # Ascending locations of one log are most often neighbours: one read up to the last that fits.
        stop_location = locations[0] + min(_RUN_BYTES_MAX, size_bytes_max)
        count = 1
        for location in locations:
            if not base < location < stop_location:
                break
            count += 1
        count -= 1
        if count < 2:
            return [await self.read(ledger_id, first_entry_id, locations[0])]
        log_id, offset = split_location(locations[0])
        span = locations[count - 1] - base
        # The length of the last entry is not known, but most entries of a run have about the same.
        wanted = min(span + 2 * (span // (count - 1)), _RUN_BYTES_MAX + _READ_GUESS_BYTES)
        opened = await self._acquire(ledger_id, first_entry_id, log_id)
        try:
            data = opened.file.pread_cached(wanted, offset - LENGTH_BYTES)
            if data is None or len(data) < span:
                data = await self._pread(
                    ledger_id, first_entry_id, opened.file, wanted, offset - LENGTH_BYTES
                )
        finally:
            self._release(opened)
        bodies: list[bytes] = []
        append, unpack = bodies.append, RECORD_PREFIX.unpack_from
        last_start = len(data) - RECORD_PREFIX.size
        entry_id, used = first_entry_id, 0
        for location in locations[:count]:
            at = location - base
            if at - LENGTH_BYTES > last_start:
                break
            size, stored_ledger_id, stored_entry_id = unpack(data, at - LENGTH_BYTES)
            used += size + LENGTH_BYTES
            if (
                stored_entry_id != entry_id
                or stored_ledger_id != ledger_id
                or size < ENTRY_BYTES_MIN
                or at + size > len(data)
                or (used > size_bytes_max and bodies)
            ):
                break
            append(data[at : at + size])
            entry_id += 1
        if not bodies:  # alone it comes out whole, or with the error that says what is wrong
            return [await self.read(ledger_id, first_entry_id, locations[0])]
        return bodies

    def forget(self, log_id: int) -> None:
        """The log is being deleted; readers that are in it finish undisturbed."""
        if (opened := self._open.pop(log_id, None)) is not None:
            opened.is_dropped = True
            self._close_unused(opened)

    def close(self) -> None:
        for log_id in list(self._open):
            self.forget(log_id)

    async def _acquire(self, ledger_id: int, entry_id: int, log_id: int) -> _OpenLog:
        opened = self._open.pop(log_id, None)
        if opened is None:
            path = self._directory / entry_log_name(log_id)
            try:
                file = await self._disk.run(self._disk.open, path)
            except OSError as exc:
                raise EntryUnreadableError(ledger_id, entry_id, str(exc)) from exc
            if (meanwhile := self._open.pop(log_id, None)) is not None:
                file.close()
                opened = meanwhile
            else:
                opened = _OpenLog(file)
        self._open[log_id] = opened
        opened.users += 1
        if len(self._open) > _OPEN_LOGS_MAX:
            self.forget(next(iter(self._open)))
        return opened

    def _release(self, opened: _OpenLog) -> None:
        opened.users -= 1
        self._close_unused(opened)

    def _close_unused(self, opened: _OpenLog) -> None:
        if opened.is_dropped and opened.users == 0:
            opened.file.close()

    async def _pread(self, ledger_id: int, entry_id: int, file: File, size_bytes: int, offset: int) -> bytes:
        try:
            return await self._disk.run(file.pread, size_bytes, offset)
        except OSError as exc:
            raise EntryUnreadableError(ledger_id, entry_id, str(exc)) from exc


def _unreadable(ledger_id: int, entry_id: int, location: int, what: str) -> EntryUnreadableError:
    log_id, offset = split_location(location)
    return EntryUnreadableError(
        ledger_id, entry_id, f"at offset {offset} of {entry_log_name(log_id)}: {what}"
    )
