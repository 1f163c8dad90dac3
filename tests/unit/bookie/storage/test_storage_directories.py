"""A store over several journal, ledger and index directories, on a real disk."""

from __future__ import annotations

import contextlib
import struct
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import attrs
import pytest
import trio

from bookie.disk.disk import Disk, DiskUsage
from bookie.disk.real_disk import RealDisk
from bookie.errors import IndexMissingError, JournalMissingError, StartError, StorageFailedError
from bookie.journal.files import JournalConfig, JournalFiles
from bookie.journal.format import decode_mark, journal_id_of
from bookie.storage.config import StorageConfig
from bookie.storage.opening import open_storage
from bookie.storage.storage import Storage
from tests.fakes.storage_by_hand import KEY, FailingDisk, add, entry, kill, names, submit

pytestmark = pytest.mark.slow


def config_for(directory: Path, journals: int = 2, ledgers: int = 2) -> StorageConfig:
    return StorageConfig(
        journal_directories=tuple(directory / f"j{number}" for number in range(journals)),
        ledger_directories=tuple(directory / f"l{number}" for number in range(ledgers)),
        journal=JournalConfig(file_bytes_max=256 << 10, preallocate_bytes=64 << 10, group_bytes_max=64 << 10),
        write_cache_bytes_max=1 << 20,
        flush_interval_s=3600,
    )


def opened(
    directory: Path, journals: int = 2, ledgers: int = 2, disk: Disk | None = None
) -> AbstractAsyncContextManager[Storage]:
    return open_storage(disk or RealDisk(), config_for(directory, journals, ledgers))


async def fill(storage: Storage, ledger_ids: range, count: int = 10) -> None:
    for ledger_id in ledger_ids:
        await add(storage, ledger_id, range(count))


async def check(storage: Storage, ledger_ids: range, count: int = 10) -> None:
    for ledger_id in ledger_ids:
        wanted = [entry(ledger_id, entry_id) for entry_id in range(count)]
        assert await storage.read_batch(ledger_id, 0, count, 1 << 20) == wanted


async def test_a_ledger_lives_in_the_directory_at_its_id_modulo_their_number(tmp_path: Path) -> None:
    async with opened(tmp_path, 2, 3) as storage:
        await fill(storage, range(7))
        await storage.flush()
        await check(storage, range(7))
        assert [sorted(store.ledgers) for store in storage.stores] == [[0, 3, 6], [1, 4], [2, 5]]
        assert len(storage.journals) == 2
    async with opened(tmp_path, 2, 3) as storage:
        await check(storage, range(7))
        assert storage.ledger_ids() == list(range(7))
        assert [sorted(store.ledgers) for store in storage.stores] == [[0, 3, 6], [1, 4], [2, 5]]


