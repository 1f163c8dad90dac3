"""A disk that fills up under a bookie: what was acknowledged stays, reads are served, a start is possible."""

# covers: bookie/storage/directory_store.py
# covers: bookie/storage/failure.py

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import attrs
import pytest
import trio

from bookie.disk.real_disk import RealDisk
from bookie.disk.reserve import FLUSH_RESERVE, Reserve
from bookie.errors import NoLedgerError, StorageFailedError
from bookie.journal.files import JournalConfig
from bookie.ledger_record import LedgerRecord
from bookie.storage.config import StorageConfig
from bookie.storage.opening import open_storage
from bookie.storage.storage import Storage
from tests.fakes.small_disk import SmallDisk

KEY = b"k" * 20
MIB = 1 << 20


def config_for(path: Path) -> StorageConfig:
    return StorageConfig(
        journal_directories=(path / "journal",),
        ledger_directories=(path / "ledgers",),
        journal=JournalConfig(file_bytes_max=4 * MIB, preallocate_bytes=1 * MIB),
        write_cache_bytes_max=8 * MIB,
        flush_interval_s=3600,
    )


def reserve_of(disk: SmallDisk, path: Path, size_bytes: int = 6 * MIB) -> Reserve:
    return Reserve(disk, path / "ledgers/current", size_bytes, name=FLUSH_RESERVE)


def fill(reserve: Reserve) -> None:
    while reserve.fill():
        pass


def entry(entry_id: int) -> bytes:
    return struct.pack(">qqqq", 1, entry_id, entry_id - 1, 0) + bytes([entry_id % 251]) * 1000


async def add(storage: Storage, ids: Sequence[int]) -> LedgerRecord:
    batch = storage.new_batch()
    ledger = storage.ledger(1) or storage.create_ledger(batch, 1, KEY)
    for entry_id in ids:
        storage.stage_entry(batch, ledger, entry_id, entry_id - 1, entry(entry_id))
    answered = trio.Event()
    errors: list[BaseException | None] = []

    def on_durable(error: BaseException | None) -> None:
        errors.append(error)
        answered.set()

    storage.submit(batch, on_durable)
    await answered.wait()
    assert errors == [None]
    return ledger


