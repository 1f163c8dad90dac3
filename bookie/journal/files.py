"""The files of a journal directory: created, recycled, kept as backups, one kept in reserve.

Inside: their sizes, names and lives. Not inside: writing to them (``journal``), their bytes
(``journal.format``), which files are still needed (``storage.checkpointer``).
Always: a file gets its name only when it has its own header and no other valid bytes; a file is recycled or
removed only if it lies below a durable mark.

Files are recycled: with O_DIRECT, overwriting blocks that were written before needs no change of file
metadata. It is 2 to 4 times as fast as growing a file. The journal id in each group's trailer tells the new
groups of a recycled file from the old ones.

A start creates a new file. On a full disk it takes the file called ``reserve``, whose blocks are allocated
already. The next file that falls below the mark becomes the new reserve, and is cut to its size.

Source: JournalChannel.java, Journal.java (journalMaxBackups); docs/storage-format.md 2.7;
apache/bookkeeper#3150 for the reserve.
"""

from __future__ import annotations

import contextlib
from collections import deque
from pathlib import Path

import attrs

from bookie.disk.disk import NO_SPACE, Disk, File
from bookie.journal.flushed import note_flushed
from bookie.journal.format import (
    ALIGNMENT_BYTES,
    FIRST_GROUP_OFFSET,
    JournalMark,
    Predecessor,
    encode_first_block,
    journal_id_of,
    journal_name,
)
from bookie.journal.last_synced import LastSynced
from ledger.runtime.log_lines import get_logger

log = get_logger(__name__)

RESERVE_BYTES = 1 << 20  # enough for fences and recoveries on a bookie that accepts no other adds
RESERVE_BYTES_MIN = 16 << 10
_SPARE_PREFIX = "spare-"
_RESERVE = "reserve"
_FILL_BYTES = 1 << 20


def is_spare_name(name: str) -> bool:
    """True for a file that waits to be used again."""
    return name.startswith(_SPARE_PREFIX)


@attrs.frozen(kw_only=True)
class JournalConfig:
    """Sizes of one journal. The defaults suit SSDs."""

    file_bytes_max: int = attrs.field(default=64 << 20, validator=attrs.validators.ge(64 << 10))
    preallocate_bytes: int = attrs.field(default=16 << 20, validator=attrs.validators.ge(ALIGNMENT_BYTES))
    group_bytes_max: int = attrs.field(
        default=1 << 20,
        validator=attrs.validators.and_(attrs.validators.ge(4096), attrs.validators.le(16 << 20)),
    )
    backups_max: int = attrs.field(default=0, validator=attrs.validators.ge(0))  # files kept below the mark
    spare_files_max: int = attrs.field(default=2, validator=attrs.validators.ge(0))
    direct: bool = True  # use O_DIRECT if the file system supports it


