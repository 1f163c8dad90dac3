"""RocksDB behind the interface of ``key_values``.

RocksDB cannot tell a damaged write-ahead log from a torn one, and opens with the records before the damage.
So each sync is counted in the database, and then in a small file beside it. A database that counts fewer
syncs than the file has lost synced writes; the constructor refuses it.

RocksDB, not LMDB or SQLite: deleting a whole ledger costs one range tombstone, a crash leaves a prefix of the
unsynced writes, and blocks have checksums. Its ``write`` holds the interpreter lock, so batches stay
below ``BATCH_OPERATIONS_MAX``, and syncing is always a separate ``flush_wal``, which does not hold it.

Source: docs/storage-format.md 5.5 and 14; EntryLocationIndex.java for the idea.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import Struct

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

from bookie.disk.descriptor_limit import key_value_files_max
from bookie.disk.disk import Disk, File
from bookie.disk.key_values import KeyValues, Operation
from bookie.errors import IndexFailedError, StartError
from ledger.tasks.forks import call_in_child

_BLOCK_CACHE_BYTES = 8 << 20
_MEMTABLE_BYTES = 4 << 20
_WAL_BYTES_MAX = 16 << 20
_SYNC_COUNT_KEY = b"\xffsynced"  # greater than every key of the index
_SYNC_COUNT_FILE = "synced"  # inside the database's directory, so that it is moved with it
_BINDING_FILE = "rocksdict-config.json"  # rocksdict's own
_MEMORY = "/dev/shm"  # a file system that is neither full nor read-only when the disk is
_COUNT = Struct(">q")
_CRC = Struct(">I")

log = logging.getLogger(__name__)


class RocksKeyValues(KeyValues):
    """A RocksDB database. Its caches are small and bounded, since the operating system caches too."""

    def __init__(self, path: Path, disk: Disk | None = None, *, read_only: bool = False) -> None:
        """Open or create the database.

        Args:
            disk: The disk of the file that counts syncs; None: syncs are not counted.
            read_only: Change no file, not even the ones that RocksDB changes when it opens. Another process
                may have the database open; then this one shows a recent state of it. All files are opened
                now: what the other process deletes later stays readable.

        Raises:
            StartError: RocksDB refuses the files, or synced writes are lost.
        """
        self._path = path
        self.is_read_only = read_only
        # Read before the database is opened: another process that has it open may sync it meanwhile.
        count_file = path / _SYNC_COUNT_FILE
        counted = _read_count(disk, count_file) if disk is not None else None
        try:
            self._db = _open_read_only(path) if read_only else Rdict(str(path), _options())
        except Exception as exc:  # rocksdict raises a bare Exception for every failure
            raise StartError(
                f"the index {path} cannot be opened: {exc}. `dlog bookie rebuild-index` rebuilds it"
                " from the entry logs"
            ) from exc
        self._is_forked = False
        call_in_child(self, RocksKeyValues._refuse_in_child)
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
        # An empty database was just created; the caller decides whether it may be empty.
        if counted is not None and self._syncs < counted and self.floor(b"\xff" * 16) is not None:
            raise StartError(
                f"the index {self._path} was synced {counted} times but records only {self._syncs} syncs: its"
                " write-ahead log is damaged and its last changes are lost. `dlog bookie"
                " rebuild-index` rebuilds it from the entry logs"
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
                iterator.status()  # raises if an error ended the search: damage must not look like absence
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

    def _refuse_in_child(self) -> None:
        """Never close the database: called in a forked child.

        RocksDB would wait for its threads, which do not exist there, or write what the parent has in its
        buffers into the parent's files. The reference lets the object outlive the interpreter.
        """
        self._is_forked = True
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._db))
        _skip_exit_handlers()

    def close(self) -> None:
        if self._is_forked:
            return
        self._db.close()
        if self._counter is not None:
            self._counter.close()

    def _broken(self, reason: Exception) -> OSError:
        # rocksdict raises a bare Exception for every failure; the engine treats each as a failing disk.
        return IndexFailedError(errno.EIO, f"index: {reason}", str(self._path))


def _skip_exit_handlers() -> None:
    # In a forked child RocksDB's handler joins threads that do not exist: the child would end with SIGSEGV.
    # The handler added last runs first; it ends the process with its status, after Python has finalized.
    with contextlib.suppress(AttributeError):  # a C library without on_exit
        library = ctypes.CDLL(None)
        library.on_exit(library._exit, None)


def _open_read_only(path: Path) -> Rdict:
    """Open the database through links to its files, in a private directory that is gone on return.

    rocksdict writes a file of its own beside the files of a database whenever it opens one, also read-only.
    """
    names = os.listdir(path)
    place = tempfile.mkdtemp(prefix="dlog-index-", dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None)
    try:
        for name in names:
            if name != _BINDING_FILE:
                os.symlink(path.absolute() / name, os.path.join(place, name))
        options = _options()
        options.set_max_open_files(-1)  # open all files now
        return Rdict(place, options, access_type=AccessType.read_only())
    finally:
        shutil.rmtree(place)


def _read_count(disk: Disk, path: Path) -> int | None:
    try:
        counted = _decode_count(disk.read_file(path))
    except FileNotFoundError:
        return 0
    if counted is None:
        log.warning("%s is damaged: lost changes of the index cannot be detected at this start", path)
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
    """The count; None if the file is damaged. An empty file was just created and counts 0."""
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
    options.set_max_open_files(key_value_files_max())
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(1 << 20)
    # Only the end of the write-ahead log may be torn; an earlier hole is damage.
    options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
    table = BlockBasedOptions()
    table.set_block_cache(Cache(_BLOCK_CACHE_BYTES))
    table.set_block_size(16 << 10)
    table.set_cache_index_and_filter_blocks(True)
    table.set_format_version(5)
    options.set_block_based_table_factory(table)
    return options
