"""Ids of entry logs: each is allocated only once (docs/storage-tests.md 12)."""

# covers: bookie/entrylog/ids.py

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from bookie.disk.real_disk import RealDisk
from bookie.disk.rocksdb import RocksKeyValues
from bookie.entrylog.ids import LAST_ID, LAST_ID_CHECKED, EntryLogIds, entry_log_ids
from bookie.errors import StorageFailedError
from bookie.index.chunk_index import ChunkIndex
from bookie.index.entry_index import EntryRange
from bookie.index.index_scan import greatest_log_id, referenced_logs
from bookie.ledger_record import LedgerData

DISK = RealDisk()


def ids(directory: Path, greatest: int = -1) -> EntryLogIds:
    return EntryLogIds(DISK, directory, lambda: greatest)


def never() -> int:
    raise AssertionError("the whole index was read")


def test_the_first_id_is_0_and_each_is_recorded_before_it_is_used(tmp_path: Path) -> None:
    allocator = ids(tmp_path)
    assert [allocator.allocate(), allocator.allocate()] == [0, 1]
    assert (tmp_path / LAST_ID).read_text() == "1\n"
    assert EntryLogIds(DISK, tmp_path, never).allocate() == 2


@pytest.mark.slow
@pytest.mark.parametrize("hint", ["missing", "stale", "garbage"])
@pytest.mark.parametrize("record", ["present", "missing", "garbage", "flipped"])
@pytest.mark.parametrize("newest_deleted", [0, 3])
def test_a_new_id_is_greater_than_every_id_the_index_references(
    tmp_path: Path, hint: str, record: str, newest_deleted: int
) -> None:
    first = ids(tmp_path)
    for log_id in range(20):
        assert first.allocate() == log_id
        (tmp_path / f"{log_id:x}.log").touch()
    for log_id in range(20 - newest_deleted, 20):
        (tmp_path / f"{log_id:x}.log").unlink()
    match hint:
        case "missing":
            (tmp_path / LAST_ID).unlink()
        case "stale":
            (tmp_path / LAST_ID).write_text("3\n")
        case "garbage":
            (tmp_path / LAST_ID).write_bytes(b"\xff\xff")
    recorded = (tmp_path / LAST_ID_CHECKED).read_bytes()
    match record:
        case "missing":
            (tmp_path / LAST_ID_CHECKED).unlink()
        case "garbage":
            (tmp_path / LAST_ID_CHECKED).write_bytes(b"\0" * 12)
        case "flipped":
            (tmp_path / LAST_ID_CHECKED).write_bytes(recorded.replace(b"13 ", b"12 "))
    assert ids(tmp_path, greatest=19).allocate() == 20


def test_the_index_is_read_only_if_our_file_is_missing(tmp_path: Path) -> None:
    ids(tmp_path).allocate()
    (tmp_path / LAST_ID).unlink()
    assert EntryLogIds(DISK, tmp_path, never).allocate() == 1


def test_ids_of_unfinished_compactions_count_as_used(tmp_path: Path) -> None:
    (tmp_path / "20.log.compacting").touch()
    assert ids(tmp_path).allocate() == 0x21
    (tmp_path / "30.log.40.compacted").touch()
    assert ids(tmp_path).allocate() == 0x41
    assert entry_log_ids(DISK, tmp_path) == []


def test_allocation_fails_after_the_last_id(tmp_path: Path) -> None:
    allocator = ids(tmp_path, greatest=2**31 - 2)
    assert allocator.allocate() == 2**31 - 1
    with pytest.raises(StorageFailedError, match="used up"):
        allocator.allocate()


def test_an_index_scan_finds_the_greatest_log_and_the_logs_referenced_behind_an_offset(
    tmp_path: Path,
) -> None:
    index = ChunkIndex(RocksKeyValues(tmp_path / "index"))
    assert greatest_log_id(index) == -1
    data = LedgerData(b"", False, None, -1, 2000)
    for ledger_id, log_ids in ((1, [3, 5]), (2, [4])):
        for number, log_id in enumerate(log_ids):
            entry_ids = list(range(2000 * number, 2000 * number + 1500))
            locations = list(itertools.islice(itertools.count((log_id << 32) + 1028, 100), 1500))
            index.put([EntryRange(ledger_id, entry_ids, locations)], [(ledger_id, data)])
    assert greatest_log_id(index) == 5
    last = 1028 + 1499 * 100
    assert referenced_logs(index, {3: last, 4: last + 1, 5: 0, 6: 0}) == {3, 5}
    assert referenced_logs(index, {3: 0, 4: 0, 5: 0}, [2]) == {4}
    assert referenced_logs(index, {}) == set()
    index.close()
