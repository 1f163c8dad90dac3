"""A directory that the disk holds: its files stay its own when another directory takes its path."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie.disk.real_disk import RealDisk
from bookie.errors import StorageFailedError
from bookie.storage.config import StorageConfig
from bookie.storage.opening import open_storage
from ledger.runtime.held_directories import CHECK_S, DirectoryLostError


def test_paths_below_a_held_directory_lead_into_it_and_take_no_name_away(tmp_path: Path) -> None:
    here, moved = tmp_path / "here", tmp_path / "moved"
    here.mkdir()
    (here / "old").touch()
    disk = RealDisk()
    release = disk.hold(here)
    disk.check_in_place()
    here.rename(moved)
    here.mkdir()
    for name in ("old", "gone"):
        (here / name).touch()
    disk.make_directory(here / "a" / "b")
    disk.open(here / "a" / "b" / "new", create=True).close()
    assert (moved / "a" / "b" / "new").exists()
    assert disk.list_directory(here / "a") == ["b"]
    for job in (
        lambda: disk.rename(here / "old", here / "new"),
        lambda: disk.link(here / "old", here / "new"),
        lambda: disk.unlink(here / "old"),
        lambda: disk.remove_tree(here / "a"),
        lambda: disk.remove_directory(here / "a"),
        lambda: disk.check_directory(here),
    ):
        with pytest.raises(DirectoryLostError):
            job()
    assert sorted(path.name for path in here.iterdir()) == ["gone", "old"]
    here.rename(tmp_path / "other")
    moved.rename(here)
    with pytest.raises(DirectoryLostError):
        disk.unlink(here / "old")  # once lost, for good
    release()
    disk.unlink(here / "old")


@pytest.mark.slow
async def test_a_bookie_whose_directory_was_moved_writes_nothing_in_its_place(
    tmp_path: Path, autojump_clock: object
) -> None:
    here = tmp_path / "here"
    config = StorageConfig(journal_directories=(here,), ledger_directories=(here,))
    disk = RealDisk()
    async with open_storage(disk, config) as storage:
        here.rename(tmp_path / "moved")
        (here / "current").mkdir(parents=True)
        disk._checked_s -= CHECK_S  # the last look is old
        batch = storage.new_batch()
        ledger = storage.create_ledger(batch, 1, b"key")
        storage.stage_entry(batch, ledger, 0, -1, bytes(40))
        with pytest.raises(StorageFailedError, match="moved, removed or replaced"):
            await storage.submit_durably(batch)
    assert list((here / "current").iterdir()) == []
