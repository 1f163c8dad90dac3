"""Reading entries of one ledger from an entry log that this process can open, not through a socket.

Inside: the open log and the entries that the bookie located in it. Not inside: asking the bookie where they
are (``replica_reads``), verifying them and falling back to the bookie (``read.handle``).
Always: only entries that the bookie located for this handle are returned, and their ids and digests are still
to be verified; the file is closed once neither the entries nor a read need it.

The bookie may compact, delete or replace the log at any time. An open file keeps its bytes; a file that is
not open yet is opened only if it is still the one that the bookie named.

Source: our own.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from ledger.context import EntryLogFile, OpenEntryLog
from ledger.packed_entries import SIZE, SIZE_BYTES, PackedEntries, unpack_whole_entries
from ledger.wire.messages import LocatedReply

PAUSE_S = 1.0  # without local reads after one failed
_ENTRY_BYTES_MAX = 8 << 20  # what a damaged size may claim


class _Log:
    """An open entry log."""

    __slots__ = ("file", "is_dropped", "users")

    def __init__(self, file: EntryLogFile) -> None:
        self.file: EntryLogFile | None = file
        self.users = 0
        self.is_dropped = False

    def drop(self) -> None:
        """Close the file as soon as no read uses it."""
        self.is_dropped = True
        self._close_unused()

    def release(self) -> None:
        self.users -= 1
        self._close_unused()

    def _close_unused(self) -> None:
        if self.is_dropped and not self.users and self.file is not None:
            self.file.close()
            self.file = None


class LocalReads:
    """The located entries of one handle. On the loop."""

    def __init__(self, open_log: OpenEntryLog) -> None:
        self._open_log = open_log
        self._log: _Log | None = None
        self._next_entry_id = self._first_entry_id = 0
        self._offset = 0  # of the first located entry, in the log
        self._starts: Sequence[int] = ()  # of the located entries, after the offset
        self._scratch = bytearray()
        self._again_at = 0.0

    def __repr__(self) -> str:
        stop = self._first_entry_id + len(self._starts)
        return f"<LocalReads, entries {self._next_entry_id} to {stop - 1} are located>"

    @property
    def may_locate(self) -> bool:
        """True if it makes sense to ask where entries are."""
        return trio.current_time() >= self._again_at

    def holds(self, entry_id: int) -> bool:
        """True if the entry is the next one of those that are located."""
        return self._log is not None and self._next_entry_id == entry_id

    def take(self, place: LocatedReply) -> bool:
        """Note where entries are; False if the log cannot be opened."""
        self.drop()
        if not place.starts or place.starts[0] or place.offset < 0:
            self.fail()
            return False
        try:
            self._log = _Log(self._open_log(place.log_id, place.device, place.inode))
        except OSError:  # deleted meanwhile, replaced, or not ours to read
            self.fail()
            return False
        self._next_entry_id = self._first_entry_id = place.entry_id
        self._offset, self._starts = place.offset, place.starts
        return True

    async def read(self, last: int, size_bytes_max: int) -> PackedEntries:
        """The next located entries, not beyond ``last``; none if their bytes are not there."""
        log, at = self._log, self._next_entry_id - self._first_entry_id
        assert log is not None  # take() has set it
        starts = self._starts[at : last + 1 - self._first_entry_id]
        begin, offset = starts[0], self._offset + starts[0]
        # The size of the last entry is unknown; most entries of a ledger have about the same.
        average = (self._starts[-1] - begin) // max(1, len(self._starts) - at - 1)
        wanted = min(max(size_bytes_max, SIZE_BYTES), starts[-1] - begin + average + average // 4 + 512)
        log.users += 1
        try:
            data = await self._pread(log, wanted, offset)
            if len(data) >= SIZE_BYTES:
                whole = SIZE_BYTES + SIZE.unpack_from(data)[0]
                if len(data) < whole <= _ENTRY_BYTES_MAX:
                    data = await self._pread(log, whole, offset)
        except OSError:
            return PackedEntries(b"", (), 0)
        finally:
            log.release()
        entries = unpack_whole_entries(data, len(starts))
        # Between two entries may lie what is not theirs, such as an older copy of the second.
        expected = [start - begin + SIZE_BYTES for start in starts[: len(entries)]]
        if list(entries.starts) == expected:
            return entries
        pairs = enumerate(zip(entries.starts, expected, strict=True))
        return entries[: next(at for at, (found, located) in pairs if found != located)]

    def advance(self, count: int) -> None:
        """The first ``count`` of the entries just read are verified; the next read begins after them."""
        self._next_entry_id += count
        if self._next_entry_id >= self._first_entry_id + len(self._starts):
            self.drop()

    def fail(self) -> None:
        """The located bytes are not the entries: forget them, and ask for none for a while."""
        self._again_at = trio.current_time() + PAUSE_S
        self.drop()

    def drop(self) -> None:
        """Forget the located entries."""
        log, self._log = self._log, None
        if log is not None:
            log.drop()

    async def _pread(self, log: _Log, size_bytes: int, offset: int) -> bytes:
        assert log.file is not None, "a log that is read is open"  # a log that is read is open
        if len(self._scratch) < size_bytes:
            self._scratch = bytearray(size_bytes)
        view = memoryview(self._scratch)[:size_bytes]
        try:
            count = log.file.read_at_hand(view, offset)
        except OSError:
            count = 0  # it would wait, or the file system lacks the flag
        if count == size_bytes:
            data = bytes(view)  # before the checkpoint: the scratch is used again
            await trio.lowlevel.checkpoint()
            return data
        return await log.file.read(size_bytes, offset)
