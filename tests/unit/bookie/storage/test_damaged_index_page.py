"""A flush into a damaged index page stops the bookie; a rebuilt index has all entries."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from bookie.disk.real_disk import RealDisk
from bookie.errors import EntryUnreadableError, StartError, StorageFailedError
from bookie.index.index_factory import IndexConfig, IndexKind
from bookie.index.page_file import page_file_path
from bookie.offline.index_rebuild import rebuild_indexes
from bookie.storage.config import CURRENT, StorageConfig
from bookie.storage.opening import open_storage
from tests.fakes.storage_by_hand import add, entry


@pytest.mark.slow
async def test_a_flush_into_a_damaged_page_stops_the_bookie_and_loses_no_entry(tmp_path: Path) -> None:
    config = StorageConfig(
        journal_directories=(tmp_path / "j",),
        ledger_directories=(tmp_path / "l",),
        index=IndexConfig(kind=IndexKind.PAGES),
    )
    with trio.fail_after(30):
        async with open_storage(RealDisk(), config) as storage:
            await add(storage, 7, range(10))
        path = page_file_path(tmp_path / "l" / CURRENT, 7)
        data = bytearray(path.read_bytes())
        data[1024 + 8 * 3 + 7] ^= 1
        path.write_bytes(data)
        async with open_storage(RealDisk(), config) as storage:
            await add(storage, 7, range(10, 12))  # acknowledged: the journal has them
            for entry_id in (3, 9):
                with pytest.raises(EntryUnreadableError):
                    await storage.read(7, entry_id)
            with pytest.raises(StorageFailedError):
                await storage.flush()
        assert path.read_bytes() == data
        with pytest.raises((StartError, StorageFailedError)):
            async with open_storage(RealDisk(), config):
                pass
        assert path.read_bytes() == data
        rebuild_indexes(RealDisk(), config)
        async with open_storage(RealDisk(), config) as storage:
            for entry_id in range(12):
                assert await storage.read(7, entry_id) == entry(7, entry_id)
