"""An ordered map of bytes on disk: what the index needs of a database, and RocksDB behind it.

Inside: the interface (six methods) and its implementation with rocksdict.
Not inside: what the keys mean (``index``, ``ledgers``).
Always: one ``write`` is atomic and ordered after earlier ones; what was written before a ``sync`` that
returned survives a power cut; without a sync a crash leaves a prefix of the writes.

RocksDB takes a damaged write-ahead log for one that was torn, and opens with what comes before the damage.
Hence each sync is counted in the database, and then in a small file beside it: a database that knows of
fewer syncs than the file has lost what was synced, and is refused.

RocksDB, not LMDB or SQLite: deletes of a whole ledger cost one range tombstone, unsynced writes are
safe in any order of crash, blocks carry checksums. Its ``write`` holds the interpreter lock, so that
batches stay below ``BATCH_OPERATIONS_MAX`` and syncing is always a separate ``flush_wal``, which does
not hold it.

Source: reference on bookie storage 8.1 (A, F) and 8.2; EntryLocationIndex.java for the idea.
"""

from __future__ import annotations

import abc
import errno
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING

from crc32c import crc32c
from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
)

from bookie.errors import IndexFailedError, StartError

if TYPE_CHECKING:
    from bookie.disk import Disk, File

BATCH_OPERATIONS_MAX = 2000  # about 0.3 ms of the interpreter lock
_BLOCK_CACHE_BYTES = 8 << 20
_MEMTABLE_BYTES = 4 << 20
_WAL_BYTES_MAX = 16 << 20
_SYNC_COUNT_KEY = b"\xffsynced"  # behind every key of the index
_SYNC_COUNT_FILE = "synced"  # inside the database's directory, so that it goes where that goes
_COUNT = Struct(">q")
_CRC = Struct(">I")

log = logging.getLogger(__name__)

Operation = tuple[bytes, bytes | None]  # key and value; None deletes the key


