"""An index that is not there: telling a new bookie from one that lost it, and deriving it anew.

Inside: that decision, and the rebuild from entry logs. Not inside: replay of the journal, which follows.
Always: a bookie that has entries never starts with an empty index, since it would answer "no such
entry" for entries it has acknowledged. A rebuilt ledger is fenced and has an unknown key: fences and
keys are not in entry logs, and a lost fence would let two writers succeed.

Source: LocationsIndexRebuildOp.java, LedgersIndexRebuildOp.java, apache/bookkeeper#2773.
"""

from __future__ import annotations

import logging
from pathlib import Path

from bookie.disk import Disk
from bookie.entry_log import entry_log_ids, scan_log
from bookie.entry_log_format import HEADER_BYTES, RECORD_PREFIX, entry_log_name, split_location
from bookie.errors import IndexMissingError
from bookie.index import EntryIndex, LedgerRun
from bookie.journal_format import NO_MARK, RECORD_HEADER, JournalMark
from bookie.ledgers import UNKNOWN_KEY, LedgerData

log = logging.getLogger(__name__)


def check_index(disk: Disk, directory: Path, index: EntryIndex, mark: JournalMark, *, rebuild: bool) -> None:
    """Accept a complete index, or mark a new bookie's; rebuild a lost one if allowed. Blocks.

    ``IndexMissingError`` for a lost one otherwise.
    """
    if index.is_complete:
        return
    log_ids = [log_id for log_id in entry_log_ids(disk, directory) if _has_entries(disk, directory, log_id)]
    if log_ids or mark != NO_MARK:
        if not rebuild:
            raise IndexMissingError(
                f"{directory} has {len(log_ids)} entry logs and lastMark {mark}, but its index is missing"
                " or was made by another program. Bring the directory 'index' back, or start once with"
                " rebuild_index: it reads all entry logs and fences every ledger found"
            )
        _rebuild(disk, directory, index, log_ids)
    index.mark_complete()
    index.sync()


def _has_entries(disk: Disk, directory: Path, log_id: int) -> bool:
    file = disk.open(directory / entry_log_name(log_id))
    try:
        return file.size() > HEADER_BYTES
    finally:
        file.close()


def _rebuild(disk: Disk, directory: Path, index: EntryIndex, log_ids: list[int]) -> None:
    last: dict[int, tuple[int, int]] = {}  # ledger -> greatest entry and its location
    for log_id in log_ids:  # ascending: of an entry that was written twice the later copy wins
        found, damage = scan_log(disk, directory, log_id)
        if damage is not None:
            log.error("%s: %s; what follows is not indexed", directory / entry_log_name(log_id), damage)
        places: dict[int, dict[int, int]] = {}
        for entry in found:
            places.setdefault(entry.ledger_id, {})[entry.entry_id] = (log_id << 32) + entry.offset
        for ledger_id, entries in places.items():
            entry_ids = sorted(entries)
            index.put([LedgerRun(ledger_id, entry_ids, [entries[e] for e in entry_ids])])
            last[ledger_id] = max(last.get(ledger_id, (-1, 0)), (entry_ids[-1], entries[entry_ids[-1]]))
        log.info("%s: %d entries indexed", directory / entry_log_name(log_id), len(found))
    data = [
        (ledger_id, LedgerData(UNKNOWN_KEY, True, None, _lac(disk, directory, location), entry_id))
        for ledger_id, (entry_id, location) in last.items()
    ]
    index.put([], data)


def _lac(disk: Disk, directory: Path, location: int) -> int:
    """The LAC field of an entry; -1 if it is too short to have one."""
    log_id, offset = split_location(location)
    file = disk.open(directory / entry_log_name(log_id))
    try:
        data = file.pread(RECORD_PREFIX.size + 8, offset - 4)
    finally:
        file.close()
    length = RECORD_PREFIX.unpack_from(data)[0]
    return RECORD_HEADER.unpack_from(data, 4)[2] if length >= RECORD_HEADER.size else -1
