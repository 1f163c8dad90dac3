"""Ledgers that were fenced and deleted are remembered for a week, also over restarts."""

from __future__ import annotations

import errno
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.config import parse_config
from bookie.disk import RealDisk
from bookie.live_ledgers import ServedLedgers, remember_tombs
from bookie.run import open_bookie
from bookie.storage_config import StorageConfig
from bookie.tombs import KEEP_MS, Tombs


async def test_what_was_buried_is_remembered_for_a_week(tmp_path: Path) -> None:
    now = 1_000_000

    def tombs() -> Tombs:
        return Tombs(RealDisk(), tmp_path / "TOMBS", lambda: now)

    first = tombs()
    assert first.read() == []
    for ledger_id in (3, 1, 2**62):
        await first.bury(ledger_id)
    assert tombs().read() == [3, 1, 2**62]
    now += KEEP_MS - 1
    last = tombs()
    assert last.read() == [3, 1, 2**62]
    await last.bury(7)
    now += 1
    assert tombs().read() == [7]
    assert (tmp_path / "TOMBS").stat().st_size == 20


async def test_a_torn_record_is_left_out_and_the_next_one_takes_its_place(tmp_path: Path) -> None:
    path = tmp_path / "TOMBS"
    first = Tombs(RealDisk(), path, lambda: 0)
    await first.bury(1)
    await first.bury(2)
    path.write_bytes(path.read_bytes()[:-3])
    second = Tombs(RealDisk(), path, lambda: 0)
    await second.bury(9)
    assert Tombs(RealDisk(), path, lambda: 0).read() == [1, 9]


@given(st.binary(max_size=100))
def test_any_bytes_are_some_ids(data: bytes) -> None:
    class Bytes(RealDisk):
        def read_file(self, path: Path) -> bytes:
            return data

        def replace_file(self, path: Path, kept: bytes) -> None:
            assert len(kept) <= len(data)

    assert all(isinstance(ledger_id, int) for ledger_id in Tombs(Bytes(), Path("x"), lambda: 0).read())


async def test_a_full_disk_keeps_no_ledger_from_being_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: RealDisk, path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(RealDisk, "replace_file", full)
    await Tombs(RealDisk(), tmp_path / "TOMBS", lambda: 0).bury(1)
    assert not (tmp_path / "TOMBS").exists()


async def test_only_fenced_ledgers_that_do_not_exist_any_more_are_buried(tmp_path: Path) -> None:
    config = StorageConfig(journal_directories=(tmp_path / "j",), ledger_directories=(tmp_path / "l",))
    tombs = Tombs(RealDisk(), tmp_path / "TOMBS", lambda: 0)
    async with open_bookie(config) as bookie:
        for ledger_id in (1, 2, 3):
            ledger = bookie.storage.create_ledger(ledger_id, b"k" * 20)
            if ledger_id != 2:
                bookie.storage.stage_fence(ledger)
        served = ServedLedgers(bookie.service, tombs)
        await served.delete_ledger(1)
        await served.delete_ledger(2)
        await served.delete_surplus(3)  # it exists, and may come back here
        assert tombs.read() == [1]
        assert bookie.service.was_fenced_and_deleted(1)


async def test_a_bookie_remembers_them_over_a_restart(tmp_path: Path) -> None:
    (tmp_path / "ledgers" / "current").mkdir(parents=True)
    await Tombs(RealDisk(), tmp_path / "ledgers/current/TOMBS", lambda: time.time_ns() // 1_000_000).bury(1)
    config = parse_config(
        "metadataServiceUri=zk+null://nowhere:1/ledgers\n"
        f"journalDirectories={tmp_path}/journal\nledgerDirectories={tmp_path}/ledgers\n",
        "test.conf",
    )
    async with open_bookie(config.storage) as bookie:
        await remember_tombs(bookie.service, tmp_path / "ledgers", RealDisk())
        assert bookie.service.was_fenced_and_deleted(1)
        assert not bookie.service.was_fenced_and_deleted(2)
