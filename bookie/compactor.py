"""Rewriting entry logs without what is dead in them: the file work, in slices.

Inside: ``Copy`` (live entries of some logs into a new one), ``Relocation`` (moving the index to the new log
and deleting the old ones), and what a restart does about half of either. Not inside: which logs, when, how
fast (``compaction_rules``, ``log_collector``), names (``compaction_files``).
Always: an entry is copied only if the index says that it lies just there, so that what was deleted or
stored again elsewhere is left behind; the copy is synced and has its name before the index moves, the index
is synced before a source is deleted; a source that could not be followed to its end, or holds other bytes
than its map says, is kept, and the copy is thrown away.

The new log is scanned for the relocation instead of remembering the moves: memory stays bounded, and a
restart takes the same road. An entry moves if the index still says that it lies in one of the sources:
these take no new entries, and each entry was copied from the one place in them that the index named.

Everything here is the storage thread's, one slice a job, so that flushes go between. What compaction itself
cannot write, and an index that cannot be read, is a ``CompactionError`` and harms nobody; an index that
cannot be written is the bookie's failure.

Source: TransactionalEntryLogCompactor.java; reference on bookie storage 1.5, 5.5, 8.8; BOOKKEEPER-926,
apache/bookkeeper#704, #1534, #3959, #4804.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import attrs

from bookie.compaction_files import compacted_name, compacting_name, leftovers
from bookie.disk import Disk, File
from bookie.entry_log_format import (
    HEADER_BYTES,
    LENGTH_BYTES,
    EntryLogScan,
    Record,
    ScannedPiece,
    decode_header,
    entry_log_name,
)
from bookie.errors import CompactionError, FormatError, IndexUnreadableError, SourceUnreadableError
from bookie.index import EntryIndex, LedgerMove
from bookie.log_summary import LogSummary
from bookie.open_log import OpenLog

log = logging.getLogger(__name__)

# Much smaller than a flush's: the journal's syncs wait behind it in the disk's queue.
_SYNC_EVERY_BYTES = 1 << 20


@attrs.frozen
class Slice:
    """What one slice has done."""

    read_bytes: int
    copied_bytes: int
    copied_entries: int


class Copy:
    """The live entries of some complete logs, copied into a new one."""

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
        self.summary: LogSummary | None = None  # of the new log, once it is published
        self._disk = disk
        self._directory = directory
        self._index = index
        self._sources = sources
        self._is_live = is_live
        self._slice_bytes = slice_bytes
        self._target: OpenLog | None = None
        self._is_begun = False  # there may be a file to be thrown away
        self._at = 0  # the source being read
        self._file: File | None = None
        self._scan: EntryLogScan | None = None
        self._found_bytes: dict[int, int] = {}  # of the source being read

    def step(self) -> Slice | None:
        """Copy a slice; None when all sources are done.

        Raises:
            SourceUnreadableError: A source must be kept.
            IndexUnreadableError: Nobody can say what is live in a source.
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
        """Make the copy durable and give it its name; then the index may move. ``CompactionError``.

        With nothing to copy there is no new log, and ``summary`` stays None.
        """
        assert self._at == len(self._sources)
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
        """Throw the copy away, unless it is published. What cannot be deleted now the next round deletes."""
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
        assert scan is not None
        is_cut = scan.damage is not None or scan.torn_at is not None
        # What is behind ``torn_at`` of a log that was never completed the index does not know.
        if is_cut and (source.torn_at is None or scan.position < source.torn_at):
            why = scan.damage or "a record is cut short"
            raise SourceUnreadableError(source.log_id, f"at offset {scan.position}: {why}")
        # A flipped bit in a length or an id may lead to bytes that look like entries all the same.
        if self._found_bytes != source.ledger_bytes():
            raise SourceUnreadableError(source.log_id, "its records are not those that its map tells of")

    def _copy(self, source_id: int, piece: ScannedPiece) -> Slice:
        base = source_id << 32
        found, is_live = self._found_bytes, self._is_live
        copied: dict[int, int] = {}
        stretches: list[tuple[int, int]] = []  # in ``piece.data``, with the length in front of each entry
        entries = 0
        for run in _runs(piece.records):
            ledger_id, first, _, _ = run[0]
            size_bytes = sum(record[3] for record in run) + LENGTH_BYTES * len(run)
            found[ledger_id] = found.get(ledger_id, 0) + size_bytes
            if not is_live(ledger_id):
                continue
            places = [base + record[2] for record in run]
            for start, stop in self._live_parts(ledger_id, first, places):
                begin = run[start][2] - LENGTH_BYTES - piece.start
                end = run[stop - 1][2] + run[stop - 1][3] - piece.start
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
        return Slice(len(piece.data), copied_bytes, entries)

    def _live_parts(self, ledger_id: int, first: int, places: list[int]) -> list[tuple[int, int]]:
        """Which of the entries from ``first`` on lie where the index says: [start, stop) each."""
        parts: list[tuple[int, int]] = []
        at, count = 0, len(places)
        while at < count:
            try:
                indexed = self._index.locate(ledger_id, first + at, count - at)
            except (OSError, FormatError) as exc:
                raise IndexUnreadableError({places[at] >> 32}, str(exc)) from exc
            if not indexed:
                at += 1
                continue
            stop = at + len(indexed)
            if list(indexed) == places[at:stop]:
                parts.append((at, stop))
            else:
                parts += [(at + n, at + n + 1) for n, one in enumerate(indexed) if one == places[at + n]]
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


