"""``lastMark``: how far each journal is in ledger storage, told by a small file in every ledger directory.

Inside: names, reading the greatest, writing all of them. Not inside: which marks are true
(``checkpoint``), their 16 bytes (``journal_format``).
Always: a mark is replaced whole or not at all; the greatest readable one counts, for each journal by
itself; a copy that cannot be written does not matter as long as another one could.

With one journal the file is ``lastMark``, with several ``lastMark.<index of the journal>``.

Source: Journal.java (LastLogMark); reference on bookie storage 1.7, 7.4 (4).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from bookie.checkpoint import Marks
from bookie.disk import Disk
from bookie.errors import FormatError
from bookie.journal_format import NO_MARK, JournalMark, decode_mark, encode_mark

log = logging.getLogger(__name__)

_LAST_MARK = "lastMark"


def mark_name(journal: int, journal_count: int) -> str:
    """The file that holds a journal's mark."""
    return _LAST_MARK if journal_count == 1 else f"{_LAST_MARK}.{journal}"


class LastMarks:
    """The mark files of all ledger directories. Blocks; one thread at a time."""

    def __init__(self, disk: Disk, directories: Sequence[Path], journal_count: int) -> None:
        self._disk = disk
        self._directories = tuple(directories)
        self._names = [mark_name(journal, journal_count) for journal in range(journal_count)]
        # What each directory is known to hold; None: to be written, whatever it may be.
        self._written: list[list[JournalMark | None]] = [[None] * journal_count for _ in directories]

    def read(self) -> list[Marks]:
        """The marks found in each directory; ``NO_MARK`` where a file is missing or damaged.

        ``OSError`` if a mark can be read in no directory for another reason than that it is not there.
        """
        found = [[self._read(directory / name) for name in self._names] for directory in self._directories]
        for of_journal in zip(*found, strict=True):
            failures = [mark for mark in of_journal if isinstance(mark, OSError)]
            if len(failures) == len(of_journal):
                raise failures[0]
        return [tuple(NO_MARK if isinstance(mark, OSError) else mark for mark in marks) for marks in found]

    def write(self, marks: Marks) -> None:
        """Remember that all below the marks is flushed. ``OSError`` if no directory takes them all."""
        failure: OSError | None = None
        success_count = 0
        for directory, written in zip(self._directories, self._written, strict=True):
            try:
                for journal, mark in enumerate(marks):
                    if written[journal] != mark:
                        written[journal] = None
                        self._disk.replace_file(directory / self._names[journal], encode_mark(mark))
                        written[journal] = mark
            except OSError as exc:
                failure = exc
                log.error("%s: lastMark could not be written: %s", directory, exc)
            else:
                success_count += 1
        if failure is not None and success_count == 0:
            raise failure

    def _read(self, path: Path) -> JournalMark | OSError:
        try:
            return decode_mark(self._disk.read_file(path))
        except FileNotFoundError:
            return NO_MARK
        except FormatError as exc:
            # Apache rewrites it in place: a crash may leave it short. Replaying more is always right.
            log.warning("%s: %s; it does not count", path, exc)
            return NO_MARK
        except OSError as exc:
            log.error("%s cannot be read: %s", path, exc)
            return exc


def greatest_marks(found: Sequence[Marks]) -> Marks:
    """Of each journal the greatest mark that any directory has."""
    return tuple(map(max, zip(*found, strict=True)))
