"""Rebuilding indexes beside the old ones: on real disks, and with the power cut at every step."""

from __future__ import annotations

import itertools
import random
import shutil
from pathlib import Path

import attrs
import pytest

from bookie.disk.disk import Disk
from bookie.disk.real_disk import RealDisk
from bookie.errors import (
    DirectoryInUseError,
    IndexKindError,
    IndexMissingError,
    LogDamagedError,
    StartError,
)
from bookie.index.index_factory import IndexConfig, IndexKind
from bookie.index.page_cache import PageIndexConfig
from bookie.ledger_record import UNKNOWN_KEY, LedgerData
from bookie.offline.index_rebuild import entry_log_bytes, rebuild_indexes
from bookie.storage.config import StorageConfig
from bookie.storage.dirty_marks import read_loss_mark
from bookie.storage.opening import open_storage
from tests.effort import IS_SAMPLE
from tests.fakes.bookie_work import CONFIG, body_of
from tests.fakes.simulated_disk import PowerCutError, SimulatedDisk

pytestmark = pytest.mark.slow

KEY = b"k" * 20
PAGES = IndexConfig(
    kind=IndexKind.PAGES, pages=PageIndexConfig(page_bytes=512, pages_max=8, open_files_max=4)
)
CHUNKS = IndexConfig()
KINDS = pytest.mark.parametrize("index", [CHUNKS, PAGES], ids=["chunks", "pages"])


def config_for(directory: Path, index: IndexConfig, count: int = 2) -> StorageConfig:
    return StorageConfig(
        journal_directories=(directory / "journal",),
        ledger_directories=tuple(directory / f"ledgers-{n}" for n in range(count)),
        index_directories=tuple(directory / f"index-{n}" for n in range(count)),
        entry_log_bytes_max=40_000,
        index=index,
    )


async def fill(disk: Disk, config: StorageConfig) -> None:
    async with open_storage(disk, config, wall_ms=lambda: 1000) as storage:
        for ledger_id in range(6):
            batch = storage.new_batch()
            ledger = storage.create_ledger(batch, ledger_id, KEY)
            for entry_id in range(0, 40, 1 + ledger_id % 2):
                storage.stage_entry(batch, ledger, entry_id, entry_id - 1, body_of(ledger_id, entry_id))
            if ledger_id == 4:
                storage.stage_fence(batch, ledger)
            storage.submit(batch, lambda error: None)
            await storage.wait_capacity()
        batch = storage.new_batch()
        storage.stage_fence(batch, storage.create_ledger(batch, 6, KEY))  # without an entry
        storage.submit(batch, lambda error: None)
        await storage.flush()
        await storage.delete_ledger(5)


async def check(disk: Disk, config: StorageConfig, *, fenced: bool) -> dict[int, LedgerData]:
    async with open_storage(disk, config, wall_ms=lambda: 1000) as storage:
        for ledger_id in range(5):
            ids = list(range(0, 40, 1 + ledger_id % 2))
            assert await storage.entry_ids(ledger_id) == ids
            for entry_id in ids:
                assert await storage.read(ledger_id, entry_id) == body_of(ledger_id, entry_id)
            record = storage.ledger(ledger_id)
            assert record is not None
            assert record.fenced == (fenced or ledger_id == 4)
            assert record.master_key == (UNKNOWN_KEY if fenced else KEY)
        known = [storage.ledger(ledger_id) for ledger_id in storage.ledger_ids()]
        return {record.ledger_id: record.stored() for record in known if record is not None}


@KINDS
async def test_a_lost_index_is_derived_and_every_ledger_fenced(tmp_path: Path, index: IndexConfig) -> None:
    config = config_for(tmp_path, index)
    await fill(RealDisk(), config)
    for number in range(2):
        shutil.rmtree(tmp_path / f"index-{number}/current/index")
    with pytest.raises(IndexMissingError):
        await check(RealDisk(), config, fenced=True)
    progress: list[int] = []
    rebuilt = rebuild_indexes(RealDisk(), config, progress=progress.append)
    assert [one.directory for one in rebuilt] == [tmp_path / f"ledgers-{n}" / "current" for n in range(2)]
    assert not any(one.kept_ledger_data for one in rebuilt)
    # Ledger 6 was fenced and had no entry: the next start must ask the metadata store.
    assert read_loss_mark(RealDisk(), [tmp_path / "ledgers-0/current"]) is not None
    assert progress[-1] == entry_log_bytes(RealDisk(), config)
    await check(RealDisk(), config, fenced=True)
    names = {path.name for path in (tmp_path / "index-0/current").iterdir()}
    assert not names & {"index.rebuilding", "index.ready"}


