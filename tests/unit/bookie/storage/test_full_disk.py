"""A disk that fills up under a bookie: what was acknowledged stays, reads are served, a start is possible."""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from bookie.disk.disk import Buffer, DiskUsage, File
from bookie.disk.real_disk import RealDisk, RealFile
from bookie.disk.reserve import FLUSH_RESERVE, Reserve
from bookie.errors import StorageFailedError
from bookie.journal.files import JournalConfig
from bookie.ledger_record import LedgerRecord
from bookie.storage.config import StorageConfig
from bookie.storage.opening import open_storage
from bookie.storage.storage import Storage

KEY = b"k" * 20
MIB = 1 << 20


class SmallFile(RealFile):
    """A file that grows only as far as its disk has room."""

    disk: SmallDisk
    path: Path

    def _grow(self, size_bytes: int, offset: int) -> None:
        growth = offset + size_bytes - self.size()
        if growth > 0 and growth > self.disk.free_bytes():
            raise OSError(errno.ENOSPC, "no space left on device", str(self.path))

    def pwrite(self, data: Buffer, offset: int) -> None:
        self._grow(len(data), offset)
        super().pwrite(data, offset)

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        # Part of it may still find room, as on a real disk.
        free = self.disk.free_bytes()
        try:
            self._grow(sum(map(len, buffers)), offset)
        except OSError:
            super().pwrite(b"".join(map(bytes, buffers))[:free], offset)
            raise
        super().pwritev(buffers, offset)

    def write_durably(self, data: Buffer, offset: int) -> None:
        self._grow(len(data), offset)
        super().write_durably(data, offset)


class SmallDisk(RealDisk):
    """So many bytes for all files under a directory, but for the index, whose files are RocksDB's own."""

    def __init__(self, path: Path, total_bytes: int) -> None:
        super().__init__()
        self.path = path
        self.total_bytes = total_bytes
        self.others_bytes = 0  # what other programs have written there

    def used_bytes(self) -> int:
        used = self.others_bytes
        for path, _, names in os.walk(self.path):
            if not path.endswith("/index"):
                for name in names:
                    with contextlib.suppress(FileNotFoundError):
                        used += os.stat(os.path.join(path, name)).st_size
        return used

    def free_bytes(self) -> int:
        return max(0, self.total_bytes - self.used_bytes())

    def fill(self) -> None:
        """Other programs take all that is left."""
        self.others_bytes += self.free_bytes()

    def usage(self, path: Path) -> DiskUsage:
        return DiskUsage(self.total_bytes, self.free_bytes())

    def open(self, path: Path, *, create: bool = False, write: bool = False, direct: bool = False) -> File:
        if create and not self.free_bytes():
            raise OSError(errno.ENOSPC, "no space left on device", str(path))
        opened = super().open(path, create=create, write=write, direct=False)
        assert isinstance(opened, RealFile)
        file = SmallFile(path, opened._descriptor, direct=False)
        file.disk, file.path = self, path
        return file


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
        assert not (tmp_path / "ledgers/current" / FLUSH_RESERVE).exists()
    async with open_storage(disk, config_for(tmp_path)) as storage:
        assert await all_readable(storage, 3000)


async def test_without_it_the_bookie_stops_and_loses_nothing(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path, 64 * MIB)
    async with open_storage(disk, config_for(tmp_path)) as storage:
        await add(storage, range(3000))
        disk.fill()
        with pytest.raises(StorageFailedError, match="no space left"):
            await storage.flush()
    with pytest.raises((OSError, StorageFailedError)):
        async with open_storage(disk, config_for(tmp_path)):
            pass
    disk.others_bytes = 0
    async with open_storage(disk, config_for(tmp_path)) as storage:
        assert await all_readable(storage, 3000)


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
