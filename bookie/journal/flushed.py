"""``flushed``: up to where a journal was in ledger storage when its space was given back.

On a full disk a start frees the first part of a journal file, below the mark, while the rest is still needed.
There a mark may be overwritten in place, and torn. A replay without a mark begins at the first file. It would
end in the hole, and acknowledged records follow it. So this note takes the place of a mark that is lost.

Inside: writing and reading the note. Not inside: its bytes (``journal.format``), freeing the space
(``files``).
Always: the mark is durable before the note, and the note before space below it is given back. The note
counts only if there is no mark, and while the file that it names is there: an older mark means that a ledger
directory is an old copy, which lacks what the note says.

Source: ours; docs/storage-format.md 2.7 and 7.2.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from bookie.disk.disk import Disk
from bookie.errors import FormatError
from bookie.journal.format import NO_MARK, JournalMark, decode_synced, encode_synced
from ledger.runtime.log_lines import get_logger

FLUSHED = "flushed"

log = get_logger(__name__)


def note_flushed(disk: Disk, directory: Path, mark: JournalMark) -> None:
    """Note a mark that is durable. Durable on return. ``OSError`` if that fails: the last note stays."""
    disk.replace_file(directory / FLUSHED, encode_synced(mark))


def replay_start(disk: Disk, directory: Path, journal_ids: Collection[int], mark: JournalMark) -> JournalMark:
    """The mark, or the note if there is no mark."""
    return read_flushed(disk, directory, journal_ids) if mark == NO_MARK else mark


def read_flushed(disk: Disk, directory: Path, journal_ids: Collection[int]) -> JournalMark:
    """The note; ``NO_MARK`` if there is none, if it is damaged, or if its file is gone."""
    path = directory / FLUSHED
    try:
        noted = decode_synced(disk.read_file(path))
    except FileNotFoundError:
        return NO_MARK
    except FormatError as exc:
        log.warning("%s: %s; the journal is replayed without it", path, exc)
        return NO_MARK
    return noted if noted.journal_id in journal_ids else NO_MARK
