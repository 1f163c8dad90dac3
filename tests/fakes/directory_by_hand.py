"""A ledger directory without the store around it, on a disk that tells of its reads and damages them."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

from bookie.damage.damaged_entries import DamagedEntries
from bookie.damage.directory_entries import DirectoryEntries
from bookie.disk.disk import File
from bookie.disk.real_disk import RealDisk, RealFile
from bookie.entrylog.reader import EntryLogReader
from bookie.entrylog.writer import EntryLogWriter
from bookie.index.chunk_index import ChunkIndex
from bookie.index.entry_index import LedgerMove
from bookie.ledger_record import LedgerRecord
from bookie.storage.entry_reads import EntryReads, ReadConfig
from bookie.storage.write_cache import WriteCache
from ledger.digest import DigestType, EntryCodec


class WatchedFile(RealFile):
    """A file that tells of its reads and does what the test says to them."""

    disk: WatchedDisk

    def pread(self, size_bytes: int, offset: int) -> bytes:
        self.disk.preads.append((offset, size_bytes))
        self.disk.before_pread()
        return self.disk.change(super().pread(size_bytes, offset), offset)

    def pread_cached(self, size_bytes: int, offset: int) -> bytes | None:
        self.disk.looks += 1
        return super().pread(size_bytes, offset) if self.disk.is_warm else None


class WatchedDisk(RealDisk):
    def __init__(self) -> None:
        super().__init__()
        self.preads: list[tuple[int, int]] = []
        self.looks = 0  # into the page cache
        self.is_warm = False
        self.before_pread: Callable[[], None] = lambda: None
        self.change: Callable[[bytes, int], bytes] = lambda data, offset: data

    def open(self, path: Path, *, create: bool = False, write: bool = False, direct: bool = False) -> File:
        file = super().open(path, create=create, write=write, direct=direct)
        if path.suffix != ".log" or write:
            return file
        assert isinstance(file, RealFile)
        watched = WatchedFile(path, file._descriptor, direct=False)
        watched.disk = self
        return watched


class Directory:
    """A ledger directory without the store around it."""

    def __init__(self, path: Path, config: ReadConfig | None = None) -> None:
        self.path = path
        self.disk = WatchedDisk()
        self.index = ChunkIndex(self.disk.open_key_values(path / "index"))
        self.writer = EntryLogWriter(self.disk, path, log_bytes_max=1 << 26)
        self.reader = EntryLogReader(self.disk, path)
        self.cache = WriteCache()
        self.ledgers: dict[int, LedgerRecord] = {}
        self.deleting: set[int] = set()
        self.damaged = DamagedEntries()
        self.make: Callable[[int, int, int], bytes] = body
        self.digest_types: dict[int, DigestType] = {}  # of the metadata; CRC32C for any other ledger
        self.asked: list[int] = []  # ledgers whose digest type was asked for
        self.entries = DirectoryEntries(
            disk=self.disk,
            ledgers=self.ledgers,
            deleting=self.deleting,
            index=self.index,
            reader=self.reader,
            damaged=self.damaged,
        )
        self.reads = EntryReads(self.entries, self.cache, config)

    def store(self, ledger_id: int, ids: Sequence[int], size: int = 1000) -> None:
        self.ledgers.setdefault(ledger_id, LedgerRecord(ledger_id, b"k"))
        ranges = list(self.writer.append({ledger_id: {e: self.make(ledger_id, e, size) for e in ids}}))
        self.writer.sync()
        self.index.put(ranges)

    def move(self, ledger_id: int, ids: Sequence[int]) -> None:
        """As compaction does: copy to a new log, let the index name the copies, delete the old log."""
        old = [self.index.locate(ledger_id, entry_id)[0] for entry_id in ids]
        copier = EntryLogWriter(self.disk, self.path, log_bytes_max=1 << 26)
        (entry_range,) = copier.append({ledger_id: {e: self.make(ledger_id, e, 1000) for e in ids}})
        copier.sync()
        copier.close()
        assert self.index.relocate([LedgerMove(ledger_id, ids, old, entry_range.locations)]) == [list(ids)]
        for log_id in {location >> 32 for location in old}:
            (self.path / f"{log_id:x}.log").unlink()

    def close(self) -> None:
        self.reader.close()
        self.writer.close()
        self.index.close()


def body(ledger_id: int, entry_id: int, size: int = 1000) -> bytes:
    return struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, 0) + random.Random(entry_id).randbytes(
        size
    )


def sealed(digest_type: DigestType = DigestType.CRC32C) -> Callable[[int, int, int], bytes]:
    codec = EntryCodec(digest_type, b"secret")

    def make(ledger_id: int, entry_id: int, size: int) -> bytes:
        return codec.pack(
            ledger_id, entry_id, entry_id - 1, size, random.Random(entry_id + size).randbytes(size)
        )

    return make