class JournalFiles:
    """The files of a journal directory. Its methods block. Only one thread calls each method at a time."""

    def __init__(self, disk: Disk, directory: Path, config: JournalConfig) -> None:
        self.directory = directory
        self._disk = disk
        self._config = config
        self._spares: deque[Path] = deque()  # the storage thread appends, the journal thread takes
        self._reserve = directory / _RESERVE
        self._has_reserve = False
        self._is_cut = False  # the reserve is known to be no larger than it must be
        self._has_warned = False
        self.last_synced = LastSynced(disk, directory)

    def scan(self) -> list[int]:
        """Ids of the journal files, ascending. Finds the spare files, and removes unfinished ones."""
        ids = []
        for name in sorted(self._disk.list_directory(self.directory)):
            if (journal_id := journal_id_of(name)) is not None:
                ids.append(journal_id)
            elif is_spare_name(name):
                self._spares.append(self.directory / name)
            elif name == _RESERVE:
                self._has_reserve = True
            elif name.endswith(".new"):
                self._disk.unlink(self.directory / name)
        return sorted(ids)

    def create(
        self, journal_id: int, previous: Predecessor, *, may_use_reserve: bool = False
    ) -> tuple[File, int]:
        """Create the next file. Return it with its allocated size. It is durable on return.

        Args:
            may_use_reserve: On a full disk use the reserved file. Only a start may use it. A running bookie
                stops accepting adds before the disk is full (``disk_watch``), and it can be started again.
        """
        try:
            origin = self._spares.popleft()
        except IndexError:
            try:
                origin = self._make(journal_id)
            except OSError as exc:
                if exc.errno not in NO_SPACE or not may_use_reserve or not self._has_reserve:
                    raise
                log.warning("%s: the disk is full; the reserved journal file is used", self.directory)
                origin = self._reserve
                self._has_reserve = False
        file = self._disk.open(origin, write=True, direct=self._config.direct)
        try:
            allocated = file.size() // ALIGNMENT_BYTES * ALIGNMENT_BYTES
            if allocated == 0:  # a spare file that a crash has emptied
                allocated = self.fill(file, 0, self.first_bytes)
            # The header is written before the file gets its name. Under its name, a recycled file never shows
            # its old content.
            block = self._disk.aligned_buffer(FIRST_GROUP_OFFSET + ALIGNMENT_BYTES)
            block[:FIRST_GROUP_OFFSET] = encode_first_block(journal_id, previous)
            file.write_durably(block, 0)
            self._disk.rename(origin, self.directory / journal_name(journal_id))
            self._disk.sync_directory(self.directory)
        except BaseException:
            file.close()
            raise
        return file, allocated

    @property
    def first_bytes(self) -> int:
        """The size of a new file while there is space."""
        return min(self._config.preallocate_bytes, self._config.file_bytes_max)

    @property
    def has_file_at_hand(self) -> bool:
        """True if ``create`` needs no space, at a start."""
        return self._has_reserve or bool(self._spares)

    def _make(self, journal_id: int) -> Path:
        path = self.directory / f"{journal_name(journal_id)}.new"
        try:
            self._make_filled(path, self.first_bytes)
        except OSError as exc:
            if exc.errno not in NO_SPACE or self.first_bytes <= RESERVE_BYTES:
                raise
            self._make_filled(path, RESERVE_BYTES)  # what is left of the disk
        return path

    def _make_filled(self, path: Path, size_bytes: int) -> None:
        """Create a file of zeros. If the disk has no space for it, no file is left behind."""
        file = self._disk.open(path, create=True, write=True, direct=self._config.direct)
        try:
            self.fill(file, 0, size_bytes)
        except OSError:
            with contextlib.suppress(OSError):
                self._disk.unlink(path)
            raise
        finally:
            file.close()

    def fill(self, file: File, start: int, stop: int) -> int:
        """Write zeros, so that later writes find their blocks allocated. Return the end of the zeros."""
        stop = -(-stop // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        zeros = memoryview(self._disk.aligned_buffer(min(_FILL_BYTES, stop - start)))
        try:
            for offset in range(start, stop, _FILL_BYTES):
                file.pwrite(zeros[: stop - offset], offset)
            file.sync()
        except OSError as exc:
            if exc.errno in NO_SPACE:
                with contextlib.suppress(OSError):
                    file.truncate(start)  # or a full disk would stay full of zeros
            raise
        return stop

    def retire_below(self, journal_id: int) -> None:
        """Recycle or delete the files before this one, except for backups. A durable mark excludes them.

        A file with holes is deleted: a write into a recycled one must find its blocks. Creates the reserved
        file too, if there is none.
        """
        ids = sorted(
            old_id
            for name in self._disk.list_directory(self.directory)
            if (old_id := journal_id_of(name)) is not None and old_id < journal_id
        )
        changed = False
        for old_id in ids[: max(0, len(ids) - self._config.backups_max)]:
            path = self.directory / journal_name(old_id)
            size_bytes = self._recyclable_bytes(path)
            if not self._has_reserve and size_bytes >= RESERVE_BYTES_MIN:
                self._rename(path, self._reserve)
                self._has_reserve, self._is_cut = True, False
            elif len(self._spares) < self._config.spare_files_max and self._is_worth_keeping(size_bytes):
                spare = self.directory / f"{_SPARE_PREFIX}{old_id:x}"
                self._rename(path, spare)
                self._spares.append(spare)
            else:
                self._disk.unlink(path)
                changed = True
        if changed:
            self._disk.sync_directory(self.directory)
        if not self._has_reserve:
            self._make_reserve()
        elif not self._is_cut:
            self._cut_reserve()

    def can_give_back(self) -> bool:
        """True if ``give_back`` works here; or if there is no file that would need it."""
        for name in self._disk.list_directory(self.directory):
            if journal_id_of(name) is not None:
                file = self._disk.open(self.directory / name, write=True)
                try:
                    end = -(-file.size() // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
                    return file.give_back(end, end + ALIGNMENT_BYTES)  # where nothing is
                except OSError:
                    return False
                finally:
                    file.close()
        return True

    def give_back(self, mark: JournalMark) -> bool:
        """Free the space below a durable mark, in the file that it names. For a full disk.

        Returns:
            False: The file system cannot do it, or has no space for the note that comes first.
        """
        stop = mark.offset // ALIGNMENT_BYTES * ALIGNMENT_BYTES
        if mark.journal_id == 0 or stop <= FIRST_GROUP_OFFSET:
            return True
        path = self.directory / journal_name(mark.journal_id)
        try:
            file = self._disk.open(path, write=True)
        except FileNotFoundError:
            return True  # it was closed in order, and is gone
        try:
            note_flushed(self._disk, self.directory, mark)
            return file.give_back(FIRST_GROUP_OFFSET, stop)
        except OSError as exc:
            log.warning("%s: its first part is not freed: %s", path, exc)
            return False
        finally:
            file.close()

    def drop_spares(self) -> None:
        """Delete the spare files, on a full disk: what waits for a flush needs their space."""
        while self._spares:
            self._disk.unlink(self._spares.popleft())

    def _rename(self, old: Path, new: Path) -> None:
        self._disk.rename(old, new)
        self._disk.sync_directory(self.directory)

    def _make_reserve(self) -> None:
        path = self._reserve.with_name(f"{_RESERVE}.new")
        try:
            with contextlib.suppress(FileNotFoundError):
                self._disk.unlink(path)
            self._make_filled(path, min(RESERVE_BYTES, self._config.file_bytes_max))
            self._rename(path, self._reserve)
        except OSError as exc:
            if exc.errno not in NO_SPACE:
                raise
            if not self._has_warned:
                log.warning("%s: no space for the journal file in reserve", self.directory)
            self._has_warned = True
        else:
            self._has_reserve = True

    def _cut_reserve(self) -> None:
        """Cut a reserve that was a journal, in this process or in one that was killed, to its size."""
        file = self._disk.open(self._reserve, write=True)
        try:
            if file.size() > RESERVE_BYTES:
                file.truncate(RESERVE_BYTES)
                file.sync()
        finally:
            file.close()
        self._is_cut = True

    def _recyclable_bytes(self, path: Path) -> int:
        file = self._disk.open(path)
        try:
            return 0 if file.has_holes() else file.size()
        finally:
            file.close()

    def _is_worth_keeping(self, size_bytes: int) -> bool:
        return self._config.file_bytes_max // 2 <= size_bytes < self._config.file_bytes_max + ALIGNMENT_BYTES
