"""A missing index: detects a lost index, and rebuilds it from the entry logs.

Inside: telling a new bookie from one that lost its index; rebuilding locations and ledger data. Not inside:
replay of the journal, which follows; building a new index beside an existing one (``index_rebuild``).
Always: a bookie that has entries never starts with an empty index, since it would reply "no such entry" for
acknowledged entries. A ledger whose data are lost is fenced and gets an unknown key: fences and keys are not
in entry logs, and without the fence two writers could succeed. A damaged log stops the rebuild, unless damage
is accepted. Then every ledger is in limbo, and the bookie never replies "no such entry" for missing ones.

If several logs contain an entry, the copy in the log with the greatest id is used: it was written last.

Source: LocationsIndexRebuildOp.java, LedgersIndexRebuildOp.java, apache/bookkeeper#2773.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from itertools import groupby, islice
from operator import lt
from pathlib import Path

import attrs

from bookie.disk.disk import Disk, File
from bookie.entrylog.columnar import decode_columns
from bookie.entrylog.format import (
    HEADER_BYTES,
    RECORD_PREFIX,
    EntryLogScan,
    decode_header,
    entry_log_name,
    split_location,
)
from bookie.entrylog.ids import entry_log_ids
from bookie.errors import FormatError, IndexMissingError, LogDamagedError, StartError
from bookie.index.entry_index import EntryIndex, EntryRange
from bookie.index.index_view import IndexBuild
from bookie.journal.format import NO_MARK, RECORD_HEADER, JournalMark
from bookie.journal.last_mark import is_mark_name
from bookie.ledger_record import UNKNOWN_KEY, LedgerData, lac_of_entry
from ledger.runtime.log_lines import get_logger

log = get_logger(__name__)

_PIECE_BYTES = 1 << 20
_AHEAD_BYTES = 8 << 20  # read ahead by the disk while a piece is decoded
_SECTOR_BYTES = 512
_MIXED_PIECES = 15  # after records of mixed lengths, so many pieces are not tried as columns
APACHE_MARK_BYTES = 16  # ours have a checksum after these
_BUFFERED_ENTRIES_MAX = 1 << 19  # about 8 MiB

Progress = Callable[[int], None]  # called with the number of bytes read so far


@attrs.define
class RebuildStats:
    """The result of a rebuild."""

    logs: int = 0
    bytes: int = 0
    entries: int = 0
    ledgers: int = 0
    fenced: int = 0  # ledgers whose data were lost
    skipped_entries: int = 0  # entries of deleted ledgers
    skipped_ledgers: set[int] = attrs.field(factory=set)
    damage: list[str] = attrs.field(factory=list)
    torn: list[str] = attrs.field(factory=list)  # logs that end within an entry, as after a crash


def check_index(disk: Disk, directory: Path, index: EntryIndex, mark: JournalMark, *, rebuild: bool) -> None:
    """Accept a complete index; mark a new bookie's index as complete; rebuild a lost one if allowed. Blocks.

    Raises:
        IndexMissingError: The index is lost, and ``rebuild`` is not set.
        StartError: Another program has written in the directory since the index was written.
        LogDamagedError: A damaged log prevents a full rebuild.
    """
    if index.is_complete:
        _refuse_foreign_writes(disk, directory)
        return
    log_ids = logs_with_entries(disk, directory)
    if log_ids or mark != NO_MARK:
        if not rebuild:
            raise IndexMissingError(
                f"{directory} has {len(log_ids)} entry logs and lastMark {mark}, but its index is missing"
                " or was written by another program",
                "Bring the directory 'index' back, or let `dlog bookie rebuild-index` rebuild it from the"
                " entry logs; that fences every ledger. `dlog bookie convert-index` takes over the index of"
                " Apache's bookie, with keys and fences",
            )
        stats = rebuild_from_logs(disk, directory, index, log_ids)
        if stats.damage:
            raise LogDamagedError(directory, stats.damage)
        log.info("%s: index rebuilt from entry logs: %s", directory, stats)
    index.mark_complete()
    index.sync()


def foreign_marks(disk: Disk, directory: Path) -> list[Path]:
    """The marks that Apache's bookie has written after ours ran: they lack our checksum."""
    names = filter(is_mark_name, disk.list_directory(directory))
    paths = [directory / name for name in sorted(names)]
    return [path for path in paths if len(disk.read_file(path)) == APACHE_MARK_BYTES]


