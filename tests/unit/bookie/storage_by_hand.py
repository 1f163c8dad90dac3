"""What tests of the store share: entries, adding them, killing it, a disk that fails when told to."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import trio

from bookie.disk import Buffer, File, RealDisk, RealFile
from bookie.errors import StorageFailedError
from bookie.ledgers import LedgerRecord
from bookie.storage import Storage

KEY = b"k" * 20


def entry(ledger_id: int, entry_id: int, size: int = 100) -> bytes:
    return struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, 0) + bytes([entry_id % 251]) * size


async def submit(storage: Storage, *, sync: bool = True) -> None:
    answered = trio.Event()
    errors: list[BaseException | None] = []

    def on_durable(error: BaseException | None) -> None:
        errors.append(error)
        answered.set()

    storage.submit(on_durable, sync=sync)
    await answered.wait()
    if errors[0] is not None:
        raise errors[0]


async def add(storage: Storage, ledger_id: int, ids: Sequence[int], size: int = 100) -> LedgerRecord:
    ledger = storage.ledger(ledger_id) or storage.create_ledger(ledger_id, KEY)
    for entry_id in ids:
        storage.stage_entry(ledger, entry_id, entry_id - 1, entry(ledger_id, entry_id, size))
    await submit(storage)
    await storage.wait_room()
    return ledger


async def kill(storage: Storage) -> None:
    """Leave the files as SIGKILL would: no flush, no map, only what was written."""
    storage._fail(StorageFailedError("killed"), "the test")


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
