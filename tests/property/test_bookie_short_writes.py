"""Writes that the kernel does only in part, on real files: a limit on the size of files makes them."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from bookie.disk.real_disk import RealDisk
from bookie.errors import StorageFailedError
from bookie.journal.files import JournalConfig
from bookie.storage.config import StorageConfig
from bookie.storage.opening import open_storage

KEY = b"k" * 20
BODY_BYTES = 3000


@contextlib.contextmanager
def no_file_grows_beyond(size_bytes: int) -> Iterator[None]:
    """A write that crosses the limit is done up to it; the next one fails. Python ignores the signal."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_is_whole_or_an_error(tmp_path: Path) -> None:
    file = RealDisk().open(tmp_path / "file", create=True, write=True)
    with no_file_grows_beyond(5000):
        file.pwrite(b"a" * 4000, 0)
        for write in (file.pwrite, file.write_durably):
            with pytest.raises(OSError, match="too large"):
                write(b"b" * 4000, 3000)
        with pytest.raises(OSError, match="too large"):
            file.pwritev([b"c" * 1000] * 3, 4000)
    file.pwritev([b"c" * 1000] * 3, 4000)
    assert file.pread(10_000, 0) == b"a" * 3000 + b"b" * 1000 + b"c" * 3000
    file.close()


def body_of(entry_id: int) -> bytes:
    ids = (1).to_bytes(8, "big") + entry_id.to_bytes(8, "big")
    return ids + (entry_id - 1).to_bytes(8, "big", signed=True) + bytes([entry_id % 256]) * BODY_BYTES


# The journal's files, which are all of one size, do not grow; or the entry logs do not.
@pytest.mark.parametrize("limit_bytes", [64 << 10, 128 << 10])
async def test_a_file_that_may_not_grow_stops_the_bookie_and_loses_nothing(
    tmp_path: Path, limit_bytes: int
) -> None:
    directories: Any = (tmp_path,)
    config = StorageConfig(
        journal_directories=directories,
        ledger_directories=directories,
        journal=JournalConfig(file_bytes_max=96 << 10, preallocate_bytes=16 << 10),
        write_cache_bytes_max=64 << 10,
        flush_interval_s=1000,
    )
    acknowledged: set[int] = set()
    failures: list[BaseException] = []
    async with open_storage(RealDisk(), config) as storage:
        with no_file_grows_beyond(limit_bytes):
            batch = storage.new_batch()
            ledger = storage.create_ledger(batch, 1, KEY)
            with contextlib.suppress(StorageFailedError):
                for entry_id in range(1000):
                    answered = trio.Event()

                    def on_durable(
                        error: BaseException | None, entry_id: int = entry_id, answered: trio.Event = answered
                    ) -> None:
                        if error is None:
                            assert not failures, "acknowledged after a failure"
                            acknowledged.add(entry_id)
                        else:
                            failures.append(error)
                        answered.set()

                    storage.stage_entry(batch, ledger, entry_id, entry_id - 1, body_of(entry_id))
                    storage.submit(batch, on_durable)
                    batch = storage.new_batch()
                    await answered.wait()
                    await storage.wait_capacity()
            assert isinstance(await storage.wait_failed(), StorageFailedError)
    assert 10 < len(acknowledged) < 1000
    async with open_storage(RealDisk(), config) as storage:
        for entry_id in acknowledged:
            assert await storage.read(1, entry_id) == body_of(entry_id)
