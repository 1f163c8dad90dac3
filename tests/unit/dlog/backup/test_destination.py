"""Objects in a directory."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from dlog.backup.destination import DirectoryDestination, open_destination
from dlog.backup.errors import BackupDamagedError, BackupError, BackupInUseError, BackupUnreachableError


def test_objects_are_put_listed_read_and_deleted_and_are_for_their_owner_only(tmp_path: Path) -> None:
    destination = open_destination(tmp_path / "new")
    destination.begin(create=True)
    destination.put("ledgers/1/a", b"one")
    destination.put("ledgers/1/a", b"two")
    destination.put("manifests/b", b"")
    destination.settle()
    assert destination.get("ledgers/1/a") == b"two"
    assert destination.names("ledgers/") == ["ledgers/1/a"]
    assert destination.names("nothing/") == []
    destination.delete("ledgers/1/a")
    destination.delete("ledgers/1/a")
    assert destination.names("ledgers/") == []
    assert not (tmp_path / "new/ledgers/1").exists()
    with pytest.raises(BackupDamagedError, match="missing"):
        destination.get("ledgers/1/a")
    for folder, _, files in os.walk(tmp_path / "new"):
        assert os.stat(folder).st_mode & 0o077 == 0
        assert all(os.stat(os.path.join(folder, name)).st_mode & 0o077 == 0 for name in files)
    destination.end()


def test_what_a_killed_process_has_not_finished_is_no_object_and_is_removed(tmp_path: Path) -> None:
    (tmp_path / "ledgers").mkdir()
    left = tmp_path / "ledgers" / ".new-1-2"
    left.write_bytes(b"half")
    destination = DirectoryDestination(tmp_path)
    assert destination.names("ledgers/") == []
    destination.begin(create=False)
    assert not left.exists()
    destination.end()


def test_one_process_at_a_time_writes(tmp_path: Path) -> None:
    one, other = DirectoryDestination(tmp_path), DirectoryDestination(tmp_path)
    one.begin(create=True)
    with pytest.raises(BackupInUseError, match=f"process {os.getpid()}"):
        other.begin(create=True)
    one.end()
    other.begin(create=True)
    other.end()


def test_a_destination_that_is_gone_is_not_made_again_by_a_write(tmp_path: Path) -> None:
    """It may be a disk that is not mounted any more."""
    destination = DirectoryDestination(tmp_path / "disk")
    destination.begin(create=True)
    shutil.rmtree(tmp_path / "disk")
    with pytest.raises(BackupUnreachableError):
        destination.put("ledgers/1/a", b"one")
    assert not (tmp_path / "disk").exists()
    destination.end()
    with pytest.raises(BackupUnreachableError):
        destination.begin(create=False)


def test_a_text_that_is_no_destination_is_refused() -> None:
    with pytest.raises(BackupError, match="neither the path"):
        open_destination("ftp://somewhere")
