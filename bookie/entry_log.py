"""Writing entry logs: append what the write cache held.

Inside: which log takes which entries: one for all ledgers, or one for each; when a log is full or idle. Not
inside: the file (``open_log``), the format (``entry_log_format``), ids (``entry_log_ids``), reading entries
(``entry_log_reader``), where entries lie (``index``).
Always: a location is handed out only after the system call that wrote the entry has returned; a log is
never appended to after an error or by a later process; an id is never used twice.

Source: DefaultEntryLogger.java, EntryLogManagerForSingleEntryLog.java,
EntryLogManagerForEntryLogPerLedger.java; reference on bookie storage 3.5, 7.3 (#2728, #4607, #4855), 8.5.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path

import attrs

from bookie.disk import Buffer, Disk
from bookie.entry_log_format import (
    HEADER_BYTES,
    LENGTH_BYTES,
    OFFSET_MAX,
    EntryLogScan,
    FoundEntry,
    entry_log_name,
)
from bookie.entry_log_ids import EntryLogIds, entry_log_ids
from bookie.index import LedgerRun
from bookie.journal import LengthPrefixes
from bookie.journal_format import RECORD_BYTES_MAX
from bookie.open_log import OpenLog

__all__ = ["EntryLogWriter", "PerLedgerConfig", "entry_log_ids", "scan_log"]

log = logging.getLogger(__name__)

_WRITE_BYTES = 1 << 20
_GATHER_ABOVE_BYTES = 4096  # mean size of entries from which a gathering write beats joining
_SHARED = -1  # the key of the log that all ledgers share


@attrs.frozen(kw_only=True)
class PerLedgerConfig:
    """Each ledger writes to a log of its own: for few ledgers, whose logs then die as a whole."""

    open_logs_max: int = attrs.field(default=500, validator=attrs.validators.ge(1))
    idle_s: float = 300  # a log that took nothing for so long is completed


class _LedgerLog(OpenLog):
    is_touched = True  # since it was last asked whether it is idle
    idle_since_s = 0.0


class EntryLogWriter:
    """Appends to the logs of one directory. Everything here is the storage thread's."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        *,
        log_bytes_max: int,
        per_ledger: PerLedgerConfig | None = None,
        greatest_indexed: Callable[[], int] = lambda: -1,
    ) -> None:
        """``per_ledger``: None for one log that all share. ``greatest_indexed``: see ``EntryLogIds``."""
        assert HEADER_BYTES < log_bytes_max <= OFFSET_MAX
        self._disk = disk
        self._directory = directory
        self._log_bytes_max = log_bytes_max
        self._per_ledger = per_ledger
        self.ids = EntryLogIds(disk, directory, greatest_indexed)
        self._logs: dict[int, _LedgerLog] = {}  # by ledger or ``_SHARED``; the one written last is last
        self._prefixes = LengthPrefixes()

    def open_ids(self) -> set[int]:
        """Ids of the logs that are still written to. Nobody may delete, move or summarise them."""
        return {one.log_id for one in self._logs.values()}

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
        try:
            for one in self._logs.values():
                one.sync()
        except BaseException:
            self.abandon()
            raise

    def complete_idle(self, now_s: float) -> None:
        """Complete ledgers' own logs that took nothing for long, so that garbage collection sees them.

        Only between flushes: all that is in them is synced. One that cannot be completed, as the disk is
        full, is closed without its map.
        """
        if self._per_ledger is None:
            return
        for ledger_id, one in list(self._logs.items()):
            if one.is_touched:
                one.is_touched, one.idle_since_s = False, now_s
            elif now_s - one.idle_since_s >= self._per_ledger.idle_s:
                del self._logs[ledger_id]
                try:
                    one.complete()
                except OSError as exc:
                    log.warning("%s has no map: %s", self._directory / entry_log_name(one.log_id), exc)

    def close_dead(self, is_live: Callable[[int], bool]) -> dict[int, dict[int, int]]:
        """Close open logs in which no ledger is live any more; what they hold, by id. Between flushes."""
        dead: dict[int, dict[int, int]] = {}
        for key, one in list(self._logs.items()):
            if one.ledger_bytes and not any(map(is_live, one.ledger_bytes)):
                del self._logs[key]
                one.close()  # without a map: it is about to be deleted, and the disk may be full
                dead[one.log_id] = one.ledger_bytes
        return dead

    def close(self) -> None:
        """Complete the open logs with their maps."""
        try:
            while self._logs:
                self._logs.popitem()[1].complete()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the open logs as they are, after an error."""
        while self._logs:
            self._logs.popitem()[1].close()

    def _append(self, ledger_id: int, bodies: Sequence[bytes]) -> list[int]:
        lengths = list(map(len, bodies))
        size_bytes = sum(lengths) + LENGTH_BYTES * len(bodies)
        if size_bytes > RECORD_BYTES_MAX:
            assert max(lengths) <= RECORD_BYTES_MAX, "an entry that could not be read back"
        parts: list[Buffer] = [b""] * (2 * len(bodies))
        prefixes = self._prefixes
        parts[::2] = [prefixes[length] for length in lengths]
        parts[1::2] = bodies
        if size_bytes <= len(bodies) * _GATHER_ABOVE_BYTES:
            parts = [b"".join(parts)]
        try:
            one = self._log_for(ledger_id, size_bytes)
            at = one.append(ledger_id, parts, size_bytes)
        except BaseException:
            self.abandon()
            raise
        first = (one.log_id << 32) + at + LENGTH_BYTES
        locations = list(accumulate([length + LENGTH_BYTES for length in lengths], initial=first))
        locations.pop()
        return locations

    def _log_for(self, ledger_id: int, size_bytes: int) -> OpenLog:
        key, open_logs_max = _SHARED, 1
        if self._per_ledger is not None:
            key, open_logs_max = ledger_id, self._per_ledger.open_logs_max
        one = self._logs.pop(key, None)
        if one is not None and one.position + size_bytes > self._log_bytes_max:
            one.complete()
            one = None
        if one is None:
            while len(self._logs) >= open_logs_max:
                self._logs.pop(next(iter(self._logs))).complete()
            log_id = self.ids.take()
            one = _LedgerLog(self._disk, self._directory / entry_log_name(log_id), log_id)
        one.is_touched = True
        self._logs[key] = one
        return one


def _slice_end(bodies: Sequence[bytes], start: int) -> int:
    """Where a piece of about one write ends that begins at ``start``."""
    stop = min(start + 1024, len(bodies))
    size_bytes = 0
    for at in range(start, stop):
        size_bytes += len(bodies[at])
        if size_bytes >= _WRITE_BYTES:
            return at + 1
    return stop


def scan_log(disk: Disk, directory: Path, log_id: int) -> tuple[list[FoundEntry], str | None]:
    """All entries a scan of the log finds, and the damage it stopped at, if any; blocks."""
    file = disk.open(directory / entry_log_name(log_id))
    try:
        scan = EntryLogScan(file.pread, file.size())
        return list(scan.entries()), scan.damage
    finally:
        file.close()