async def all_readable(storage: Storage, count: int) -> bool:
    got: list[bytes] = []
    while len(got) < count:
        got += await storage.read_batch(1, len(got), count - len(got), MIB)
    return got == [entry(entry_id) for entry_id in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("before", [0, 500])
async def test_what_was_accepted_is_flushed_into_what_was_kept_back(
    tmp_path: Path, before: int, caplog: pytest.LogCaptureFixture
) -> None:
    disk = SmallDisk(tmp_path, 64 * MIB)
    async with open_storage(disk, config_for(tmp_path)) as storage:
        fill(reserve_of(disk, tmp_path))
        await add(storage, range(before))
        await storage.flush()  # with 500 there is a log that takes a part before the disk is full
        await add(storage, range(before, 3000))
        disk.others_bytes += max(0, disk.free_bytes() - (MIB if before else 0))
        await storage.flush()
        assert "goes on in the" in caplog.text
        assert await all_readable(storage, 3000)
        assert reserve_of(disk, tmp_path).held_bytes() == 0
    async with open_storage(disk, config_for(tmp_path)) as storage:
        assert await all_readable(storage, 3000)


def sizes(path: Path) -> dict[str, int]:
    return {
        str(file): file.stat().st_size
        for file in [*path.glob("*/current/*.log"), *path.glob("*/current/*.txn")]
    }


@pytest.mark.slow
async def test_without_it_a_start_keeps_what_it_cannot_flush_in_memory(tmp_path: Path) -> None:
    """On a file system that frees no part of a file; on others: the next tests."""
    disk = SmallDisk(tmp_path, 64 * MIB)
    disk.can_give_back = False
    async with open_storage(disk, config_for(tmp_path)) as storage:
        await add(storage, range(3000))
        disk.fill()
        with pytest.raises(StorageFailedError, match="no space left"):
            await storage.flush()
    before, config = sizes(tmp_path), config_for(tmp_path)
    for attempt in range(20):
        disk.others_bytes -= MIB // 4 if attempt % 2 else 0  # in small steps, less than the flush needs
        free_bytes = disk.free_bytes()
        async with open_storage(disk, config) as storage:
            assert storage.full is not None
            assert await all_readable(storage, 3000)
            with pytest.raises(StorageFailedError, match="the disk is full"):
                await storage.flush()
        assert disk.free_bytes() > free_bytes - 4096, "a start on a full disk keeps nothing of what was freed"
        assert sizes(tmp_path) == before
    disk.others_bytes = 0
    async with open_storage(disk, config_for(tmp_path)) as storage:
        assert storage.full is None
        assert await all_readable(storage, 3000)
        await add(storage, range(3000, 3100))
    fresh = tmp_path / "fresh"
    async with open_storage(RealDisk(), config_for(fresh)) as storage:
        await add(storage, range(3100))
    assert disk.used_bytes() - SmallDisk(fresh, 0).used_bytes() <= 1.3 * SmallDisk(fresh, 0).used_bytes()


@pytest.mark.slow
async def test_on_a_full_disk_a_fence_takes_the_reserve_and_a_deletion_takes_nothing(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path, 64 * MIB)
    async with open_storage(disk, config_for(tmp_path)) as storage:
        await add(storage, range(3000))
        await storage.flush()
        await add(storage, range(3000, 5000))
        disk.fill()
        storage.failure.report(StorageFailedError("killed"), "the test")
    for path in (tmp_path / "journal/current").glob("spare-*"):
        path.unlink()
    disk.fill()
    async with open_storage(disk, config_for(tmp_path)) as storage:
        assert storage.full is not None
        assert storage.takes_records
        ledger = storage.ledger(1)
        assert ledger is not None
        batch = storage.new_batch()
        storage.stage_fence(batch, ledger)
        await storage.submit_durably(batch)
    async with open_storage(disk, config_for(tmp_path)) as storage:
        ledger = storage.ledger(1)
        assert ledger is not None
        assert ledger.fenced
        assert not storage.takes_records, "the reserve was used"
        assert await all_readable(storage, 5000)
        assert storage.backlog_bytes > 2000 * 1000
        await storage.delete_ledger(1)
        assert storage.backlog_bytes < 64 << 10
        with pytest.raises(NoLedgerError):
            await storage.read(1, 0)
        assert storage.ledger_ids() == []
        assert list((tmp_path / "ledgers/current").glob("*.log"))
        assert len(await storage.remove_dead_logs()) == 1
        assert not list((tmp_path / "ledgers/current").glob("*.log"))


@pytest.mark.slow
async def test_what_one_start_could_flush_the_next_one_does_not_write_again(tmp_path: Path) -> None:
    """The replayed entries fill the write cache six times. Each part needs space once."""
    disk = SmallDisk(tmp_path, 64 * MIB)
    disk.can_give_back = False
    await backlog_on_a_full_disk(disk, tmp_path)
    config = attrs.evolve(config_for(tmp_path), write_cache_bytes_max=MIB)
    for _ in range(5):
        disk.others_bytes -= 3 * MIB // 4
        async with open_storage(disk, config) as storage:
            assert await all_readable(storage, 3000)
    assert storage.full is None
    written = sum(path.stat().st_size for path in (tmp_path / "ledgers/current").glob("*.log"))
    assert written < 1.1 * 3000 * 1036


async def backlog_on_a_full_disk(disk: SmallDisk, path: Path) -> None:
    """A journal of 3 MB in small groups, of which nothing is flushed, on a disk without space."""
    config = attrs.evolve(config_for(path), journal=JournalConfig(preallocate_bytes=MIB))
    async with open_storage(disk, config) as storage:
        fill(reserve_of(disk, path, MIB))
        for start in range(0, 3000, 50):
            await add(storage, range(start, start + 50))
        storage.failure.report(StorageFailedError("killed"), "the test")
    disk.fill()


@pytest.mark.slow
async def test_a_start_flushes_piece_by_piece_and_gives_the_journal_back_for_it(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path, 64 * MIB)
    await backlog_on_a_full_disk(disk, tmp_path)
    times: list[None] = []
    disk.on_given_back = lambda: times.append(None)
    async with open_storage(disk, config_for(tmp_path)) as storage:
        assert storage.full is None, "1 MiB in reserve is enough for 3 MB, and for any number"
        assert storage.backlog_bytes == 0
        assert len(times) > 5
        assert await all_readable(storage, 3000)
    assert [path.name for path in (tmp_path / "journal/current").glob("*.txn")] != []
    async with open_storage(disk, config_for(tmp_path)) as storage:
        assert await all_readable(storage, 3000)


@pytest.mark.slow
async def test_a_start_on_a_full_disk_takes_the_space_of_spare_journal_files(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path, 64 * MIB)
    await backlog_on_a_full_disk(disk, tmp_path)
    spare = tmp_path / "journal/current/spare-1"
    spare.write_bytes((tmp_path / "ledgers/current/flush.reserve").read_bytes())
    (tmp_path / "ledgers/current/flush.reserve").unlink()
    async with open_storage(disk, config_for(tmp_path)) as storage:
        assert storage.full is None
        assert await all_readable(storage, 3000)


@pytest.mark.slow
@pytest.mark.parametrize("mark", [b"", b"torn", None])
async def test_a_mark_that_is_lost_after_a_part_of_the_journal_was_given_back_loses_no_entry(
    tmp_path: Path, mark: bytes | None
) -> None:
    """On a full disk a mark is overwritten in place, so a power cut may tear it."""
    disk = SmallDisk(tmp_path, 64 * MIB)
    await backlog_on_a_full_disk(disk, tmp_path)
    times: list[None] = []

    def take_it_all() -> None:
        times.append(None)
        if len(times) == 4:
            disk.fill()  # another program is faster

    disk.on_given_back = take_it_all
    async with open_storage(disk, config_for(tmp_path)) as storage:
        assert storage.full is not None
        assert 0 < storage.backlog_bytes < 3000 * 1032
        assert await all_readable(storage, 3000)
    path = tmp_path / "ledgers/current/lastMark"
    if mark is None:
        path.unlink()
    else:
        path.write_bytes(mark)
    disk.others_bytes = 0
    async with open_storage(disk, config_for(tmp_path)) as storage:
        assert await all_readable(storage, 3000)


async def test_space_that_a_reserve_gave_is_not_free_until_it_is_taken_back(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path, 64 * MIB)
    (tmp_path / "ledgers/current").mkdir(parents=True)
    reserve = reserve_of(disk, tmp_path)
    assert reserve.given_bytes() == 0, "it was never made"
    fill(reserve)
    assert reserve.given_bytes() == 0
    reserve.release()
    assert (reserve.held_bytes(), reserve.given_bytes()) == (0, 6 * MIB)
    disk.others_bytes = disk.free_bytes() - 2 * MIB
    fill(reserve)
    assert reserve.held_bytes() == 0
    reserve.take_back()
    assert (reserve.held_bytes(), reserve.given_bytes(), disk.free_bytes()) == (2 * MIB, 4 * MIB, 0)
    disk.others_bytes = 0
    fill(reserve)
    assert (reserve.held_bytes(), reserve.given_bytes()) == (6 * MIB, 0)


@pytest.mark.slow
async def test_a_bookie_starts_on_a_full_disk_replays_and_serves_reads(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = SmallDisk(tmp_path, 64 * MIB)
    async with open_storage(disk, config_for(tmp_path)) as storage:
        fill(reserve_of(disk, tmp_path, 10 * MIB))
        await add(storage, range(3000))
        storage.failure.report(StorageFailedError("killed"), "the test")
    for path in (tmp_path / "journal/current").iterdir():
        if path.suffix == ".spare":
            path.unlink()
    disk.fill()
    async with open_storage(disk, config_for(tmp_path)) as storage:
        assert "starting goes on in the" in caplog.text
        assert await all_readable(storage, 3000)
        fenced = storage.ledger(1)
        assert fenced is not None
        batch = storage.new_batch()
        storage.stage_fence(batch, fenced)
        storage.submit(batch, lambda error: None)
        await add(storage, [3000])  # recovery's writes, as far as there is room
    disk.others_bytes = 0
    async with open_storage(disk, config_for(tmp_path)) as storage:
        assert await all_readable(storage, 3001)


async def test_a_flush_takes_nothing_of_a_reserve_that_is_for_starts(tmp_path: Path) -> None:
    """What it left of the space, the journal would take, and the next start would find none."""
    disk = SmallDisk(tmp_path, 64 * MIB)
    config = attrs.evolve(config_for(tmp_path), reserve_is_for_starts=True)
    async with open_storage(disk, config) as storage:
        fill(reserve_of(disk, tmp_path))
        await add(storage, range(3000))
        disk.fill()
        with pytest.raises(StorageFailedError, match="no space left"):
            await storage.flush()
        assert reserve_of(disk, tmp_path).held_bytes() == 6 * MIB
    async with open_storage(disk, config) as storage:
        assert storage.full is None
        assert await all_readable(storage, 3000)


async def test_the_reserve_is_made_only_while_there_is_plenty(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path, 20 * MIB)
    (tmp_path / "ledgers/current").mkdir(parents=True)
    reserve = reserve_of(disk, tmp_path)
    fill(reserve)
    assert reserve.held_bytes() == 0
    disk.total_bytes = 64 * MIB
    fill(reserve)
    assert reserve.held_bytes() == 6 * MIB
    reserve.release()
    assert reserve.held_bytes() == 0


async def test_a_flush_for_which_too_little_is_free_is_not_tried(tmp_path: Path) -> None:
    """It would take what is free from others for a while, and then remove it again."""
    disk = SmallDisk(tmp_path, 64 * MIB)
    async with open_storage(disk, config_for(tmp_path)) as storage:
        await add(storage, range(3000))
        disk.others_bytes += disk.free_bytes() - MIB
        with pytest.raises(StorageFailedError, match="no space left to flush"):
            await storage.flush()
        assert not disk.has_refused
