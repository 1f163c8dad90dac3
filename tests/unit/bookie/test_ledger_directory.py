"""One ledger directory as the storage thread sees it."""

from __future__ import annotations

from pathlib import Path

import pytest
from storage_by_hand import FailingDisk, entry

from bookie.errors import StorageFailedError
from bookie.journal_format import NO_MARK
from bookie.ledger_directory import LedgerDirectory
from bookie.storage_config import StorageConfig
from bookie.write_cache import SealedCache


def test_after_a_flush_that_failed_there_is_no_other_since_the_marks_would_pass_the_first(
    tmp_path: Path,
) -> None:
    disk = FailingDisk(lambda path, what: path.suffix == ".log")
    config = StorageConfig(journal_directories=(tmp_path,), ledger_directories=(tmp_path,))
    directory = LedgerDirectory(disk, tmp_path, tmp_path, config)
    directory.open(NO_MARK, rebuild_index=False)
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
