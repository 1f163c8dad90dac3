"""``lastMark``: up to where each journal is in ledger storage, a small file in every ledger directory.

Inside: names, reading the greatest mark, writing all marks. Not inside: which marks may be written
(``checkpoint``), their 16 bytes (``journal.format``).
Always: a mark is replaced whole, or not at all, or torn so that a reader notices it; the greatest readable
mark counts, for each journal by itself; a mark that cannot be written in one directory does no harm if
another directory takes it.

With one journal the file is ``lastMark``, with several ``lastMark.<index of the journal>``. Journals may be
added after the existing ones: the marks of the old journals stay valid. A start with fewer journals than
marks would leave out acknowledged entries, so it is refused.

Source: Journal.java (LastLogMark); docs/storage-format.md 7.1.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path

from bookie.disk.disk import NO_SPACE, Disk
from bookie.errors import FormatError, StartError
from bookie.journal.checkpoint import Marks
from bookie.journal.format import NO_MARK, JournalMark, decode_mark, encode_mark, is_closed_mark
from ledger.runtime.log_lines import get_logger

log = get_logger(__name__)

_LAST_MARK = "lastMark"
_NAME = re.compile(r"lastMark(?:\.(\d{1,4}))?")


def mark_name(journal: int, journal_count: int) -> str:
    """The name of the file with a journal's mark."""
    return _LAST_MARK if journal_count == 1 else f"{_LAST_MARK}.{journal}"


def is_mark_name(name: str) -> bool:
    """True if a file of that name has a journal's mark."""
    return _NAME.fullmatch(name) is not None


class LastMarks:
    """The mark files of all ledger directories. Blocks; used by one thread at a time."""

    def __init__(self, disk: Disk, directories: Sequence[Path], journal_count: int) -> None:
        self._disk = disk
        self._directories = tuple(directories)
        self._names = [mark_name(journal, journal_count) for journal in range(journal_count)]
        self._outdated: list[Path] = []  # marks of a single journal; now there are several journals
        # The known content of each directory; None: unknown, so it is written.
        self._written: list[list[bytes | None]] = [[None] * journal_count for _ in directories]
        self._copies: dict[str, set[tuple[JournalMark, bool]]] = {}  # of each name: mark, is it closed

    def read(self) -> list[Marks]:
        """The marks found in each directory; ``NO_MARK`` where a file is missing or damaged.

        Raises:
            StartError: There are marks of journals that are not configured.
            OSError: A mark cannot be read in any directory, although its file exists.
        """
        self._outdated, self._copies = [], {}
        for directory in self._directories:
            self._check_names(directory, self._disk.list_directory(directory))
        found = [[self._read(directory / name) for name in self._names] for directory in self._directories]
        for of_journal in zip(*found, strict=True):
            failures = [mark for mark in of_journal if isinstance(mark, OSError)]
            if len(failures) == len(of_journal):
                raise failures[0]
        marks = [[NO_MARK if isinstance(mark, OSError) else mark for mark in of_all] for of_all in found]
        for path in self._outdated:
            # The single journal of an earlier run is the first journal now.
            former = self._read(path)
            if isinstance(former, OSError):
                raise former
            in_directory = marks[self._directories.index(path.parent)]
            in_directory[0] = max(in_directory[0], former)
        return [tuple(of_all) for of_all in marks]

    def _check_names(self, directory: Path, names: Sequence[str]) -> None:
        count = len(self._names)
        for name in names:
            match = _NAME.fullmatch(name)
            if match is None or name in self._names:
                continue
            if match[1] is not None:
                raise StartError(
                    f"{directory / name} belongs to a journal that is not configured: this bookie ran with"
                    f" {'several' if count == 1 else f'more than {count}'} journal directories, and entries"
                    " acknowledged there may be nowhere else. Configure all of them, in their order"
                )
            self._outdated.append(directory / name)

    def closed(self, marks: Marks) -> list[bool]:
        """For each journal, whether it was closed in order at the mark, so that nothing is after it.

        Every copy of that mark says so, by the last ``read``.
        """
        found = [self._copies.get(name, set()) for name in self._names]
        return [
            (mark, True) in copies and (mark, False) not in copies
            for mark, copies in zip(marks, found, strict=True)
        ]

    def reopen(self, marks: Marks) -> None:
        """Note that records may come after marks that were found closed. Raises as ``write``."""
        if any(self.closed(marks)):
            self._copies.clear()
            self.write(marks)

    def write(self, marks: Marks, *, are_closed: bool = False) -> None:
        """Note that everything below the marks is flushed. ``OSError`` if no directory takes all marks.

        A mark that was found closed stays so until it moves: a start without the journal may be interrupted.
        ``reopen`` ends that.

        Args:
            are_closed: The journals end there, and nothing is written to them before another mark is.
        """
        found = self.closed(marks)
        content = [
            encode_mark(mark, is_closed=are_closed or is_closed)
            for mark, is_closed in zip(marks, found, strict=True)
        ]
        failure: OSError | None = None
        success_count = 0
        for directory, written in zip(self._directories, self._written, strict=True):
            try:
                for journal, data in enumerate(content):
                    if written[journal] != data:
                        written[journal] = None
                        self._write(directory / self._names[journal], data)
                        written[journal] = data
            except OSError as exc:
                failure = exc
                log.error("%s: lastMark could not be written: %s", directory, exc)
            else:
                success_count += 1
                self._remove_outdated(directory)
        if failure is not None and success_count == 0:
            raise failure

    def _write(self, path: Path, data: bytes) -> None:
        try:
            self._disk.replace_file(path, data)
        except OSError as exc:
            if exc.errno not in NO_SPACE:
                raise
            # On a full disk the journal files must still be recycled, or a later start would find none free.
            # Overwriting needs no space. If the write is torn, the mark does not count, and all journal files
            # are replayed: none is removed before this write is synced.
            try:
                file = self._disk.open(path, write=True)
            except FileNotFoundError:
                raise exc from None
            try:
                file.pwrite(data, 0)
                file.sync()
            finally:
                file.close()

    def _remove_outdated(self, directory: Path) -> None:
        for path in [path for path in self._outdated if path.parent == directory]:
            with contextlib.suppress(FileNotFoundError):
                self._disk.unlink(path)
                self._disk.sync_directory(directory)
            self._outdated.remove(path)

    def _read(self, path: Path) -> JournalMark | OSError:
        try:
            data = self._disk.read_file(path)
            mark = decode_mark(data)
            self._copies.setdefault(path.name, set()).add((mark, is_closed_mark(data)))
            return mark
        except FileNotFoundError:
            return NO_MARK
        except FormatError as exc:
            # Apache overwrites it in place, so a crash may leave it short. Replaying more is always correct.
            log.warning("%s: %s; it does not count", path, exc)
            return NO_MARK
        except OSError as exc:
            log.error("%s cannot be read: %s", path, exc)
            return exc


def greatest_marks(found: Sequence[Marks]) -> Marks:
    """For each journal, the greatest mark in any directory."""
    return tuple(map(max, zip(*found, strict=True)))
