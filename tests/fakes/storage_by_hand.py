"""Helpers for storage tests: entries, adding them, killing the storage, a disk that fails on demand."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import trio

from bookie.disk.disk import Buffer, File
from bookie.disk.real_disk import RealDisk, RealFile
from bookie.errors import StorageFailedError
from bookie.journal.group_commit import WriteBatch
from bookie.ledger_record import LedgerRecord
from bookie.storage.storage import Storage

KEY = b"k" * 20


def entry(ledger_id: int, entry_id: int, size: int = 100) -> bytes:
    return struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, 0) + bytes([entry_id % 251]) * size


async def submit(storage: Storage, batch: WriteBatch, *, sync: bool = True) -> None:
    completed = trio.Event()
    errors: list[BaseException | None] = []

    def on_durable(error: BaseException | None) -> None:
        errors.append(error)
        completed.set()

    storage.submit(batch, on_durable, sync=sync)
    await completed.wait()
    if errors[0] is not None:
        raise errors[0]


async def add(storage: Storage, ledger_id: int, ids: Sequence[int], size: int = 100) -> LedgerRecord:
    batch = storage.new_batch()
    ledger = storage.ledger(ledger_id) or storage.create_ledger(batch, ledger_id, KEY)
    for entry_id in ids:
        storage.stage_entry(batch, ledger, entry_id, entry_id - 1, entry(ledger_id, entry_id, size))
    await submit(storage, batch)
    await storage.wait_capacity()
    return ledger


async def kill(storage: Storage) -> None:
    """Leave the files as after SIGKILL: no flush, no ledger map, only bytes that were written before."""
    storage.failure.report(StorageFailedError("killed"), "the test")


def names(directory: Path, pattern: str = "**/*") -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.glob(pattern))


class FailingFile(RealFile):
    when: Callable[[Path, str], bool] = lambda path, what: False

    def pwrite(self, data: Buffer, offset: int) -> None:
        self._maybe("write")
        super().pwrite(data, offset)

    def write_durably(self, data: Buffer, offset: int) -> None:
        self._maybe("write_durably")
        super().write_durably(data, offset)

    def sync(self) -> None:
        self._maybe("sync")
        super().sync()

    def _maybe(self, what: str) -> None:
        if FailingFile.when(self._path, what):
            raise OSError(5, f"Input/output error: {what} {self._path.name}")


class FailingDisk(RealDisk):
    def __init__(self, when: Callable[[Path, str], bool]) -> None:
        super().__init__()
        self.is_failing = False
        FailingFile.when = lambda path, what: self.is_failing and when(path, what)

    def open(self, path: Path, *, create: bool = False, write: bool = False, direct: bool = False) -> File:
        file = super().open(path, create=create, write=write, direct=direct)
        assert isinstance(file, RealFile)
        return FailingFile(path, file._descriptor, direct=file.direct)
