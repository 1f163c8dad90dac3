"""Writing entry logs: appends the entries of a write cache.

Inside: the choice of a log: one for all ledgers, or one for each; when a log is full or idle. Not inside: the
file (``open_log``), the format (``entrylog.format``), ids (``entrylog.ids``), reading entries
(``entrylog.reader``), locations (``index``).
Always: a location is returned only after the system call that wrote the entry has returned. No log is
appended to after an error, or by a later process. An id is never used twice. ``discard`` takes away only
bytes that were appended since the last ``keep``, which no index has named.

Source: DefaultEntryLogger.java, EntryLogManagerForSingleEntryLog.java,
EntryLogManagerForEntryLogPerLedger.java; docs/storage-format.md 4.3, 4.8;
apache/bookkeeper#2728, #4607, #4855.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path

import attrs

from bookie.disk.disk import Buffer, Disk
from bookie.entrylog.format import (
    HEADER_BYTES,
    LENGTH_BYTES,
    OFFSET_MAX,
    EntryLogScan,
    ScannedEntry,
    entry_log_name,
)
from bookie.entrylog.ids import EntryLogIds, entry_log_ids
from bookie.entrylog.open_log import OpenLog, cut_back
from bookie.index.entry_index import EntryRange
from bookie.length_prefixes import LengthPrefixes
from bookie.limits import RECORD_BYTES_MAX
from ledger.runtime.log_lines import get_logger

__all__ = ["EntryLogWriter", "PerLedgerConfig", "entry_log_ids", "scan_log"]

log = get_logger(__name__)

_WRITE_BYTES = 1 << 20
_GATHER_ABOVE_BYTES = 4096  # from this mean entry size on, a gathering write is faster than joining
_SHARED = -1  # the key of the log shared by all ledgers


@attrs.frozen(kw_only=True)
class PerLedgerConfig:
    """One log for each ledger. For few ledgers: a deleted ledger's log needs no compaction."""

    open_logs_max: int = attrs.field(default=500, validator=attrs.validators.ge(1))
    idle_s: float = 300  # a log without an append for this long is completed


class _LedgerLog(OpenLog):
    is_touched = True  # appended to since the last call of ``complete_idle``
    idle_since_s = 0.0


