"""A directory that the disk holds: its files stay its own when another directory takes its path."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from bookie.disk.real_disk import RealDisk
from bookie.errors import StorageFailedError
from bookie.storage.config import StorageConfig
from bookie.storage.opening import open_storage
from bookie.storage.write_cache import SealedCache
from ledger.runtime.held_directories import CHECK_S, DirectoryLostError
from tests.fakes.moved_directories import tree


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


def test_a_loss_that_a_deletion_saw_holds_at_once(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "file").touch()
    disk = RealDisk()
    release = disk.hold(here)
    disk._checked_s = math.inf  # the last look is new
    here.rename(tmp_path / "moved")
    disk.check_in_place()
    with pytest.raises(DirectoryLostError):
        disk.unlink(here / "file")
    with pytest.raises(DirectoryLostError):
        disk.check_in_place()
    (tmp_path / "moved").rename(here)
    with pytest.raises(DirectoryLostError):  # also if it comes back
        disk.check_in_place()
    release()


@pytest.mark.slow
async def test_a_flush_of_a_directory_that_was_moved_adds_nothing_to_the_open_log(tmp_path: Path) -> None:
    here, moved = tmp_path / "here", tmp_path / "moved"
    disk = RealDisk()
    config = StorageConfig(journal_directories=(here,), ledger_directories=(here,))
    async with open_storage(disk, config) as storage:
        (store,) = storage.stores

        async def flush(entry_id: int) -> None:
            sealed = SealedCache(entry_id, {1: {entry_id: bytes(40)}}, ())
            await store.in_thread(lambda: store.files.flush(sealed))

        await flush(0)
        here.rename(moved)
        (log,) = (moved / "current").glob("*.log")
        before = log.read_bytes()
        disk._checked_s -= CHECK_S  # the last look is old
        with pytest.raises(StorageFailedError, match="moved, removed or replaced"):
            await flush(1)
        assert log.read_bytes() == before


class ReplacingDisk(RealDisk):
    """Another directory takes the place of one right before it is locked."""

    def lock(self, path: Path) -> Callable[[], None]:
        here = path.parent.parent
        if not here.with_name("moved").exists():
            here.rename(here.with_name("moved"))
            (here / "current").mkdir(parents=True)
        return super().lock(path)


@pytest.mark.slow
async def test_a_directory_replaced_while_it_is_opened_gets_no_file(tmp_path: Path) -> None:
    here = tmp_path / "here"
    config = StorageConfig(journal_directories=(here,), ledger_directories=(here,))
    with pytest.raises(DirectoryLostError):
        async with open_storage(ReplacingDisk(), config):
            pass
    assert set(tree(here)) == {Path("current")}
    assert set(tree(tmp_path / "moved")) == {Path("current"), Path("current/LOCK")}
