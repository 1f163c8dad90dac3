"""An index that is not there: telling a new bookie from one that lost it, and deriving it anew.

Inside: that decision, and deriving locations and ledger data from entry logs. Not inside: replay of the
journal, which follows; doing it beside an index that is there (``index_rebuild``).
Always: a bookie that has entries never starts with an empty index, since it would answer "no such
entry" for entries it has acknowledged. A ledger whose data are lost is fenced and has an unknown key: fences
and keys are not in entry logs, and a lost fence would let two writers succeed. A log that is damaged stops
it, unless that is accepted: then every ledger is in limbo, and nothing that is not found is denied.

Of an entry that stands in several logs the copy in the greatest one wins, as it was written last.

Source: LocationsIndexRebuildOp.java, LedgersIndexRebuildOp.java, apache/bookkeeper#2773.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from itertools import groupby, islice
from operator import lt
from pathlib import Path

import attrs

from bookie.disk import Disk, File
from bookie.entry_log_format import (
    HEADER_BYTES,
    RECORD_PREFIX,
    EntryLogScan,
    decode_header,
    entry_log_name,
    split_location,
)
from bookie.entry_log_ids import entry_log_ids
from bookie.errors import FormatError, IndexMissingError, LogDamagedError
from bookie.index import EntryIndex, LedgerRun
from bookie.journal_format import NO_MARK, RECORD_HEADER, JournalMark
from bookie.ledgers import UNKNOWN_KEY, LedgerData
from bookie.log_columns import take_columns

log = logging.getLogger(__name__)

_PIECE_BYTES = 1 << 20
_AHEAD_BYTES = 8 << 20  # asked of the disk while a piece is looked at
_SECTOR_BYTES = 512
_MIXED_PIECES = 15
_GATHERED_ENTRIES_MAX = 1 << 19  # about 8 MiB

Progress = Callable[[int], None]  # bytes looked at so far


@attrs.define
class Derived:
    """What was found."""

    logs: int = 0
    bytes: int = 0
    entries: int = 0
    ledgers: int = 0
    fenced: int = 0  # ledgers whose data were lost
    skipped_entries: int = 0  # of ledgers that were deleted
    skipped_ledgers: set[int] = attrs.field(factory=set)
    damage: list[str] = attrs.field(factory=list)
    torn: list[str] = attrs.field(
        factory=list
    )  # logs that end in the middle of an entry, as a crash leaves them


def check_index(disk: Disk, directory: Path, index: EntryIndex, mark: JournalMark, *, rebuild: bool) -> None:
    """Accept a complete index, or mark a new bookie's; rebuild a lost one if allowed. Blocks.

    Raises:
        IndexMissingError: It is lost, and ``rebuild`` is not set.
        LogDamagedError: It cannot be derived in full.
    """
    if index.is_complete:
        return
    log_ids = logs_with_entries(disk, directory)
    if log_ids or mark != NO_MARK:
        if not rebuild:
            raise IndexMissingError(
                f"{directory} has {len(log_ids)} entry logs and lastMark {mark}, but its index is missing"
                " or was made by another program. Bring the directory 'index' back, or let `dlog bookie"
                " rebuild-index` read all entry logs; it fences every ledger found"
            )
        derived = derive(disk, directory, index, log_ids)
        if derived.damage:
            raise LogDamagedError(directory, derived.damage)
        log.info("%s: index derived from entry logs: %s", directory, derived)
    index.mark_complete()
    index.sync()


def logs_with_entries(disk: Disk, directory: Path) -> list[int]:
    """Ids of the entry logs that are more than a header, ascending."""
    found = []
    for log_id in entry_log_ids(disk, directory):
        file = disk.open(directory / entry_log_name(log_id))
        try:
            if file.size() > HEADER_BYTES:
                found.append(log_id)
        finally:
            file.close()
    return found


def derive(
    disk: Disk,
    directory: Path,
    index: EntryIndex,
    log_ids: Sequence[int],
    *,
    known: Mapping[int, LedgerData] | None = None,
    accept_damage: bool = False,
    progress: Progress = lambda done: None,
) -> Derived:
    """Put all entries of the logs, and the data of their ledgers, into the index. Blocks.

    The index is not marked as complete, nor synced. ``known``: the data of all ledgers, if an index could
    still tell them; entries of others are of deleted ledgers. At damage the rest of the log is left out and
    told of; with ``accept_damage`` the ledgers are put in limbo for that.
    """
    gathered = _Gathered(index, known)
    derived = gathered.derived
    for log_id in sorted(log_ids):
        file = disk.open(directory / entry_log_name(log_id))
        try:
            size_bytes = file.size()
            _read_log(gathered, file, log_id, size_bytes, lambda at, base=derived.bytes: progress(base + at))  # type: ignore[misc]
        finally:
            file.close()
        derived.logs += 1
        derived.bytes += size_bytes
        progress(derived.bytes)
    gathered.flush()
    in_limbo = bool(derived.damage) and accept_damage
    data = dict(known or {})
    for ledger_id, (entry_id, location) in gathered.last.items():
        if known is None:
            lac = _lac(disk, directory, location)
            data[ledger_id] = LedgerData(UNKNOWN_KEY, True, None, lac, entry_id)
            derived.fenced += 1
        else:
            stored = known[ledger_id]
            data[ledger_id] = attrs.evolve(stored, last_entry_id=max(stored.last_entry_id, entry_id))
    if in_limbo:
        data = {ledger_id: attrs.evolve(one, fenced=True, limbo=True) for ledger_id, one in data.items()}
    index.put([], sorted(data.items()))
    derived.ledgers = len(data)
    return derived


class _Places:
    """Entries of one ledger, in the order they were found."""

    __slots__ = ("entry_ids", "is_ascending", "locations")

    def __init__(self) -> None:
        self.entry_ids = array("q")
        self.locations = array("q")
        self.is_ascending = True

    def add(self, entry_ids: array[int], locations: array[int]) -> None:
        first, count = entry_ids[0], len(entry_ids)
        self.is_ascending = (
            self.is_ascending
            and (not self.entry_ids or self.entry_ids[-1] < first)
            and (
                (entry_ids[-1] == first + count - 1 and entry_ids == array("q", range(first, first + count)))
                or all(map(lt, entry_ids, islice(entry_ids, 1, None)))
            )
        )
        self.entry_ids += entry_ids
        self.locations += locations

    def run(self, ledger_id: int) -> LedgerRun:
        if self.is_ascending:
            return LedgerRun(ledger_id, self.entry_ids, self.locations)
        places = dict(zip(self.entry_ids, self.locations, strict=True))  # the later copy wins
        entry_ids = sorted(places)
        return LedgerRun(ledger_id, entry_ids, list(map(places.__getitem__, entry_ids)))


class _Gathered:
    """Locations by ledger, put into the index when there are many."""

    def __init__(self, index: EntryIndex, known: Container[int] | None) -> None:
        self.derived = Derived()
        self.last: dict[int, tuple[int, int]] = {}  # ledger -> greatest entry and its location
        self._index = index
        self._known = known
        self._places: dict[int, _Places] = {}
        self._count = 0

    def add(self, ledger_ids: array[int], entry_ids: array[int], locations: array[int]) -> None:
        # Slices of columns: nothing is done for a single entry but in C.
        start = 0
        for ledger_id, stop in _stretches(ledger_ids):
            places = self._places.get(ledger_id)
            if places is None:
                places = self._places[ledger_id] = _Places()
            places.add(entry_ids[start:stop], locations[start:stop])
            start = stop
        self._count += len(ledger_ids)
        if self._count >= _GATHERED_ENTRIES_MAX:
            self.flush()

    def flush(self) -> None:
        runs = []
        for ledger_id, places in sorted(self._places.items()):
            if self._known is not None and ledger_id not in self._known:
                self.derived.skipped_entries += len(places.entry_ids)
                self.derived.skipped_ledgers.add(ledger_id)
                continue
            run = places.run(ledger_id)
            runs.append(run)
            self.derived.entries += len(run.entry_ids)
            self.last[ledger_id] = max(
                self.last.get(ledger_id, (-1, 0)), (run.entry_ids[-1], run.locations[-1])
            )
        self._index.put(runs)
        self._places.clear()
        self._count = 0


def _stretches(ledger_ids: array[int]) -> Iterator[tuple[int, int]]:
    """Neighbours of one ledger: which, and where they stop."""
    if ledger_ids.count(ledger_ids[0]) == len(ledger_ids):  # most pieces of a log with large ledgers
        yield ledger_ids[0], len(ledger_ids)
        return
    stop = 0
    for ledger_id, neighbours in groupby(ledger_ids):
        stop += len(list(neighbours))
        yield ledger_id, stop


def _read_log(gathered: _Gathered, file: File, log_id: int, size_bytes: int, progress: Progress) -> None:
    name, derived = entry_log_name(log_id), gathered.derived
    header = file.pread(HEADER_BYTES, 0)
    try:
        # Zeros: a log whose header a crash has kept from the disk.
        head = decode_header(header) if any(header[:_SECTOR_BYTES]) else None
    except FormatError as exc:
        # Without its header it may be anything; records behind it would still have to be followed.
        derived.damage.append(f"{name}: {exc}")
        return
    map_offset = head.map_offset if head is not None and head.map_crc else 0
    end = map_offset or size_bytes
    scan = EntryLogScan(file.pread, size_bytes, map_offset=map_offset, piece_bytes=_PIECE_BYTES)
    asked = 0
    mixed = 0  # pieces to take record by record, since their lengths are mixed
    while True:
        if scan.position + _AHEAD_BYTES // 2 > asked and asked < size_bytes:
            asked = scan.position + _AHEAD_BYTES
            file.will_need(_AHEAD_BYTES, scan.position)
        columns = None
        if not mixed:
            data = file.pread(min(_PIECE_BYTES, end - scan.position), scan.position)
            columns = take_columns(data, scan.position)
        if columns is not None:
            gathered.add(columns.ledger_ids, columns.entry_ids, columns.locations(log_id))
            scan.position = columns.stop
        elif (piece := scan.step()) is not None:
            ledger_ids, entry_ids, offsets, _ = (array("q", one) for one in zip(*piece.records, strict=True))
            base = log_id << 32
            gathered.add(ledger_ids, entry_ids, array("q", map(base.__add__, offsets)))
            mixed = mixed - 1 if mixed else _MIXED_PIECES
        else:
            break
        progress(scan.position)
    if scan.damage is not None:
        derived.damage.append(f"{name}: {scan.damage}; {size_bytes - scan.position} bytes were not read")
    elif scan.torn_at is not None:
        derived.torn.append(f"{name}: it ends in the middle of an entry at offset {scan.torn_at}")


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