class KeyValues(abc.ABC):
    """Bytes to bytes, in the order of the keys. Any thread may read; one thread at a time writes.

    ``OSError`` when the disk or the stored data fail.
    """

    is_read_only = False

    @abc.abstractmethod
    def write(self, operations: Sequence[Operation]) -> None:
        """Apply all of them or none. Not durable until ``sync``."""

    @abc.abstractmethod
    def delete_range(self, first: bytes, stop: bytes) -> None:
        """Delete the keys of ``[first, stop)``. Not durable until ``sync``."""

    @abc.abstractmethod
    def get(self, key: bytes) -> bytes | None:
        """The value of exactly this key."""

    @abc.abstractmethod
    def floor(self, key: bytes) -> tuple[bytes, bytes] | None:
        """The greatest key not above this one, and its value."""

    @abc.abstractmethod
    def scan(self, first: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The keys of ``[first, stop)`` in order, as they were when the scan began."""

    @abc.abstractmethod
    def sync(self) -> None:
        """Return once everything written so far is on stable storage."""

    @abc.abstractmethod
    def close(self) -> None: ...


class RocksKeyValues(KeyValues):
    """A RocksDB database whose caches are small and bounded: the operating system caches as well."""

    def __init__(self, path: Path, disk: Disk | None = None, *, read_only: bool = False) -> None:
        """Open or create it. ``StartError`` when RocksDB refuses, or has lost what was synced.

        Args:
            disk: Where syncs are counted; None counts none.
            read_only: Change nothing, not even what RocksDB does by opening. Another process may have it
                open; then this is what that one had written a moment ago.
        """
        self._path = path
        self.is_read_only = read_only
        # Read before the database, which grows if somebody else has it open.
        count_file = path / _SYNC_COUNT_FILE
        counted = _read_count(disk, count_file) if disk is not None else None
        access = AccessType.read_only() if read_only else AccessType.read_write()
        try:
            self._db = Rdict(str(path), _options(), access_type=access)
        except Exception as exc:  # rocksdict raises bare Exception for everything
            raise StartError(
                f"the index {path} cannot be opened: {exc}. `dlog bookie rebuild-index` derives it"
                " from the entry logs"
            ) from exc
        self._syncs = 0
        self._counter: File | None = None
        if disk is not None:
            try:
                self._check_count(counted)
                if not read_only:
                    self._counter = _open_or_create(disk, count_file)
            except BaseException:
                self.close()
                raise

    def _check_count(self, counted: int | None) -> None:
        stored = self.get(_SYNC_COUNT_KEY)
        self._syncs = 0 if stored is None else _COUNT.unpack(stored)[0]
        # An empty database was just made; whether it may be empty is for its owner to say.
        if counted is not None and self._syncs < counted and self.floor(b"\xff" * 16) is not None:
            raise StartError(
                f"the index {self._path} was synced {counted} times and knows of {self._syncs}: its last"
                " changes are lost, its write-ahead log is damaged. `dlog bookie"
                " rebuild-index` derives it from the entry logs"
            )

    def write(self, operations: Sequence[Operation]) -> None:
        batch = WriteBatch(raw_mode=True)
        for key, value in operations:
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        try:
            self._db.write(batch)
        except Exception as exc:
            raise self._broken(exc) from exc

    def delete_range(self, first: bytes, stop: bytes) -> None:
        try:
            self._db.delete_range(first, stop)
        except Exception as exc:
            raise self._broken(exc) from exc

    def get(self, key: bytes) -> bytes | None:
        try:
            value: bytes | None = self._db.get(key)
        except Exception as exc:
            raise self._broken(exc) from exc
        return value

    def floor(self, key: bytes) -> tuple[bytes, bytes] | None:
        try:
            iterator = self._db.iter()
            iterator.seek_for_prev(key)
            if not iterator.valid():
                iterator.status()  # raises if it stopped for an error: damage is not absence
                return None
            return iterator.key(), iterator.value()
        except Exception as exc:
            raise self._broken(exc) from exc

    def scan(self, first: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        try:
            bounds = ReadOptions()
            bounds.set_iterate_upper_bound(stop)
            iterator = self._db.iter(bounds)
            iterator.seek(first)
            while iterator.valid():
                yield iterator.key(), iterator.value()
                iterator.next()
            iterator.status()
        except Exception as exc:
            raise self._broken(exc) from exc

    def sync(self) -> None:
        if self._counter is None:
            self._flush_wal()
            return
        self._syncs += 1
        self.write([(_SYNC_COUNT_KEY, _COUNT.pack(self._syncs))])
        self._flush_wal()
        self._counter.write_durably(_encode_count(self._syncs), 0)

    def _flush_wal(self) -> None:
        try:
            self._db.flush_wal(True)
        except Exception as exc:
            raise self._broken(exc) from exc

    def close(self) -> None:
        self._db.close()
        if self._counter is not None:
            self._counter.close()

    def _broken(self, reason: Exception) -> OSError:
        # rocksdict raises bare Exception whatever happened; to us all of it is a disk that fails.
        return IndexFailedError(errno.EIO, f"index: {reason}", str(self._path))


def _read_count(disk: Disk, path: Path) -> int | None:
    try:
        counted = _decode_count(disk.read_file(path))
    except FileNotFoundError:
        return 0
    if counted is None:
        log.warning("%s is damaged; whether the index has lost anything cannot be told", path)
    return counted


def _open_or_create(disk: Disk, path: Path) -> File:
    try:
        return disk.open(path, write=True)
    except FileNotFoundError:
        return disk.open(path, create=True, write=True)


def _encode_count(count: int) -> bytes:
    data = _COUNT.pack(count)
    return data + _CRC.pack(crc32c(data))


def _decode_count(data: bytes) -> int | None:
    """None if it is damaged. An empty file was just made."""
    if not data:
        return 0
    if len(data) != _COUNT.size + _CRC.size or _CRC.unpack_from(data, _COUNT.size)[0] != crc32c(data[:8]):
        return None
    count: int = _COUNT.unpack_from(data)[0]
    return count


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_write_buffer_size(_MEMTABLE_BYTES)
    options.set_max_write_buffer_number(3)
    options.set_max_total_wal_size(_WAL_BYTES_MAX)
    options.set_target_file_size_base(16 << 20)
    options.set_max_open_files(256)
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(1 << 20)
    # The write-ahead log may be torn at its very end only: a hole before that is damage.
    options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
    table = BlockBasedOptions()
    table.set_block_cache(Cache(_BLOCK_CACHE_BYTES))
    table.set_block_size(16 << 10)
    table.set_cache_index_and_filter_blocks(True)
    table.set_format_version(5)
    options.set_block_based_table_factory(table)
    return options
