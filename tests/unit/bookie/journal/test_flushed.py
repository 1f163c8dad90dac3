"""The note that takes the place of a lost mark, once the space of a journal was given back."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie.disk.real_disk import RealDisk
from bookie.journal.flushed import FLUSHED, note_flushed, read_flushed, replay_start
from bookie.journal.format import NO_MARK, JournalMark

MARK = JournalMark(5, 8192)


def test_the_note_counts_while_its_file_is_there(tmp_path: Path) -> None:
    disk = RealDisk()
    assert read_flushed(disk, tmp_path, [5, 6]) == NO_MARK, "none was written"
    note_flushed(disk, tmp_path, MARK)
    assert read_flushed(disk, tmp_path, [5, 6]) == MARK
    assert read_flushed(disk, tmp_path, [6]) == NO_MARK, "the file was deleted, after a later mark"


def test_the_note_takes_the_place_of_no_mark_but_not_of_an_older_one(tmp_path: Path) -> None:
    """With an older mark a ledger directory is an old copy: what the note calls flushed is not there."""
    note_flushed(RealDisk(), tmp_path, MARK)
    assert replay_start(RealDisk(), tmp_path, [5], NO_MARK) == MARK
    older = JournalMark(5, 4096)
    assert replay_start(RealDisk(), tmp_path, [5], older) == older


def test_a_damaged_note_does_not_count(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    note_flushed(RealDisk(), tmp_path, MARK)
    path = tmp_path / FLUSHED
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert read_flushed(RealDisk(), tmp_path, [5]) == NO_MARK
    assert "is replayed without it" in caplog.text