async def test_after_a_kill_all_journals_are_replayed(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        await fill(storage, range(4), 300)
        batch = storage.new_batch()
        for ledger_id in (2, 3):
            ledger = storage.ledger(ledger_id)
            assert ledger is not None
            storage.stage_fence(batch, ledger)
            storage.stage_explicit_lac(batch, ledger, struct.pack(">qq", ledger_id, 5000))
        await submit(storage, batch)
        await kill(storage)
    async with opened(tmp_path) as storage:
        await check(storage, range(4), 300)
        for ledger_id in range(4):
            ledger = storage.ledger(ledger_id)
            assert ledger is not None
            assert (ledger.master_key, ledger.fenced) == (KEY, ledger_id >= 2)
            assert ledger.lac == (5000 if ledger_id >= 2 else 298)


async def test_every_ledger_directory_has_a_mark_for_each_journal(tmp_path: Path) -> None:
    async with opened(tmp_path, 3, 2) as storage:
        await fill(storage, range(6))
        await storage.flush()
        for number in range(2):
            current = tmp_path / f"l{number}/current"
            marks = [decode_mark((current / f"lastMark.{journal}").read_bytes()) for journal in range(3)]
            assert tuple(marks) == storage.journals.marks
            assert not (current / "lastMark").exists()


async def test_deferred_adds_of_one_journal_are_synced_by_a_run_that_awaits_them(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        await fill(storage, range(2), 1)
        ledger = storage.ledger(0)
        assert ledger is not None
        batch = storage.new_batch()
        storage.stage_entry(batch, ledger, 1, 0, entry(0, 1))
        await submit(storage, batch, sync=False)
        assert storage.journals.has_unsynced
        await add(storage, 1, [1])
        assert storage.journals.has_unsynced, "the other journal knows nothing of it"
        batch = storage.new_batch()
        batch.await_ledger(0)
        await submit(storage, batch)
        assert not storage.journals.has_unsynced


async def test_the_index_may_lie_elsewhere(tmp_path: Path) -> None:
    config = attrs.evolve(config_for(tmp_path), index_directories=(tmp_path / "i0", tmp_path / "i1"))
    async with open_storage(RealDisk(), config) as storage:
        await fill(storage, range(4))
    assert names(tmp_path, "l*/current/index") == []
    assert names(tmp_path, "i*/current/index") == ["i0/current/index", "i1/current/index"]
    async with open_storage(RealDisk(), config) as storage:
        await check(storage, range(4))
    with pytest.raises(IndexMissingError):
        async with opened(tmp_path):
            raise AssertionError("opened with empty indexes")


def test_a_directory_is_configured_once_and_an_index_for_each(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="twice"):
        StorageConfig(journal_directories=(tmp_path, tmp_path), ledger_directories=(tmp_path,))
    with pytest.raises(ValueError, match="at least one"):
        StorageConfig(journal_directories=(tmp_path,), ledger_directories=())
    with pytest.raises(ValueError, match="one for each"):
        attrs.evolve(config_for(tmp_path), index_directories=(tmp_path / "i",))


async def test_a_file_system_that_holds_several_directories_is_counted_once(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        one = RealDisk().usage(tmp_path)
        both = storage.disk_usage()
        assert both.total_bytes == one.total_bytes
        storage._disk = UnknownDevices()
        assert storage.disk_usage().total_bytes == 2 * one.total_bytes


class UnknownDevices(RealDisk):
    def usage(self, path: Path) -> DiskUsage:
        return attrs.evolve(super().usage(path), device=0)


# --- more and fewer -------------------------------------------------------------------------------


async def test_a_ledger_stays_in_its_directory_when_others_are_added(tmp_path: Path) -> None:
    async with opened(tmp_path, 1, 1) as storage:
        await fill(storage, range(4))
    for disks in (2, 3):
        async with opened(tmp_path, 1, disks) as storage:
            await check(storage, range(4))
            assert sorted(storage.stores[0].ledgers)[:4] == [0, 1, 2, 3]
            new = 100 + disks
            await fill(storage, range(new, new + 1))
            await add(storage, 3, [10])
            assert storage.stores[0].ledgers.keys() >= {0, 1, 2, 3}
            assert new in storage.stores[new % disks].ledgers
    async with opened(tmp_path, 1, 3) as storage:
        await check(storage, range(4))
        await check(storage, range(102, 104))
        assert await storage.read(3, 10) == entry(3, 10)


async def test_a_ledger_that_is_in_the_journal_only_may_go_to_an_added_directory(tmp_path: Path) -> None:
    async with opened(tmp_path, 1, 1) as storage:
        await fill(storage, range(4))
        await kill(storage)
    async with opened(tmp_path, 1, 2) as storage:
        await check(storage, range(4))
        assert [sorted(store.ledgers) for store in storage.stores] == [[0, 2], [1, 3]]


async def test_without_one_of_its_ledger_directories_a_bookie_does_not_start(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        await fill(storage, range(4))
    with pytest.raises(StartError, match="run with 2 ledger directories"):
        async with opened(tmp_path, 2, 1):
            raise AssertionError("opened without a directory")
    (tmp_path / "l1").rename(tmp_path / "gone")
    with pytest.raises(StartError, match="wiped"):
        async with opened(tmp_path):
            raise AssertionError("opened with an empty directory")


@pytest.mark.parametrize("lost", ["l1", "j1", "l0"])
async def test_a_directory_may_be_lost_if_whoever_starts_the_bookie_takes_care_of_that(
    tmp_path: Path, lost: str
) -> None:
    async with opened(tmp_path) as storage:
        await fill(storage, range(4))
    (tmp_path / lost).rename(tmp_path / "gone")
    config = attrs.evolve(config_for(tmp_path), accepts_losses=True)
    kept = {"l1": range(0, 4, 2), "j1": range(4), "l0": range(1, 4, 2)}[lost]
    async with open_storage(RealDisk(), config) as storage:
        assert storage.ledger_ids() == list(kept)
        await check(storage, kept)
        await fill(storage, range(4, 8))
    async with opened(tmp_path) as storage:  # from now on all are there
        await check(storage, kept)
        await check(storage, range(4, 8))


async def test_the_order_of_the_ledger_directories_does_not_matter(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        await fill(storage, range(4))
    config = config_for(tmp_path)
    turned = attrs.evolve(config, ledger_directories=tuple(reversed(config.ledger_directories)))
    async with open_storage(RealDisk(), turned) as storage:
        await check(storage, range(4))
        assert sorted(storage.stores[0].ledgers) == [1, 3]


async def test_a_ledger_found_in_two_directories_stops_the_start(tmp_path: Path) -> None:
    for name in ("a", "b"):
        async with opened(tmp_path / name, 1, 1) as storage:
            await fill(storage, range(2))
    config = attrs.evolve(config_for(tmp_path), ledger_directories=(tmp_path / "a/l0", tmp_path / "b/l0"))
    with pytest.raises(StartError, match=r"ledger 0 is in .*a/l0.* and in .*b/l0"):
        async with open_storage(RealDisk(), config):
            raise AssertionError("opened with two copies")


async def test_journals_may_be_added_and_what_the_old_one_holds_is_replayed(tmp_path: Path) -> None:
    async with opened(tmp_path, 1, 1) as storage:
        await fill(storage, range(4))
        await storage.flush()
        await fill(storage, range(4, 8))
        await kill(storage)
    for _ in range(2):
        async with opened(tmp_path, 2, 1) as storage:
            await check(storage, range(8))
            await kill(storage)
    assert names(tmp_path, "l0/current/lastMark*") == ["l0/current/lastMark.0", "l0/current/lastMark.1"]


@pytest.mark.parametrize(("before", "after"), [(2, 1), (3, 2)])
async def test_without_one_of_its_journals_a_bookie_does_not_start(
    tmp_path: Path, before: int, after: int
) -> None:
    async with opened(tmp_path, before, 1) as storage:
        await fill(storage, range(4))
        await kill(storage)
    with pytest.raises(StartError, match=r"lastMark\.\d belongs to a journal that is not configured"):
        async with opened(tmp_path, after, 1):
            raise AssertionError("opened without a journal")
    async with opened(tmp_path, before, 1) as storage:
        await check(storage, range(4))


async def test_journals_in_another_order_do_not_start(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        await fill(storage, range(4))
        files = JournalFiles(RealDisk(), tmp_path / "j0/current", storage._config.journal)
        for entry_id in range(10, 2000):  # so that the ids of the files differ
            await add(storage, 0, [entry_id], 4000)
            if len(files.scan()) and files.scan()[-1] > min(m.journal_id for m in storage.journals.marks):
                break
        await storage.flush()
    config = config_for(tmp_path)
    turned = attrs.evolve(config, journal_directories=tuple(reversed(config.journal_directories)))
    with pytest.raises(JournalMissingError, match="right one"):
        async with open_storage(RealDisk(), turned):
            raise AssertionError("opened with journals in another order")


async def test_a_ledger_made_anew_while_its_old_self_goes_stays_in_that_directory(tmp_path: Path) -> None:
    """It must not be in two directories, not even for the moment between two syncs."""
    async with opened(tmp_path, 1, 1) as storage:
        await fill(storage, range(2))
    async with opened(tmp_path, 1, 2) as storage:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(storage.delete_ledger, 1)
            while storage.ledger(1) is not None:
                await trio.lowlevel.checkpoint()
            batch = storage.new_batch()
            again = storage.create_ledger(batch, 1, KEY)
            assert again.directory == 0
        await submit(storage, batch)
        await add(storage, 1, [3])
        await storage.delete_ledger(1)
        batch = storage.new_batch()
        assert storage.create_ledger(batch, 1, KEY).directory == 1
        await submit(storage, batch)


# --- failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "what"),
    [("j1", "write_durably"), ("l1", "write"), ("l1", "sync")],
)
async def test_the_failure_of_any_directory_is_the_failure_of_the_bookie(
    tmp_path: Path, place: str, what: str
) -> None:
    disk = FailingDisk(
        lambda path, did: place in path.parts and not path.name.startswith("lastMark") and did == what
    )
    async with opened(tmp_path, disk=disk) as storage:
        await fill(storage, range(4))
        await storage.flush()
        disk.is_failing = True
        with contextlib.suppress(StorageFailedError):  # the add fails already if it is the journal
            await add(storage, 1, [10])
        with pytest.raises(StorageFailedError):
            await storage.flush()
        assert "Input/output error" in str(await storage.wait_failed())
        with pytest.raises(StorageFailedError):
            await add(storage, 0, [10])
        await check(storage, range(4))
        disk.is_failing = False
    async with opened(tmp_path) as storage:
        await check(storage, range(4))


async def test_the_marks_wait_for_the_slowest_directory(tmp_path: Path) -> None:
    """apache/bookkeeper#3329; docs/storage-tests.md 3: one directory's flush fails while others finish."""
    disk = FailingDisk(lambda path, did: "l1" in path.parts and path.suffix == ".log")
    async with opened(tmp_path, disk=disk) as storage:
        await fill(storage, range(4))
        disk.is_failing = True
        before = decode_mark((tmp_path / "l0/current/lastMark.0").read_bytes())
        with pytest.raises(StorageFailedError):
            await storage.flush()
        assert decode_mark((tmp_path / "l0/current/lastMark.0").read_bytes()) == before
        disk.is_failing = False
    async with opened(tmp_path) as storage:
        await check(storage, range(4))


async def test_a_mark_that_only_one_directory_takes_is_enough(tmp_path: Path) -> None:
    disk = FailingDisk(lambda path, did: "l0" in path.parts and path.name.startswith("lastMark"))
    async with opened(tmp_path, disk=disk) as storage:
        disk.is_failing = True
        await fill(storage, range(4))
        await storage.flush()
        marks = storage.journals.marks
        disk.is_failing = False
        await kill(storage)
    assert decode_mark((tmp_path / "l0/current/lastMark.0").read_bytes()) != marks[0]
    async with opened(tmp_path) as storage:
        assert all(a > b for a, b in zip(storage.journals.marks, marks, strict=True))
        await check(storage, range(4))


async def test_journals_are_recycled_each_below_its_own_mark(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        await add(storage, 1, [0])
        await add(storage, 0, range(1000), 3000)
        await storage.flush()
        kept = [sorted(filter(None, map(journal_id_of, _listed(tmp_path / name)))) for name in ("j0", "j1")]
        assert [len(ids) for ids in kept] == [1, 1]
        assert kept[0][0] - kept[1][0] > 5
        for ids, mark in zip(kept, storage.journals.marks, strict=True):
            assert ids == [mark.journal_id]


def _listed(path: Path) -> list[str]:
    return [one.name for one in (path / "current").iterdir()]