@pytest.mark.slow
@KINDS
async def test_an_index_is_exchanged_for_the_other_kind_and_nothing_is_fenced(
    tmp_path: Path, index: IndexConfig
) -> None:
    config = config_for(tmp_path, index)
    await fill(RealDisk(), config)
    before = await check(RealDisk(), config, fenced=False)
    other = attrs.evolve(config, index=CHUNKS if index is PAGES else PAGES)
    with pytest.raises(IndexKindError):
        await check(RealDisk(), other, fenced=False)
    rebuilt = rebuild_indexes(RealDisk(), other)
    assert all(one.kept_ledger_data and not one.stats.fenced for one in rebuilt)
    assert read_loss_mark(RealDisk(), [tmp_path / "ledgers-0/current"]) is None
    assert await check(RealDisk(), other, fenced=False) == before
    assert 6 in before  # it has no entry anywhere, and stays fenced
    with pytest.raises(IndexKindError):
        await check(RealDisk(), config, fenced=False)
    rebuild_indexes(RealDisk(), config)
    assert await check(RealDisk(), config, fenced=False) == before


async def test_it_refuses_while_the_bookie_runs(tmp_path: Path) -> None:
    config = config_for(tmp_path, CHUNKS)
    async with open_storage(RealDisk(), config):
        with pytest.raises(DirectoryInUseError):
            rebuild_indexes(RealDisk(), config)
    with pytest.raises(FileNotFoundError):
        rebuild_indexes(RealDisk(), config_for(tmp_path / "elsewhere", CHUNKS))
    assert not (tmp_path / "elsewhere").exists()


async def test_damage_in_one_directory_leaves_all_indexes_as_they_were(tmp_path: Path) -> None:
    config = config_for(tmp_path, CHUNKS)
    await fill(RealDisk(), config)
    log = tmp_path / "ledgers-1/current/0.log"
    data = bytearray(log.read_bytes())
    data[1024:1028] = b"\x7f\xff\xff\xff"
    log.write_bytes(data)
    with pytest.raises(LogDamagedError, match=r"ledgers-1/current.*0\.log: length"):
        rebuild_indexes(RealDisk(), config)
    log.write_bytes(bytes(data[:1024]) + (44).to_bytes(4, "big") + bytes(data[1028:]))
    rebuilt = rebuild_indexes(RealDisk(), config, accept_damage=True)
    assert not rebuilt[0].stats.damage
    assert rebuilt[1].stats.damage
    async with open_storage(RealDisk(), config) as storage:
        limbo = {ledger_id: storage.ledger(ledger_id) for ledger_id in storage.ledger_ids()}
        assert {n for n, record in limbo.items() if record is not None and record.limbo} == {1, 3}


async def test_an_index_of_another_ledger_directory_is_not_believed(tmp_path: Path) -> None:
    config = config_for(tmp_path, CHUNKS)
    await fill(RealDisk(), config)
    turned = attrs.evolve(config, index_directories=config.index_directories[::-1])
    with pytest.raises(StartError, match="configured for another ledger directory than before"):
        rebuild_indexes(RealDisk(), turned, accept_damage=True)
    await check(RealDisk(), config, fenced=False)


async def test_a_ledger_that_is_found_twice_stops_it(tmp_path: Path) -> None:
    config = config_for(tmp_path, CHUNKS)
    await fill(RealDisk(), config)
    shutil.copy(tmp_path / "ledgers-0/current/0.log", tmp_path / "ledgers-1/current/77.log")
    for number in range(2):
        shutil.rmtree(tmp_path / f"index-{number}/current/index")
    with pytest.raises(StartError, match=r"ledger 0 has entries in .*ledgers-1.* and belongs to .*ledgers-0"):
        rebuild_indexes(RealDisk(), config)


@KINDS
async def test_a_power_cut_at_any_step_leaves_the_old_index_or_one_that_can_be_made_again(
    index: IndexConfig,
) -> None:
    config = attrs.evolve(CONFIG, index=index)
    other = attrs.evolve(CONFIG, index=CHUNKS if index is PAGES else PAGES)
    filled = SimulatedDisk()
    await fill(filled, config)
    outcomes = set()
    copy = filled.after_power_cut(random.Random(0)).after_power_cut
    for cut_at in itertools.count(1, 7 if IS_SAMPLE else 1):
        rng = random.Random(cut_at)
        disk = copy(rng)  # everything in it is durable
        disk.cut_at = cut_at
        try:
            rebuild_indexes(disk, other)
        except PowerCutError:
            pass
        else:
            break
        disk = disk.after_power_cut(rng)
        try:
            await check(disk, config, fenced=False)
        except IndexMissingError:
            outcomes.add("missing")  # and an empty one is left by the bookie that was refused
        except IndexKindError:
            outcomes.add("new")
        else:
            outcomes.add("old")
            continue
        disk = disk.after_power_cut(rng)
        rebuild_indexes(disk, other)
        await check(disk, other, fenced=False)
    assert outcomes >= {"old", "missing"}
    disk.cut_at = None
    with pytest.raises(IndexKindError):  # once it is done, it stays
        await check(disk.after_power_cut(random.Random(0)), config, fenced=False)
    await check(disk, other, fenced=False)
