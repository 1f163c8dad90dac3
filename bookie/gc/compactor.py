"""Rewriting entry logs without their dead entries: the file work, in slices.

Inside: ``CompactionCopy`` (copies live entries of some logs into a new one), ``IndexRelocation`` (moves the
index to the new log and deletes the old ones), and the continuation of both after a restart. Not inside: the
choice of logs, time and rate (``gc.compaction_rules``, ``log_collector``), names (``compaction_files``).
Always: an entry is copied only if the index references it at this location. So entries that were deleted, or
stored again elsewhere, are not copied. The copy is synced and has its name before the index moves. The index
is synced before a source is deleted. If a source cannot be parsed to its end, or differs from its map, the
source is kept and the copy is deleted.

The relocation scans the new log instead of remembering the moves. So memory is bounded, and a restart runs
the same code. An entry moves if the index still references it in one of the sources. That is safe: sources
get no new entries, and each entry was copied from the one location that the index referenced.

All code here runs in the storage thread, one slice a job, so that flushes can run between slices. A
compaction that cannot write its copy, or cannot read the index, raises ``CompactionError``; the bookie
continues. An index that cannot be written fails the bookie.

Source: TransactionalEntryLogCompactor.java; docs/storage-format.md 9.5, 9.6; BOOKKEEPER-926,
apache/bookkeeper#704, #1534, #3959, #4804.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import attrs

from bookie.disk.disk import Disk, File
from bookie.entrylog.compaction_files import compacted_name, compacting_name, unfinished_compactions
from bookie.entrylog.format import (
    HEADER_BYTES,
    LENGTH_BYTES,
    EntryLogScan,
    Record,
    ScannedPiece,
    decode_header,
    entry_log_name,
)
from bookie.entrylog.open_log import OpenLog
from bookie.entrylog.summary import LogSummary
from bookie.errors import CompactionError, FormatError, IndexUnreadableError, SourceUnreadableError
from bookie.index.entry_index import EntryIndex, LedgerMove
from ledger.runtime.log_lines import get_logger

log = get_logger(__name__)

# Much smaller than for a flush: the journal's syncs wait behind this one in the disk's queue.
_SYNC_EVERY_BYTES = 1 << 20


@attrs.frozen
class SliceStats:
    """The work done by one slice."""

    read_bytes: int
    copied_bytes: int
    copied_entries: int


class CompactionCopy:
    """Copies the live entries of some complete logs into a new one."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        index: EntryIndex,
        sources: Sequence[LogSummary],
        target_id: int,
        is_live: Callable[[int], bool],
        *,
        slice_bytes: int,
    ) -> None:
        self.target_id = target_id
        self.summary: LogSummary | None = None  # of the published new log
        self._disk = disk
        self._directory = directory
        self._index = index
        self._sources = sources
        self._is_live = is_live
        self._slice_bytes = slice_bytes
        self._target: OpenLog | None = None
        self._is_begun = False  # a file may exist that ``discard`` must delete
        self._at = 0  # position in ``sources`` of the source being read
        self._file: File | None = None
        self._scan: EntryLogScan | None = None
        self._found_bytes: dict[int, int] = {}  # ledger -> bytes found in the source being read

    def step(self) -> SliceStats | None:
        """Copy a slice; None after all sources are copied.

        Raises:
            SourceUnreadableError: A source is damaged and must be kept.
            IndexUnreadableError: The index cannot be read, so the live entries are unknown.
            CompactionError: The new log cannot be written.
        """
        while self._at < len(self._sources):
            source = self._sources[self._at]
            try:
                piece = self._next_piece(source)
            except (OSError, FormatError) as exc:
                raise SourceUnreadableError(source.log_id, str(exc)) from exc
            if piece is not None:
                return self._copy(source.log_id, piece)
            self._check_whole(source)
            self._close_source()
            self._at += 1
        return None

    def publish(self) -> None:
        """Make the copy durable and give it its name; then the index may move.

        If no entry was copied, there is no new log, and ``summary`` stays None. ``CompactionError`` if the
        copy cannot be completed.
        """
        if self._at != len(self._sources):  # ``LogCollector`` publishes after the last step
            raise AssertionError(f"only {self._at} of {len(self._sources)} entry logs are copied")
        target = self._target
        if target is None:
            return
        source_ids = [source.log_id for source in self._sources]
        compacting = self._directory / compacting_name(self.target_id)
        try:
            target.complete()
            for source_id in source_ids:
                self._disk.link(compacting, self._directory / compacted_name(self.target_id, source_id))
            self._disk.sync_directory(self._directory)
            self._disk.unlink(compacting)
            self._target, self._is_begun = None, False
        except OSError as exc:
            raise CompactionError(f"{compacting} cannot be completed: {exc}") from exc
        self.summary = LogSummary(self.target_id, target.ledger_bytes, has_map=True)

    def discard(self) -> None:
        """Delete the copy, unless it is published. If that fails, the next round deletes it."""
        self._close_source()
        if self._target is not None:
            self._target.close()
            self._target = None
        if self._is_begun:
            self._is_begun = False
            with contextlib.suppress(OSError):
                self._disk.unlink(self._directory / compacting_name(self.target_id))

    def _next_piece(self, source: LogSummary) -> ScannedPiece | None:
        if self._scan is None:
            self._file = self._disk.open(self._directory / entry_log_name(source.log_id))
            head = decode_header(self._file.pread(HEADER_BYTES, 0)) if source.has_map else None
            self._scan = EntryLogScan(
                self._file.pread,
                self._file.size(),
                map_offset=head.map_offset if head is not None else 0,
                piece_bytes=self._slice_bytes,
            )
            self._found_bytes = {}
        return self._scan.step()

    def _check_whole(self, source: LogSummary) -> None:
        scan = self._scan
        assert scan is not None  # ``step`` makes it before
        is_cut = scan.damage is not None or scan.torn_at is not None
        # Of a log that was never completed, the index references no entry after ``torn_at``.
        if is_cut and (source.torn_at is None or scan.position < source.torn_at):
            why = scan.damage or "a record is cut short"
            raise SourceUnreadableError(source.log_id, f"at offset {scan.position}: {why}")
        # After a flipped bit in a length or an id, the scan may still find bytes that look like entries.
        if self._found_bytes != source.ledger_bytes():
            raise SourceUnreadableError(source.log_id, "its records do not match its map")

    def _copy(self, source_id: int, piece: ScannedPiece) -> SliceStats:
        base = source_id << 32
        found, is_live = self._found_bytes, self._is_live
        copied: dict[int, int] = {}
        stretches: list[tuple[int, int]] = []  # ranges of ``piece.data``, including the length of each entry
        entries = 0
        for group in _consecutive_groups(piece.records):
            ledger_id, first, _, _ = group[0]
            size_bytes = sum(record[3] for record in group) + LENGTH_BYTES * len(group)
            found[ledger_id] = found.get(ledger_id, 0) + size_bytes
            if not is_live(ledger_id):
                continue
            locations = [base + record[2] for record in group]
            for start, stop in self._live_parts(ledger_id, first, locations):
                begin = group[start][2] - LENGTH_BYTES - piece.start
                end = group[stop - 1][2] + group[stop - 1][3] - piece.start
                if stretches and stretches[-1][1] == begin:
                    stretches[-1] = (stretches[-1][0], end)
                else:
                    stretches.append((begin, end))
                copied[ledger_id] = copied.get(ledger_id, 0) + end - begin
                entries += stop - start
        copied_bytes = sum(copied.values())
        if stretches:
            view = memoryview(piece.data)
            self._write(b"".join([view[begin:end] for begin, end in stretches]), copied)
        return SliceStats(len(piece.data), copied_bytes, entries)

    def _live_parts(self, ledger_id: int, first: int, locations: list[int]) -> list[tuple[int, int]]:
        """Which entries from ``first`` on are at their indexed location: ranges [start, stop)."""
        parts: list[tuple[int, int]] = []
        at, count = 0, len(locations)
        while at < count:
            try:
                indexed = self._index.locate(ledger_id, first + at, count - at)
            except (OSError, FormatError) as exc:
                raise IndexUnreadableError({locations[at] >> 32}, str(exc)) from exc
            if not indexed:
                at += 1
                continue
            stop = at + len(indexed)
            if list(indexed) == locations[at:stop]:
                parts.append((at, stop))
            else:
                parts += [(at + n, at + n + 1) for n, one in enumerate(indexed) if one == locations[at + n]]
            at = stop
        return parts

    def _write(self, data: bytes, ledger_bytes: dict[int, int]) -> None:
        try:
            if self._target is None:
                self._is_begun = True
                self._target = OpenLog(
                    self._disk,
                    self._directory / compacting_name(self.target_id),
                    self.target_id,
                    sync_every_bytes=_SYNC_EVERY_BYTES,
                )
            self._target.write([data], len(data))
        except OSError as exc:
            raise CompactionError(
                f"{self._directory / compacting_name(self.target_id)} cannot be written: {exc}"
            ) from exc
        totals = self._target.ledger_bytes
        for ledger_id, size_bytes in ledger_bytes.items():
            totals[ledger_id] = totals.get(ledger_id, 0) + size_bytes

    def _close_source(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = self._scan = None


class IndexRelocation:
    """Replaces the sources by a published copy. After a crash it starts again, with the same result."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        index: EntryIndex,
        target_id: int,
        source_ids: Sequence[int],
        *,
        slice_bytes: int,
    ) -> None:
        self.target_id = target_id
        self.source_ids = tuple(source_ids)
        self._disk = disk
        self._directory = directory
        self._index = index
        self._slice_bytes = slice_bytes
        self._file: File | None = None
        self._scan: EntryLogScan | None = None

    def step(self) -> SliceStats | None:
        """Move the index for a slice of the new log; None after the whole log is done.

        Raises:
            CompactionError: The copy or the index cannot be read. No entry is lost: the sources still exist.
            OSError: The index cannot be written.
        """
        try:
            piece = self._next_piece()
        except (OSError, FormatError) as exc:
            raise CompactionError(f"{self._directory / entry_log_name(self.target_id)}: {exc}") from exc
        if piece is None:
            return None
        try:
            moves = self._moves(piece.records)
        except (OSError, FormatError) as exc:
            raise IndexUnreadableError(self.source_ids, str(exc)) from exc
        if moves:
            try:
                self._index.relocate(moves)
            except FormatError as exc:
                raise IndexUnreadableError(self.source_ids, str(exc)) from exc
        return SliceStats(len(piece.data), 0, sum(len(move.entry_ids) for move in moves))

    def finish(self, kept: Collection[int] = ()) -> list[int]:
        """Sync the index, then delete the sources except those in ``kept``; return the ids of the deleted.

        Raises:
            CompactionError: A source cannot be deleted; the next round tries again.
            OSError: The index cannot be synced.
        """
        self._index.sync()  # index before delete (apache/bookkeeper#1534)
        return delete_sources(self._disk, self._directory, self.source_ids, self.target_id, kept)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
        self._file = self._scan = None

    def _next_piece(self) -> ScannedPiece | None:
        if self._scan is None:
            visible = self._directory / entry_log_name(self.target_id)
            if visible.name not in self._disk.list_directory(self._directory):
                self._disk.link(self._directory / compacted_name(self.target_id, self.source_ids[0]), visible)
            # Also if it existed already: a crash may have come between the link and this sync.
            self._disk.sync_directory(self._directory)
            self._file = self._disk.open(visible)
            head = decode_header(self._file.pread(HEADER_BYTES, 0))
            map_offset = head.map_offset if head is not None and head.map_crc else 0
            size = self._file.size()
            self._scan = EntryLogScan(
                self._file.pread, size, map_offset=map_offset, piece_bytes=self._slice_bytes
            )
        piece = self._scan.step()
        if self._scan.damage is not None:
            raise FormatError(self._scan.damage)
        return piece

    def _moves(self, records: list[Record]) -> list[LedgerMove]:
        base = self.target_id << 32
        sources = frozenset(self.source_ids)
        moves: list[tuple[int, list[int], list[int], list[int]]] = []
        newest: dict[int, tuple[int, list[int], list[int], list[int]]] = {}  # ledger -> its last move
        for group in _consecutive_groups(records):
            ledger_id, first, _, _ = group[0]
            at, count = 0, len(group)
            while at < count:
                indexed = self._index.locate(ledger_id, first + at, count - at)
                for number, location in enumerate(indexed, at):
                    if location >> 32 not in sources:
                        continue
                    move = newest.get(ledger_id)
                    if move is None or move[1][-1] >= first + number:
                        move = newest[ledger_id] = (ledger_id, [], [], [])
                        moves.append(move)
                    move[1].append(first + number)
                    move[2].append(location)
                    move[3].append(base + group[number][2])
                at += len(indexed) or 1
        return [LedgerMove(*move) for move in moves]


def delete_sources(
    disk: Disk,
    directory: Path,
    source_ids: Sequence[int],
    target_id: int | None,
    kept: Collection[int] = (),
) -> list[int]:
    """Delete logs that the synced index no longer references; return the ids of the deleted ones.

    With a target, the ``compacted`` names of all sources are deleted too, also those of ``kept`` logs: a kept
    log becomes an ordinary one again. ``CompactionError``: some may not be deleted.
    """
    deleted = []
    try:
        names = set(disk.list_directory(directory))
        for source_id in source_ids:
            if entry_log_name(source_id) in names and source_id not in kept:
                disk.unlink(directory / entry_log_name(source_id))
                deleted.append(source_id)
        disk.sync_directory(directory)
        if target_id is not None:
            # Not earlier: without this name a restart could not know that a source is superseded.
            for source_id in source_ids:
                if compacted_name(target_id, source_id) in names:
                    disk.unlink(directory / compacted_name(target_id, source_id))
            disk.sync_directory(directory)
    except OSError as exc:
        raise CompactionError(f"{directory}: a compacted log cannot be deleted: {exc}") from exc
    return deleted


def discard_abandoned_copies(disk: Disk, directory: Path) -> dict[int, tuple[int, ...]]:
    """Delete copies that were never completed; return the compactions to finish: new log -> its sources.

    ``CompactionError`` if the directory cannot be read or written.
    """
    try:
        found = unfinished_compactions(disk.list_directory(directory))
        for name in found.abandoned:
            log.info("%s: the copy of an interrupted compaction is deleted", directory / name)
            disk.unlink(directory / name)
        if found.abandoned:
            disk.sync_directory(directory)
    except OSError as exc:
        raise CompactionError(f"{directory}: {exc}") from exc
    return dict(found.pending)


def _consecutive_groups(records: list[Record]) -> list[list[Record]]:
    """The records in order, grouped by ledger and consecutive entry ids."""
    groups: list[list[Record]] = []
    ledger, expected = -1, -1
    for record in records:
        if record[0] == ledger and record[1] == expected:
            groups[-1].append(record)
        else:
            groups.append([record])
            ledger = record[0]
        expected = record[1] + 1
    return groups
