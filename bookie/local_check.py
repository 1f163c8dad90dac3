"""Whether every entry the index names is where it says: a look at a directory while no bookie runs on it.

Inside: the walk, from the index to the entry logs. Not inside: payloads and digests, which are the clients'
and the scrubber's (``scrubber``).
Always: memory does not grow with what is stored; nothing is changed.

Found: an index that cannot be read, logs that are gone, entries behind the end of their log, with another id
or an impossible length.

Source: InterleavedLedgerStorage.java (localConsistencyCheck), LocalConsistencyCheckCommand.java.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs

from bookie.disk import Disk, File
from bookie.entry_log_format import (
    ENTRY_BYTES_MIN,
    LENGTH_BYTES,
    RECORD_PREFIX,
    entry_log_name,
    split_location,
)
from bookie.errors import FormatError
from bookie.index import LedgerRun
from bookie.index_view import IndexView
from bookie.journal_format import RECORD_BYTES_MAX

_OPEN_LOGS_MAX = 64
_WINDOW_BYTES = 256 << 10
_DENSE_BYTES = 8192  # entries closer than this to each other are read together

Tell = Callable[[str], None]


@attrs.define
class Checked:
    """What was looked at."""

    ledgers: int = 0
    entries: int = 0
    problems: int = 0


def check_directory(
    disk: Disk, directory: Path, index: IndexView, *, tell: Tell, progress: Callable[[int], None]
) -> Checked:
    """Look at every indexed entry. Blocks.

    Args:
        tell: Told of each problem, in words.
        progress: Told how many entries have been looked at.
    """
    return _Check(disk, directory, index, tell, progress).run()


class _Check:
    def __init__(
        self, disk: Disk, directory: Path, index: IndexView, tell: Tell, progress: Callable[[int], None]
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._index = index
        self._tell = tell
        self._progress = progress
        self._checked = Checked()
        self._logs: dict[int, tuple[File, int] | None] = {}  # None: it cannot be opened
        self._window = b""
        self._window_at = (-1, 0)  # log id and offset

    def run(self) -> Checked:
        try:
            for ledger_id, _ in self._index.ledgers():
                self._checked.ledgers += 1
                try:
                    for run in self._index.runs(ledger_id):
                        self._check_run(run)
                        self._progress(self._checked.entries)
                except (FormatError, OSError) as exc:
                    self._problem(f"ledger {ledger_id}: {exc}")
        except (FormatError, OSError) as exc:
            self._problem(f"the ledgers cannot be listed: {exc}")
        finally:
            for opened in self._logs.values():
                if opened is not None:
                    opened[0].close()
        return self._checked

    def _problem(self, what: str) -> None:
        self._checked.problems += 1
        self._tell(what)

    def _check_run(self, run: LedgerRun) -> None:
        places = sorted(zip(run.locations, run.entry_ids, strict=True))
        self._checked.entries += len(places)
        for at, (location, entry_id) in enumerate(places):
            following = places[at + 1][0] if at + 1 < len(places) else location + _DENSE_BYTES
            problem = self._look(
                run.ledger_id, entry_id, location, is_dense=following - location < _DENSE_BYTES
            )
            if problem is not None:
                log_id, offset = split_location(location)
                where = f"offset {offset} of {entry_log_name(log_id)}"
                self._problem(f"entry {run.ledger_id}:{entry_id}, at {where}: {problem}")

    def _look(self, ledger_id: int, entry_id: int, location: int, *, is_dense: bool) -> str | None:
        log_id, offset = split_location(location)
        opened = self._open(log_id)
        if opened is None:
            return "there is no such log"
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
            return f"entry {stored_ledger_id}:{stored_entry_id} is there"
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
