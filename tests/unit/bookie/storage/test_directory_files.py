"""The files of one ledger directory, written by its storage thread."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie.errors import StorageFailedError
from bookie.journal.format import NO_MARK
from bookie.storage.config import StorageConfig
from bookie.storage.directory_files import open_directory_files
from bookie.storage.write_cache import SealedCache
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