class EntryLogWriter:
    """Appends to the logs of one directory. Used by the storage thread only."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        *,
        log_bytes_max: int,
        per_ledger: PerLedgerConfig | None = None,
        greatest_indexed: Callable[[], int] = lambda: -1,
    ) -> None:
        """``per_ledger``: None for one shared log. ``greatest_indexed``: see ``EntryLogIds``."""
        assert HEADER_BYTES < log_bytes_max <= OFFSET_MAX  # a validator of ``StorageConfig``
        self._disk = disk
        self._directory = directory
        self._log_bytes_max = log_bytes_max
        self._per_ledger = per_ledger
        self.ids = EntryLogIds(disk, directory, greatest_indexed)
        # By ledger or ``_SHARED``, in order of last write, latest last.
        self._logs: dict[int, _LedgerLog] = {}
        self._kept_below: dict[int, int] = {}  # logs appended to since the last ``keep`` -> their size then
        self._prefixes = LengthPrefixes()

    def open_ids(self) -> set[int]:
        """Ids of the logs being written. They must not be deleted, moved or summarised."""
        return {one.log_id for one in self._logs.values()}

    def is_of_an_earlier_process(self, log_id: int) -> bool:
        """True if this process did not create the log, so that nothing more of it will be indexed."""
        return self.ids.first is None or log_id < self.ids.first

    def keep(self) -> None:
        """``discard`` must leave what was appended so far: it is synced, and the index may name it."""
        self._kept_below.clear()

    def discard(self) -> None:
        """After an error: close the open logs, and free what was appended since the last ``keep``.

        The index must name none of it. Logs an ``OSError`` and does not raise it.
        """
        self.abandon()
        cut, self._kept_below = self._kept_below, {}
        for log_id, size_bytes in cut.items():
            path = self._directory / entry_log_name(log_id)
            try:
                if size_bytes:
                    cut_back(self._disk, path, size_bytes)
                else:
                    self._disk.unlink(path)
            except FileNotFoundError:
                pass  # it could not be created
            except OSError as exc:  # garbage collection deletes it, since no index names it
                log.warning("%s: what a failed flush has written is not removed: %s", path, exc)
        if cut:
            with contextlib.suppress(OSError):
                self._disk.sync_directory(self._directory)

    def append(self, ledgers: Mapping[int, Mapping[int, bytes]]) -> Iterator[EntryRange]:
        """Append all entries in order of ledger and entry id; yield their locations.

        Durable after ``sync``. After an ``OSError`` the open logs are closed and never written again.
        """
        for ledger_id in sorted(ledgers):
            entries = ledgers[ledger_id]
            entry_ids = sorted(entries)
            bodies = list(map(entries.__getitem__, entry_ids))
            start = 0
            while start < len(bodies):
                stop = _slice_end(bodies, start)
                yield EntryRange(
                    ledger_id, entry_ids[start:stop], self._append(ledger_id, bodies[start:stop])
                )
                start = stop

    def sync(self) -> None:
        """Make all appended entries durable."""
        try:
            for one in self._logs.values():
                one.sync()
        except BaseException:
            self.abandon()
            raise

    def complete_idle(self, now_s: float) -> None:
        """Complete idle logs of single ledgers, so that garbage collection includes them.

        Call it between flushes only, when all logs are synced. If a log cannot be completed, for example
        on a full disk, it is closed without a map.
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
                    log.warning(
                        "%s is closed without a map: %s", self._directory / entry_log_name(one.log_id), exc
                    )

    def close_dead(self, is_live: Callable[[int], bool]) -> dict[int, dict[int, int]]:
        """Close open logs without a live ledger; their bytes by ledger, by log id. Between flushes only."""
        dead: dict[int, dict[int, int]] = {}
        for key, one in list(self._logs.items()):
            if one.ledger_bytes and not any(map(is_live, one.ledger_bytes)):
                del self._logs[key]
                one.close()  # without a map: the log will be deleted, and the disk may be full
                dead[one.log_id] = one.ledger_bytes
        return dead

    def close(self) -> None:
        """Complete the open logs."""
        try:
            while self._logs:
                self._logs.popitem()[1].complete()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the open logs without maps, after an error."""
        while self._logs:
            self._logs.popitem()[1].close()

    def _append(self, ledger_id: int, bodies: Sequence[bytes]) -> list[int]:
        lengths = list(map(len, bodies))
        size_bytes = sum(lengths) + LENGTH_BYTES * len(bodies)
        if size_bytes > RECORD_BYTES_MAX and max(lengths) > RECORD_BYTES_MAX:
            raise AssertionError(
                "the entry is longer than a reader accepts"
            )  # ``Journals.submit`` refuses it
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
            log_id = self.ids.allocate()
            self._kept_below[log_id] = 0
            one = _LedgerLog(self._disk, self._directory / entry_log_name(log_id), log_id)
        self._kept_below.setdefault(one.log_id, one.position)
        one.is_touched = True
        self._logs[key] = one
        return one


def _slice_end(bodies: Sequence[bytes], start: int) -> int:
    """The end of the slice from ``start`` that one write takes."""
    stop = min(start + 1024, len(bodies))
    size_bytes = 0
    for at in range(start, stop):
        size_bytes += len(bodies[at])
        if size_bytes >= _WRITE_BYTES:
            return at + 1
    return stop


def scan_log(disk: Disk, directory: Path, log_id: int) -> tuple[list[ScannedEntry], str | None]:
    """All entries that a scan of the log finds, and the damage that ended it, if any; blocks."""
    file = disk.open(directory / entry_log_name(log_id))
    try:
        scan = EntryLogScan(file.pread, file.size())
        return list(scan.entries()), scan.damage
    finally:
        file.close()
