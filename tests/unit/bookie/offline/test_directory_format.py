"""Emptying a bookie's directories: all of them, and only while the bookie is stopped."""

# covers: bookie/storage/config.py

from __future__ import annotations

from pathlib import Path

import pytest

from bookie.disk.real_disk import RealDisk
from bookie.errors import DirectoryInUseError
from bookie.offline.directory_format import format_directories
from bookie.offline.index_rebuild import locked
from bookie.storage.config import CURRENT, StorageConfig


@pytest.fixture
def config(tmp_path: Path) -> StorageConfig:
    journal, ledgers = tmp_path / "journal", tmp_path / "ledgers"
    for directory in (journal, ledgers):
        (directory / CURRENT / "below").mkdir(parents=True)
        (directory / CURRENT / "VERSION").write_text("5\n")
        (directory / CURRENT / "below" / "file").write_bytes(b"entry")
        (directory / "lost+found").mkdir()
    return StorageConfig(journal_directories=(journal,), ledger_directories=(ledgers,))


def files(config: StorageConfig) -> set[str]:
    parents = (*config.journal_directories, *config.ledger_directories)
    return {path.name for parent in parents for path in (parent / CURRENT).rglob("*")}


def test_everything_below_the_directories_is_deleted_and_nothing_beside_them(config: StorageConfig) -> None:
    assert set(format_directories(RealDisk(), config)) == {
        *config.journal_directories,
        *config.ledger_directories,
    }
    assert files(config) <= {"LOCK"}
    assert (config.journal_directories[0] / "lost+found").is_dir()
    format_directories(RealDisk(), config)  # again, as after an interruption


def test_the_directories_of_a_running_bookie_are_not_touched(config: StorageConfig) -> None:
    with locked(RealDisk(), config), pytest.raises(DirectoryInUseError):
        format_directories(RealDisk(), config)
    assert {"VERSION", "file"} <= files(config)
