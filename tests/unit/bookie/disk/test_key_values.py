"""RocksDB behind the index: after a start, all synced writes are present, or the start is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bookie.disk.real_disk import RealDisk
from bookie.disk.rocksdb import RocksKeyValues
from bookie.errors import StartError


def opened(path: Path) -> RocksKeyValues:
    return RocksKeyValues(path, RealDisk())


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A database after a SIGKILL: ``old`` in a table file, ``new`` in the write-ahead log, both synced."""
    work, kept = tmp_path / "work", tmp_path / "index"
    database = opened(work)
    database.write([(b"old", b"1")])
    database.sync()
    database.close()
    database = opened(work)
    database.write([(b"new", b"2")])
    database.sync()
    shutil.copytree(work, kept)
    database.close()
    return kept


def write_ahead_log(path: Path) -> Path:
    return max(path.glob("*.log"), key=lambda log: log.stat().st_size)


def test_synced_writes_survive_a_kill(killed: Path) -> None:
    database = opened(killed)
    assert (database.get(b"old"), database.get(b"new")) == (b"1", b"2")
    database.close()


@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_a_damaged_write_ahead_log_is_refused_and_not_taken_for_a_torn_one(killed: Path, damage: str) -> None:
    path = write_ahead_log(killed)
    data = bytearray(path.read_bytes())
    data[5] ^= 1
    path.write_bytes({"flip": bytes(data), "cut": bytes(data[:4]), "gone": b""}[damage])
    if damage == "gone":
        path.unlink()
    with pytest.raises(StartError, match=r"its last changes are lost.*rebuild-index"):
        opened(killed)
    assert RocksKeyValues(killed).get(b"new") is None  # RocksDB alone does not notice the loss


@pytest.mark.parametrize("data", [b"", b"\1" * 12, b"short"])
def test_a_damaged_sync_count_does_not_refuse_the_start(killed: Path, data: bytes) -> None:
    (killed / "synced").write_bytes(data)
    database = opened(killed)
    assert database.get(b"new") == b"2"
    database.sync()
    database.close()
    opened(killed).close()


def test_unsynced_writes_are_not_counted(killed: Path) -> None:
    before = (killed / "synced").read_bytes()
    database = opened(killed)
    database.write([(b"unsynced", b"3")])
    database.close()
    assert (killed / "synced").read_bytes() == before


def test_a_newly_created_database_is_accepted_despite_an_old_count(killed: Path) -> None:
    for path in killed.iterdir():
        if path.name != "synced":
            path.unlink()
    database = opened(killed)
    assert database.get(b"old") is None
    database.sync()
    database.close()
    opened(killed).close()
