"""``lastSynced``: up to where a journal's files are synced, noted beside them after each group.

At the end of the last file, a torn group that was not acknowledged looks like damage to an acknowledged
group. A truncated file looks like a file that was never longer. This note distinguishes them.

Inside: writing and reading the note. Not inside: the conclusion of a start from it (``replay``), its bytes
(``journal.format``).
Always: the position is on stable storage before it is noted. The note itself is not synced: a killed process
leaves the last note, a power cut may leave an older one, and both are true.

Source: ours; docs/storage-format.md 2.9 and 7.2; apache/bookkeeper#4659.
"""

from __future__ import annotations

from pathlib import Path

from bookie.disk.disk import NO_SPACE, Disk, File
from bookie.errors import FormatError
from bookie.journal.format import NO_MARK, JournalMark, decode_synced, encode_synced
from ledger.runtime.log_lines import get_logger

LAST_SYNCED = "lastSynced"

log = get_logger(__name__)


class LastSynced:
    """The note of one journal directory. Blocks; used by the journal thread only."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._path = directory / LAST_SYNCED
        self._file: File | None = None

    def note(self, position: JournalMark) -> None:
        """Note that everything before the position is on stable storage. ``OSError`` if that fails."""
        try:
            if self._file is None:
                self._file = self._open()
            self._file.pwrite(encode_synced(position), 0)
        except OSError as exc:
            # The file needs a block if a power cut has emptied it. An older note, or none, is true as well.
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
    """The last note; ``NO_MARK`` if there is none or it is damaged, so that nothing follows from it."""
    path = directory / LAST_SYNCED
    try:
        data = disk.read_file(path)
    except FileNotFoundError:
        return NO_MARK
    if not any(data):
        return NO_MARK  # usual after a power cut: the note is not synced, so the file is empty or all zeros
    try:
        return decode_synced(data)
    except FormatError as exc:
        log.warning("%s: %s; the journal is replayed without it", path, exc)
        return NO_MARK
