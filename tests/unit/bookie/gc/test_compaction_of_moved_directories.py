"""A directory that is moved at any step of a compaction keeps every entry, and its place gets nothing."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from bookie.disk.disk import Buffer, File
from bookie.disk.real_disk import RealDisk, RealFile
from bookie.errors import BookieServerError, StorageFailedError
from tests.fakes.logs_by_hand import collect, complete_log, opened, readable
from tests.fakes.moved_directories import tree

KEPT = {1: range(40), 2: range(30)}


def entry_logs(directory: Path) -> set[str]:
    return {path.name for path in directory.rglob("*.log") if path.parent.name == "current"}


class CountedFile(RealFile):
    disk: MovingDisk

    def pwrite(self, data: Buffer, offset: int) -> None:
        self.disk.step()
        super().pwrite(data, offset)

    def sync(self) -> None:
        self.disk.step()
        super().sync()


class MovingDisk(RealDisk):
    """Its directory is moved, and an old copy put in its place, before the n-th change of a file."""

    def __init__(self, directory: Path, copy: Path) -> None:
        super().__init__()
        self._directory, self._copy = directory, copy
        self.moved = directory.with_name("moved")
        self.steps_left: int | None = None
        self.names: set[str] = set()  # of the entry logs then

    def step(self) -> None:
        if self.steps_left is None:
            return
        self.steps_left -= 1
        if self.steps_left == 0:
            self._directory.rename(self.moved)
            self.names = entry_logs(self.moved)
            shutil.copytree(self._copy, self._directory)

    def open(self, path: Path, *, create: bool = False, write: bool = False, direct: bool = False) -> File:
        if create:
            self.step()
        opened = super().open(path, create=create, write=write, direct=direct)
        assert isinstance(opened, RealFile)
        file = CountedFile(path, opened._descriptor, direct=opened.direct)
        file.disk = self
        return file

    def rename(self, old: Path, new: Path) -> None:
        self.step()
        super().rename(old, new)

    def link(self, old: Path, new: Path) -> None:
        self.step()
        super().link(old, new)

    def unlink(self, path: Path) -> None:
        self.step()
        super().unlink(path)

    def sync_directory(self, path: Path) -> None:
        self.step()
        super().sync_directory(path)


async def compact(directory: Path, copy: Path, move_at: int) -> MovingDisk:
    """Compact two logs, and move the directory before that step; then the process is killed."""
    disk = MovingDisk(directory, copy)
    with suppress(BookieServerError, OSError):
        async with opened(directory, disk=disk) as storage:
            disk.steps_left = move_at
            with suppress(BookieServerError, OSError):
                await collect(storage)
            storage.failure.report(StorageFailedError("killed"), "the test")
    return disk


@pytest.mark.slow
async def test_a_directory_moved_at_any_step_of_a_compaction_keeps_every_entry(
    tmp_path: Path,
) -> None:
    original = tmp_path / "original"
    async with opened(original) as storage:
        await complete_log(storage, {1: range(40), 3: range(60)})
        await complete_log(storage, {2: range(30), 3: range(60, 120)})
        await storage.delete_ledger(3)
    move_at, moves = 0, 0
    while True:
        move_at += 1
        work = tmp_path / str(move_at)
        directory = work / "ns"
        shutil.copytree(original, directory)
        disk = await compact(directory, original, move_at)
        if not disk.moved.exists():
            break
        moves += 1
        assert tree(directory) == tree(original), f"nothing is written there, moved at step {move_at}"
        assert disk.names <= entry_logs(disk.moved), f"nothing is deleted, moved at step {move_at}"
        async with opened(disk.moved) as storage:
            assert await readable(storage, KEPT), f"moved at step {move_at}"
            await collect(storage)
            assert await readable(storage, KEPT), f"moved at step {move_at}"
        shutil.rmtree(work)
    assert moves > 10
