"""Tombstones of fenced and deleted ledgers are kept for a week, also across restarts."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.bookie import open_bookie
from bookie.config.bookie_config import parse_config
from bookie.disk.real_disk import RealDisk
from bookie.gc.tombstones import KEEP_MS, Tombstones, TombstonesFile
from bookie.ledger_metadata.live_ledgers import ServedLedgers, load_tombstones
from bookie.storage.config import StorageConfig
from ledger.runtime.clock import wall_ms


async def test_a_tombstone_is_kept_for_a_week(tmp_path: Path) -> None:
    now = 1_000_000

    def tombstones() -> TombstonesFile:
        return TombstonesFile(RealDisk(), tmp_path / "TOMBS", lambda: now)

    first = tombstones()
    assert first.read() == []
    for ledger_id in (3, 1, 2**62):
        await first.add(ledger_id)
    assert tombstones().read() == [3, 1, 2**62]
    now += KEEP_MS - 1
    last = tombstones()
    assert last.read() == [3, 1, 2**62]
    await last.add(7)
    now += 1
    assert tombstones().read() == [7]
    assert (tmp_path / "TOMBS").stat().st_size == 20


async def test_a_torn_record_is_ignored_and_overwritten_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "TOMBS"
    first = TombstonesFile(RealDisk(), path, lambda: 0)
    await first.add(1)
    await first.add(2)
    path.write_bytes(path.read_bytes()[:-3])
    second = TombstonesFile(RealDisk(), path, lambda: 0)
    await second.add(9)
    assert TombstonesFile(RealDisk(), path, lambda: 0).read() == [1, 9]


async def test_fences_without_end_do_not_fill_the_file(tmp_path: Path) -> None:
    path = tmp_path / "TOMBS"
    first = TombstonesFile(RealDisk(), path, lambda: 0, count_max=10)
    for ledger_id in range(100):
        await first.add(ledger_id)
        assert path.stat().st_size <= 2 * 10 * 20
    await first.add(93)  # again
    kept = TombstonesFile(RealDisk(), path, lambda: 0, count_max=10).read()
    assert kept == [*range(90, 93), *range(94, 100), 93]


@given(st.binary(max_size=100))
def test_any_bytes_decode_to_some_ids(data: bytes) -> None:
    class Bytes(RealDisk):
        def read_file(self, path: Path) -> bytes:
            return data

        def replace_file(self, path: Path, kept: bytes) -> None:
            assert len(kept) <= len(data)

    assert all(
        isinstance(ledger_id, int) for ledger_id in TombstonesFile(Bytes(), Path("x"), lambda: 0).read()
    )


async def test_a_full_disk_does_not_prevent_a_deletion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: RealDisk, path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(RealDisk, "replace_file", full)
    await TombstonesFile(RealDisk(), tmp_path / "TOMBS", lambda: 0).add(1)
    assert not (tmp_path / "TOMBS").exists()


async def test_only_fenced_ledgers_that_no_longer_exist_get_a_tombstone(tmp_path: Path) -> None:
    config = StorageConfig(journal_directories=(tmp_path / "j",), ledger_directories=(tmp_path / "l",))
    tombstones = Tombstones.in_directory(RealDisk(), tmp_path, lambda: 0)
    async with open_bookie(config) as bookie:
        for ledger_id in (1, 2, 3):
            batch = bookie.storage.new_batch()
            ledger = bookie.storage.create_ledger(batch, ledger_id, b"k" * 20)
            if ledger_id != 2:
                bookie.storage.stage_fence(batch, ledger)
            await bookie.storage.submit_durably(batch)
        served = ServedLedgers(bookie.service, tombstones)
        await served.delete_ledger(1)
        await served.delete_ledger(2)
        await served.delete_local_copy(3)  # it exists, and may be stored here again
        assert tombstones.confirmed.read() == [1]
        assert tombstones.unconfirmed.read() == []
        assert bookie.service.was_fenced_and_deleted(1)


async def test_a_bookie_loads_tombstones_at_its_start(tmp_path: Path) -> None:
    (tmp_path / "ledgers" / "current").mkdir(parents=True)
    await TombstonesFile(RealDisk(), tmp_path / "ledgers/current/TOMBS", wall_ms).add(1)
    config = parse_config(
        "metadataServiceUri=zk+null://nowhere:1/ledgers\n"
        f"journalDirectories={tmp_path}/journal\nledgerDirectories={tmp_path}/ledgers\n",
        "test.conf",
    )
    async with open_bookie(config.storage) as bookie:
        await load_tombstones(bookie.service, tmp_path / "ledgers", RealDisk())
        assert bookie.service.was_fenced_and_deleted(1)
        assert not bookie.service.was_fenced_and_deleted(2)
