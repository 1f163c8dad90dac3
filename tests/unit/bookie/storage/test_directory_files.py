"""The files of one ledger directory, written by its storage thread."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie.disk.real_disk import RealDisk
from bookie.entrylog.writer import scan_log
from bookie.errors import StorageFailedError
from bookie.journal.format import NO_MARK
from bookie.storage.config import StorageConfig
from bookie.storage.directory_files import open_directory_files
from bookie.storage.write_cache import SealedCache
from tests.fakes.log_summaries import summarise
from tests.fakes.storage_by_hand import FailingDisk, entry


def test_after_a_failed_flush_there_is_no_other_flush(tmp_path: Path) -> None:
    """Otherwise the marks would pass the failed one."""
    disk = FailingDisk(lambda path, what: path.suffix == ".log")
    config = StorageConfig(journal_directories=(tmp_path,), ledger_directories=(tmp_path,))
    directory = open_directory_files(disk, tmp_path, tmp_path, config, NO_MARK)
    try:
        directory.flush(SealedCache(1, {1: {0: entry(1, 0)}}, []))
        disk.is_failing = True
        with pytest.raises(OSError, match="Input/output error"):
            directory.flush(SealedCache(2, {1: {1: entry(1, 1)}}, []))
        disk.is_failing = False
        with pytest.raises(StorageFailedError, match="an earlier flush failed"):
            directory.flush(SealedCache(3, {1: {2: entry(1, 2)}}, []))
        assert directory.index.last_entry_id(1) == 0
    finally:
        directory.close(has_failed=True)


def entries(ledger_id: int, start: int, stop: int) -> dict[int, bytes]:
    return {entry_id: entry(ledger_id, entry_id) for entry_id in range(start, stop)}


def test_a_failed_flush_takes_away_what_it_wrote_and_nothing_that_the_index_names(tmp_path: Path) -> None:
    disk = FailingDisk(lambda path, what: path.suffix == ".log" and path.name != "0.log")
    config = StorageConfig(
        journal_directories=(tmp_path,), ledger_directories=(tmp_path,), entry_log_bytes_max=16_384
    )
    for attempt in range(
        3
    ):  # an earlier process leaves a log that is named; each attempt would leave another
        directory = open_directory_files(disk, tmp_path, tmp_path, config, NO_MARK)
        try:
            if attempt == 0:
                directory.flush(SealedCache(1, {1: {0: entry(1, 0)}}, []))
            disk.is_failing = True
            with pytest.raises(OSError, match="Input/output error"):
                # The first ledger still goes into the old log, which the second one ends.
                directory.flush(SealedCache(2, {1: entries(1, 1, 5), 2: entries(2, 0, 900)}, []))
            disk.is_failing = False
            assert sorted(path.name for path in tmp_path.glob("*.log")) == ["0.log"]
            found, damage = scan_log(RealDisk(), tmp_path, 0)
            assert ([(one.ledger_id, one.entry_id) for one in found], damage) == ([(1, 0)], None)
            assert not summarise(RealDisk(), tmp_path, 0).has_map, "the log is full and its map is cut off"
            assert directory.index.last_entry_id(1) == 0
        finally:
            directory.close(has_failed=True)


def test_copies_that_the_index_will_name_stay_when_the_next_flush_fails(tmp_path: Path) -> None:
    disk = FailingDisk(lambda path, what: path.suffix == ".log")
    config = StorageConfig(journal_directories=(tmp_path,), ledger_directories=(tmp_path,))
    directory = open_directory_files(disk, tmp_path, tmp_path, config, NO_MARK)
    try:
        assert list(directory.append_copies(1, {7: entry(1, 7)})) == [7]
        disk.is_failing = True
        with pytest.raises(OSError, match="Input/output error"):
            directory.flush(SealedCache(2, {1: {1: entry(1, 1)}}, []))
        disk.is_failing = False
        found, _ = scan_log(RealDisk(), tmp_path, 0)
        assert [one.entry_id for one in found] == [7]
    finally:
        directory.close(has_failed=True)
