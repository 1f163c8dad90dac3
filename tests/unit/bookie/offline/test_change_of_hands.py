"""Directories in which Apache's bookie wrote last: no start, and a conversion that keeps keys and fences."""

from __future__ import annotations

import itertools
import random
import shutil
from pathlib import Path

import attrs
import pytest

from bookie.disk.disk import Disk
from bookie.disk.real_disk import RealDisk
from bookie.errors import IndexKindError, IndexMissingError, StartError
from bookie.index.apache_refusal import stops_page_files
from bookie.index.index_factory import IndexConfig
from bookie.journal.last_mark import is_mark_name
from bookie.offline.index_places import REPLACED
from bookie.offline.index_rebuild import rebuild_indexes, take_over_page_files
from bookie.storage.config import StorageConfig
from bookie.storage.opening import open_storage
from tests.effort import IS_SAMPLE
from tests.fakes.bookie_work import CONFIG, body_of
from tests.fakes.simulated_disk import PowerCutError, SimulatedDisk
from tests.unit.bookie.offline.test_index_rebuild import CHUNKS, KEY, KINDS, PAGES, check, fill

pytestmark = pytest.mark.slow


def cut_marks(disk: Disk, config: StorageConfig) -> None:
    """Leave the marks as Apache's bookie writes them."""
    for directory in config.ledger_directories:
        for name in filter(is_mark_name, disk.list_directory(directory / "current")):
            path = directory / "current" / name
            disk.replace_file(path, disk.read_file(path)[:16])


def config_of(directory: Path, index: IndexConfig) -> StorageConfig:
    return StorageConfig(
        journal_directories=(directory / "journal",), ledger_directories=(directory / "l",), index=index
    )


@KINDS
async def test_an_index_that_lacks_apaches_ledgers_is_refused_until_it_is_converted(
    tmp_path: Path, index: IndexConfig
) -> None:
    """Our map of the page files is older than the files: Apache's bookie has made ledger 9."""
    disk, config = RealDisk(), config_of(tmp_path, PAGES)
    await fill(disk, config)
    shutil.copytree(tmp_path / "l/current/index", tmp_path / "old")
    async with open_storage(disk, config, wall_ms=lambda: 1000) as storage:
        batch = storage.new_batch()
        ledger = storage.create_ledger(batch, 9, KEY)
        storage.stage_entry(batch, ledger, 0, -1, body_of(9, 0))
        storage.stage_fence(batch, ledger)
        storage.submit(batch, lambda error: None)
    shutil.rmtree(tmp_path / "l/current/index")
    shutil.copytree(tmp_path / "old", tmp_path / "l/current/index")
    cut_marks(disk, config)
    with pytest.raises(StartError, match=r"lastMark was written by Apache's bookie.*convert-index"):
        await check(disk, config, fenced=False)
    other = attrs.evolve(config, index=index)
    (rebuilt,) = rebuild_indexes(disk, other)
    assert rebuilt.kept_ledger_data
    await check(disk, other, fenced=False)
    async with open_storage(disk, other, wall_ms=lambda: 1000) as storage:
        record = storage.ledger(9)
        assert record is not None
        assert (record.fenced, record.master_key) == (True, KEY)
        assert await storage.read(9, 0) == body_of(9, 0)
    assert stops_page_files(disk, tmp_path / "l/current") is (index is CHUNKS)


async def test_page_files_that_apaches_bookie_has_used_are_taken_over_at_the_next_start(
    tmp_path: Path,
) -> None:
    disk, config = RealDisk(), config_of(tmp_path, PAGES)
    await fill(disk, config)
    assert take_over_page_files(disk, config) == []
    cut_marks(disk, config)
    assert take_over_page_files(disk, attrs.evolve(config, index=CHUNKS)) == [], "a chunk index is converted"
    (rebuilt,) = take_over_page_files(disk, config)
    assert rebuilt.kept_ledger_data
    assert take_over_page_files(disk, config) == []
    await check(disk, config, fenced=False)