def _refuse_foreign_writes(disk: Disk, directory: Path) -> None:
    if found := foreign_marks(disk, directory):
        raise StartError(
            f"{found[0]} was written by Apache's bookie, so the index of {directory} does not have all"
            " entries. Let `dlog bookie convert-index` rebuild it from the entry logs and Apache's index;"
            " it keeps keys and fences"
        )


def logs_with_entries(disk: Disk, directory: Path) -> list[int]:
    """Ids of the entry logs that are longer than a header, ascending."""
    found = []
    for log_id in entry_log_ids(disk, directory):
        file = disk.open(directory / entry_log_name(log_id))
        try:
            if file.size() > HEADER_BYTES:
                found.append(log_id)
        finally:
            file.close()
    return found


def rebuild_from_logs(
    disk: Disk,
    directory: Path,
    index: IndexBuild,
    log_ids: Sequence[int],
    *,
    known: Mapping[int, LedgerData] | None = None,
    accept_damage: bool = False,
    progress: Progress = lambda done: None,
) -> RebuildStats:
    """Put all entries of the logs, and the data of their ledgers, into the index. Blocks.

    The index is neither marked as complete nor synced. After damage the rest of the log is skipped and
    reported in ``RebuildStats.damage``.

    Args:
        known: The data of all ledgers, from an old index; entries of other ledgers were deleted. None:
            ledger data are lost.
        accept_damage: If a log is damaged, put all ledgers in limbo.
        progress: Called with the number of bytes read so far.
    """
    buffer = _LocationBuffer(index, known)
    stats = buffer.stats
    for log_id in sorted(log_ids):
        file = disk.open(directory / entry_log_name(log_id))
        try:
            size_bytes = file.size()
            _read_log(buffer, file, log_id, size_bytes, lambda at, base=stats.bytes: progress(base + at))  # type: ignore[misc]
        finally:
            file.close()
        stats.logs += 1
        stats.bytes += size_bytes
        progress(stats.bytes)
    buffer.flush()
    data = dict(known or {})
    for ledger_id, (entry_id, location) in buffer.last.items():
        if known is None:
            lac = _lac(disk, directory, entry_id, location)
            data[ledger_id] = LedgerData(UNKNOWN_KEY, True, None, lac, entry_id)
            stats.fenced += 1
        else:
            stored = known[ledger_id]
            # Apache's index files do not have the LAC.
            lac = max(stored.lac, _lac(disk, directory, entry_id, location))
            data[ledger_id] = attrs.evolve(stored, lac=lac, last_entry_id=max(stored.last_entry_id, entry_id))
    index.put([], sorted(data.items()))
    if stats.damage and accept_damage:
        put_in_limbo(index)
    stats.ledgers = len(data)
    return stats


def put_in_limbo(index: IndexBuild) -> None:
    """Fence all ledgers, and note that acknowledged entries of them may be missing."""
    ledgers = list(index.ledgers())
    index.put([], [(ledger_id, attrs.evolve(one, fenced=True, limbo=True)) for ledger_id, one in ledgers])


class _LedgerLocations:
    """Ids and locations of one ledger's entries, in the order of the logs."""

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

    def to_range(self, ledger_id: int) -> EntryRange:
        if self.is_ascending:
            return EntryRange(ledger_id, self.entry_ids, self.locations)
        located = dict(zip(self.entry_ids, self.locations, strict=True))  # the later copy wins
        entry_ids = sorted(located)
        return EntryRange(ledger_id, entry_ids, list(map(located.__getitem__, entry_ids)))


