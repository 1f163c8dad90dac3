"""``lastSynced``: up to where a journal's files are known to be synced, noted beside them after each group.

At the end of the last file a torn group, which nobody was told of, and damage to an acknowledged one look
the same, and a file that was cut short looks like one that never was longer. This note tells them apart.

Inside: the file, written and read. Not inside: what follows at a start (``replay``), its bytes
(``journal_format``).
Always: the position was on stable storage before it was noted. The note itself is not synced: a killed
process leaves the last one, a power cut perhaps an older one, which is as true.

Source: ours; what it is for: reference on bookie storage 7.5 (1, 7), apache/bookkeeper#4659.
"""

from __future__ import annotations

import logging
from pathlib import Path

from bookie.disk import NO_SPACE, Disk, File
from bookie.errors import FormatError
from bookie.journal_format import NO_MARK, JournalMark, decode_synced, encode_synced

LAST_SYNCED = "lastSynced"

log = logging.getLogger(__name__)


class LastSynced:
    """The note of one journal directory. Blocks; the journal thread's."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._path = directory / LAST_SYNCED
        self._file: File | None = None

    def note(self, position: JournalMark) -> None:
        """Everything before the position is on stable storage. ``OSError`` if that cannot be noted."""
        try:
            if self._file is None:
                self._file = self._open()
            self._file.pwrite(encode_synced(position), 0)
        except OSError as exc:
            # A note that a power cut has emptied needs a block again. An older one, or none, is as true.
            if exc.errno not in NO_SPACE:
                raise

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> File:
        try:
            return self._disk.open(self._path, write=True)
        except FileNotFoundError:
            return self._disk.open(self._path, create=True, write=True)


def read_last_synced(disk: Disk, directory: Path) -> JournalMark:
    """What was noted last; ``NO_MARK`` if nothing was, or if it is damaged: then nothing follows from it."""
    path = directory / LAST_SYNCED
    try:
        return decode_synced(disk.read_file(path))
    except FileNotFoundError:
        return NO_MARK
    except FormatError as exc:
        log.warning("%s: %s; the journal is replayed without it", path, exc)
        return NO_MARK