class Relocation:
    """A published copy takes the place of its sources. Begun anew after any crash, with the same result."""

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

    def step(self) -> Slice | None:
        """Move the index for a slice of the new log; None when all of it is done.

        Raises:
            CompactionError: The copy, or the index, cannot be read; nothing is lost, its sources are there.
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
        return Slice(len(piece.data), 0, sum(len(move.entry_ids) for move in moves))

    def finish(self, kept: Collection[int] = ()) -> list[int]:
        """Sync the index, delete the sources but those to be kept; the ids of those that are gone now.

        Raises:
            CompactionError: A source cannot be deleted; the next round tries again.
            OSError: The index cannot be synced.
        """
        self._index.sync()  # index before delete (apache/bookkeeper#1534)
        return delete_sources(self._disk, self._directory, self.source_ids, self.target_id, kept)

    def close(self) -> None:
        """Give the file back."""
        if self._file is not None:
            self._file.close()
        self._file = self._scan = None

    def _next_piece(self) -> ScannedPiece | None:
        if self._scan is None:
            visible = self._directory / entry_log_name(self.target_id)
            if visible.name not in self._disk.list_directory(self._directory):
                self._disk.link(self._directory / compacted_name(self.target_id, self.source_ids[0]), visible)
            # Also if it was there: the crash may have been between the link and this.
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
        for run in _runs(records):
            ledger_id, first, _, _ = run[0]
            at, count = 0, len(run)
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
                    move[3].append(base + run[number][2])
                at += len(indexed) or 1
        return [LedgerMove(*move) for move in moves]


def delete_sources(
    disk: Disk,
    directory: Path,
    source_ids: Sequence[int],
    target_id: int | None,
    kept: Collection[int] = (),
) -> list[int]:
    """Delete logs nothing in the synced index points to any more; the ids of those that were there.

    With a target also the names that keep the compaction alive, those of logs to be ``kept`` as well: a log
    that is kept is an ordinary one again. ``CompactionError``: some may be left.
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
            # Not before: without this name nobody would know that a source has nothing left to give.
            for source_id in source_ids:
                if compacted_name(target_id, source_id) in names:
                    disk.unlink(directory / compacted_name(target_id, source_id))
            disk.sync_directory(directory)
    except OSError as exc:
        raise CompactionError(f"{directory}: a compacted log cannot be deleted: {exc}") from exc
    return deleted


def unfinished(disk: Disk, directory: Path) -> dict[int, tuple[int, ...]]:
    """Delete copies that were never completed; the ones to finish: new log -> its sources.

    ``CompactionError`` if the directory cannot be read or written.
    """
    try:
        found = leftovers(disk.list_directory(directory))
        for name in found.abandoned:
            log.info("%s: a compaction was interrupted; its copy is deleted", directory / name)
            disk.unlink(directory / name)
        if found.abandoned:
            disk.sync_directory(directory)
    except OSError as exc:
        raise CompactionError(f"{directory}: {exc}") from exc
    return dict(found.pending)


def _runs(records: list[Record]) -> list[list[Record]]:
    """The records in stretches of one ledger with consecutive entry ids, in order."""
    runs: list[list[Record]] = []
    ledger, expected = -1, -1
    for record in records:
        if record[0] == ledger and record[1] == expected:
            runs[-1].append(record)
        else:
            runs.append([record])
            ledger = record[0]
        expected = record[1] + 1
    return runs
