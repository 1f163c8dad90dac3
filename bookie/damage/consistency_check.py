"""Checks a stopped bookie's directory: each indexed entry must be at its location.

Inside: the scan of the index and of the entry logs. Not inside: payloads and digests; clients and the
scrubber (``scrubber``) check those.
Always: memory does not grow with the stored data. No file is changed.

Found: an index that cannot be read, missing logs, entries after the end of their log, and entries with
another id or an impossible length.

Source: InterleavedLedgerStorage.java (localConsistencyCheck), LocalConsistencyCheckCommand.java.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs

from bookie.disk.disk import Disk, File
from bookie.entrylog.format import (
    ENTRY_BYTES_MIN,
    LENGTH_BYTES,
    RECORD_PREFIX,
    entry_log_name,
    split_location,
)
from bookie.errors import FormatError
from bookie.index.entry_index import EntryRange
from bookie.index.index_view import IndexView
from bookie.limits import RECORD_BYTES_MAX

_OPEN_LOGS_MAX = 64
_WINDOW_BYTES = 256 << 10
_DENSE_BYTES = 8192  # entries closer than this are read together


@attrs.define
class ConsistencyResult:
    """The numbers of checked ledgers and entries, and of problems."""

    ledgers: int = 0
    entries: int = 0
    problems: int = 0


def check_directory(
    disk: Disk,
    directory: Path,
    index: IndexView,
    *,
    on_problem: Callable[[str], None],
    on_progress: Callable[[int], None],
) -> ConsistencyResult:
    """Check every indexed entry. Blocks.

    Args:
        on_problem: Called with a description of each problem.
        on_progress: Called with the number of entries checked so far.
    """
    return _ConsistencyCheck(disk, directory, index, on_problem, on_progress).run()


class _ConsistencyCheck:
    def __init__(
        self,
        disk: Disk,
        directory: Path,
        index: IndexView,
        on_problem: Callable[[str], None],
        on_progress: Callable[[int], None],
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._index = index
        self._on_problem = on_problem
        self._on_progress = on_progress
        self._result = ConsistencyResult()
        self._logs: dict[int, tuple[File, int] | None] = {}  # None: the log is missing
        self._window = b""
        self._window_at = (-1, 0)  # log id and offset

    def run(self) -> ConsistencyResult:
        try:
            for ledger_id, _ in self._index.ledgers():
                self._result.ledgers += 1
                try:
                    for entry_range in self._index.ranges(ledger_id):
                        self._check_range(entry_range)
                        self._on_progress(self._result.entries)
                except (FormatError, OSError) as exc:
                    self._report(f"ledger {ledger_id}: {exc}")
        except (FormatError, OSError) as exc:
            self._report(f"the ledgers cannot be listed: {exc}")
        finally:
            for opened in self._logs.values():
                if opened is not None:
                    opened[0].close()
        return self._result

    def _report(self, problem: str) -> None:
        self._result.problems += 1
        self._on_problem(problem)

    def _check_range(self, entry_range: EntryRange) -> None:
        located = sorted(zip(entry_range.locations, entry_range.entry_ids, strict=True))
        self._result.entries += len(located)
        for at, (location, entry_id) in enumerate(located):
            following = located[at + 1][0] if at + 1 < len(located) else location + _DENSE_BYTES
            problem = self._check_entry(
                entry_range.ledger_id, entry_id, location, is_dense=following - location < _DENSE_BYTES
            )
            if problem is not None:
                log_id, offset = split_location(location)
                where = f"offset {offset} of {entry_log_name(log_id)}"
                self._report(f"entry {entry_range.ledger_id}:{entry_id}, at {where}: {problem}")

    def _check_entry(self, ledger_id: int, entry_id: int, location: int, *, is_dense: bool) -> str | None:
        log_id, offset = split_location(location)
        opened = self._open(log_id)
        if opened is None:
            return "the log is missing"
        file, size_bytes = opened
        start = offset - LENGTH_BYTES
        begin = start - self._window_at[1]
        if self._window_at[0] != log_id or begin < 0 or begin + RECORD_PREFIX.size > len(self._window):
            try:
                self._window = file.pread(_WINDOW_BYTES if is_dense else RECORD_PREFIX.size, start)
            except OSError as exc:
                return str(exc)
            self._window_at, begin = (log_id, start), 0
        if len(self._window) - begin < RECORD_PREFIX.size:
            return "the log ends before it"
        length, stored_ledger_id, stored_entry_id = RECORD_PREFIX.unpack_from(self._window, begin)
        if (stored_ledger_id, stored_entry_id) != (ledger_id, entry_id):
            return f"entry {stored_ledger_id}:{stored_entry_id} is stored there"
        if not ENTRY_BYTES_MIN <= length <= RECORD_BYTES_MAX:
            return f"its length reads as {length}"
        if offset + length > size_bytes:
            return "the log ends within it"
        return None

    def _open(self, log_id: int) -> tuple[File, int] | None:
        if log_id in self._logs:
            return self._logs[log_id]
        if len(self._logs) >= _OPEN_LOGS_MAX:
            oldest = self._logs.pop(next(iter(self._logs)))
            if oldest is not None:
                oldest[0].close()
        try:
            file = self._disk.open(self._directory / entry_log_name(log_id))
        except FileNotFoundError:
            opened = None
        else:
            opened = (file, file.size())
        self._logs[log_id] = opened
        return opened