class _LocationBuffer:
    """Collects locations by ledger, and puts them into the index when there are many."""

    def __init__(self, index: IndexBuild, known: Container[int] | None) -> None:
        self.stats = RebuildStats()
        self.last: dict[int, tuple[int, int]] = {}  # ledger -> greatest entry id and its location
        self._index = index
        self._known = known
        self._places: dict[int, _LedgerLocations] = {}
        self._count = 0

    def add(self, ledger_ids: array[int], entry_ids: array[int], locations: array[int]) -> None:
        # Works on slices of columns: no Python code runs for a single entry.
        start = 0
        for ledger_id, stop in _ledger_groups(ledger_ids):
            places = self._places.get(ledger_id)
            if places is None:
                places = self._places[ledger_id] = _LedgerLocations()
            places.add(entry_ids[start:stop], locations[start:stop])
            start = stop
        self._count += len(ledger_ids)
        if self._count >= _BUFFERED_ENTRIES_MAX:
            self.flush()

    def flush(self) -> None:
        ranges = []
        for ledger_id, places in sorted(self._places.items()):
            if self._known is not None and ledger_id not in self._known:
                self.stats.skipped_entries += len(places.entry_ids)
                self.stats.skipped_ledgers.add(ledger_id)
                continue
            entry_range = places.to_range(ledger_id)
            ranges.append(entry_range)
            self.stats.entries += len(entry_range.entry_ids)
            self.last[ledger_id] = max(
                self.last.get(ledger_id, (-1, 0)), (entry_range.entry_ids[-1], entry_range.locations[-1])
            )
        self._index.put(ranges)
        self._places.clear()
        self._count = 0


def _ledger_groups(ledger_ids: array[int]) -> Iterator[tuple[int, int]]:
    """Groups of neighbouring entries of one ledger: ledger id, end of the group."""
    if ledger_ids.count(ledger_ids[0]) == len(ledger_ids):  # the usual case in a log with large ledgers
        yield ledger_ids[0], len(ledger_ids)
        return
    stop = 0
    for ledger_id, neighbours in groupby(ledger_ids):
        stop += len(list(neighbours))
        yield ledger_id, stop


def _read_log(buffer: _LocationBuffer, file: File, log_id: int, size_bytes: int, progress: Progress) -> None:
    name, stats = entry_log_name(log_id), buffer.stats
    header = file.pread(HEADER_BYTES, 0)
    try:
        # Zeros: after a crash the header may never have reached the disk.
        head = decode_header(header) if any(header[:_SECTOR_BYTES]) else None
    except FormatError as exc:
        # The file may be of any kind, so no record is read.
        stats.damage.append(f"{name}: {exc}")
        return
    map_offset = head.map_offset if head is not None and head.map_crc else 0
    end = map_offset or size_bytes
    scan = EntryLogScan(file.pread, size_bytes, map_offset=map_offset, piece_bytes=_PIECE_BYTES)
    prefetched = 0  # offset up to which the disk reads ahead
    mixed = 0  # number of pieces to scan record by record, since their lengths are mixed
    while True:
        if scan.position + _AHEAD_BYTES // 2 > prefetched and prefetched < size_bytes:
            prefetched = scan.position + _AHEAD_BYTES
            file.will_need(_AHEAD_BYTES, scan.position)
        columns = None
        if not mixed:
            data = file.pread(min(_PIECE_BYTES, end - scan.position), scan.position)
            columns = decode_columns(data, scan.position)
        if columns is not None:
            buffer.add(columns.ledger_ids, columns.entry_ids, columns.locations(log_id))
            scan.position = columns.stop
        elif (piece := scan.step()) is not None:
            ledger_ids, entry_ids, offsets, _ = (array("q", one) for one in zip(*piece.records, strict=True))
            base = log_id << 32
            buffer.add(ledger_ids, entry_ids, array("q", map(base.__add__, offsets)))
            mixed = mixed - 1 if mixed else _MIXED_PIECES
        else:
            break
        progress(scan.position)
    if scan.damage is not None:
        stats.damage.append(f"{name}: {scan.damage}; {size_bytes - scan.position} bytes were not read")
    elif scan.torn_at is not None:
        stats.torn.append(f"{name}: the log ends within an entry at offset {scan.torn_at}")


def _lac(disk: Disk, directory: Path, entry_id: int, location: int) -> int:
    """The LAC that an entry's header names; -1 if it is too short to name one, or cannot name this one."""
    log_id, offset = split_location(location)
    file = disk.open(directory / entry_log_name(log_id))
    try:
        data = file.pread(RECORD_PREFIX.size + 8, offset - 4)
    finally:
        file.close()
    if len(data) < RECORD_PREFIX.size + 8 or RECORD_PREFIX.unpack_from(data)[0] < RECORD_HEADER.size:
        return -1
    return lac_of_entry(entry_id, data[4:])