async def test_directories_in_which_apaches_bookie_stored_nothing_begin_with_an_empty_index(
    tmp_path: Path,
) -> None:
    disk, config = RealDisk(), config_of(tmp_path, PAGES)
    for path in (*config.journal_directories, *config.ledger_directories):
        (path / "current").mkdir(parents=True)
    for path in config.ledger_directories:
        (path / "current/lastMark").write_bytes(bytes(16))
    assert take_over_page_files(disk, config) == []
    async with open_storage(disk, config, wall_ms=lambda: 1000) as storage:
        assert storage.ledgers_count == 0


async def test_page_files_of_apaches_that_cannot_be_read_are_left_to_the_operator(tmp_path: Path) -> None:
    disk, config = RealDisk(), config_of(tmp_path, PAGES)
    await fill(disk, config)
    cut_marks(disk, config)
    files = sorted((tmp_path / "l/current").rglob("*.idx"))
    for file in files:
        file.write_bytes(b"\xff" * 40)

    def content() -> dict[Path, bytes]:
        ours = (
            path for path in (tmp_path / "l/current").rglob("*") if path.is_file() and path.name != "LOCK"
        )
        return {path: path.read_bytes() for path in ours if "index" not in path.parts}

    before = content()
    with pytest.raises(StartError, match="`dlog bookie rebuild-index`"):
        take_over_page_files(disk, config)
    assert content() == before


async def test_page_files_that_were_moved_in_an_exchange_are_not_taken_for_deleted_ledgers() -> None:
    """The power fails when one of two directories with page files has been moved away."""
    config = attrs.evolve(CONFIG, index=PAGES)
    disk = SimulatedDisk()
    await fill(disk, config)
    async with open_storage(disk, config, wall_ms=lambda: 1000) as storage:
        batch = storage.new_batch()
        ledger = storage.create_ledger(batch, 300, KEY)  # its file is in another directory than the others
        storage.stage_entry(batch, ledger, 0, -1, body_of(300, 0))
        storage.submit(batch, lambda error: None)
    (directory,) = (path / "current" for path in config.ledger_directories)
    disk.remove_tree(directory / "index")
    disk.sync_directory(directory)
    cut_marks(disk, config)
    disk = disk.after_power_cut(random.Random(0))
    rename = disk.rename
    moved: list[Path] = []

    def cut_after_first(old: Path, new: Path) -> None:
        if moved:
            raise PowerCutError
        rename(old, new)
        if new.parent.name == REPLACED:
            disk.sync_directory(directory)
            moved.append(new)

    disk.rename = cut_after_first  # type: ignore[method-assign]
    with pytest.raises(PowerCutError):
        rebuild_indexes(disk, config)
    assert moved
    disk = disk.after_power_cut(random.Random(0))
    rebuild_indexes(disk, config)
    await check(disk, config, fenced=False)
    async with open_storage(disk, config, wall_ms=lambda: 1000) as storage:
        assert await storage.read(300, 0) == body_of(300, 0)


@KINDS
async def test_a_power_cut_at_any_step_of_taking_over_page_files_loses_no_ledger(index: IndexConfig) -> None:
    two = attrs.evolve(CONFIG, ledger_directories=(Path("/l0"), Path("/l1")))
    config, target = attrs.evolve(two, index=PAGES), attrs.evolve(two, index=index)
    filled = SimulatedDisk()
    await fill(filled, config)
    for directory in config.index_directories or config.ledger_directories:
        filled.remove_tree(directory / "current" / "index")  # as if it had never been ours
        filled.sync_directory(directory / "current")
    cut_marks(filled, config)
    copy = filled.after_power_cut(random.Random(0)).after_power_cut
    refused = 0
    for cut_at in itertools.count(1, 7 if IS_SAMPLE else 2):
        rng = random.Random(cut_at)
        disk = copy(rng)  # everything in it is durable
        disk.cut_at = cut_at
        try:
            rebuild_indexes(disk, target)
        except PowerCutError:
            pass
        else:
            break
        disk = disk.after_power_cut(rng)
        try:
            await check(disk, target, fenced=False)
        except (IndexMissingError, StartError, IndexKindError):
            refused += 1  # and the start has left an empty map
        disk = disk.after_power_cut(rng)
        rebuild_indexes(disk, target)
        await check(disk, target, fenced=False)
    assert refused >= cut_at // 7 - 1, "a bookie starts only with the finished index"
    disk.cut_at = None
    await check(disk, target, fenced=False)
