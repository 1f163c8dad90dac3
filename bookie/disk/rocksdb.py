"""RocksDB behind the interface of ``key_values``.

RocksDB cannot tell a damaged write-ahead log from a torn one, and opens with the records before the damage.
So each sync is counted in the database, and then in a small file beside it. A database that counts fewer
syncs than the file has lost synced writes; the constructor refuses it.

RocksDB, not LMDB or SQLite: deleting a whole ledger costs one range tombstone, a crash leaves a prefix of the
unsynced writes, and blocks have checksums. Its ``write`` holds the interpreter lock, so batches stay
below ``BATCH_OPERATIONS_MAX``, and syncing is always a separate ``flush_wal``, which does not hold it.

RocksDB opens files itself, also in threads of its own. If it finds no descriptor for a table or a log, it
refuses all later writes. Then the database is closed and opened again: its write-ahead log has each write
that returned. The call that failed is repeated, and returns only when it has succeeded. A scan that another
thread has under way may keep the old database open; after 5 s it is ended, with EMFILE as its error.

Source: docs/storage-format.md 5.5 and 14; EntryLocationIndex.java for the idea.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from struct import Struct
from typing import NoReturn, TypeVar

from crc32c import crc32c
from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    Snapshot,
    WriteBatch,
)

from bookie.disk.descriptor_limit import key_value_files_max
from bookie.disk.descriptors import Descriptors
from bookie.disk.disk import Disk, File
from bookie.disk.key_values import KeyValues, Operation
from bookie.errors import IndexFailedError, StartError
from ledger.runtime.log_lines import get_logger
from ledger.runtime.tasks.forks import call_in_child

_BLOCK_CACHE_BYTES = 8 << 20
_MEMTABLE_BYTES = 4 << 20
_WAL_BYTES_MAX = 16 << 20
_SYNC_COUNT_KEY = b"\xffsynced"  # greater than every key of the index
_SYNC_COUNT_FILE = "synced"  # inside the database's directory, so that it is moved with it
_BINDING_FILE = "rocksdict-config.json"  # rocksdict's own
_MEMORY = "/dev/shm"  # a file system that is neither full nor read-only when the disk is
_COUNT = Struct(">q")
_CRC = Struct(">I")

# Each wait is about 20 ms.
_SCAN_WAITS_MAX = 250
_LOCK_WAITS_MAX = 500
_SHORTAGES = (os.strerror(errno.EMFILE), os.strerror(errno.ENFILE))
_FULL = os.strerror(errno.ENOSPC)
_LOCKED = "lock hold by current process"  # the old database is not closed yet

T = TypeVar("T")
log = get_logger(__name__)


class _Scan:
    """A scan under way. Its parts are taken away when the database has to be closed."""

    __slots__ = ("bounds", "iterator", "snapshot")

    def __init__(self, database: Rdict, stop: bytes) -> None:
        self.bounds = ReadOptions()
        self.bounds.set_iterate_upper_bound(stop)
        self.snapshot: Snapshot | None = database.snapshot()
        self.iterator: RdictIter | None = None

    def seek(self, key: bytes) -> None:
        """Begin again at this key. An iterator keeps the error of a file that did not open."""
        assert self.snapshot is not None  # the owner seeks only while it holds the snapshot
        self.iterator = iterator = self.snapshot.iter(self.bounds)
        iterator.seek(key)
        if not iterator.valid():
            iterator.status()

    def end(self) -> None:
        self.iterator = self.snapshot = None


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
        self._where = str(path) if disk is None or read_only else disk.library_path(path)
        self.is_read_only = read_only
        # Read before the database is opened: another process that has it open may sync it meanwhile.
        count_file = path / _SYNC_COUNT_FILE
        counted = _read_count(disk, count_file) if disk is not None else None
        self._descriptors = (disk.descriptors if disk is not None else None) or Descriptors()
        self._scans: set[_Scan] = set()
        self._is_reopening = False  # ``_db`` is closed, or is being closed
        self._sequence = 0  # of the last write that returned, while the database is opened again
        self._scan_waits = self._lock_waits = 0
        self._db: Rdict = self._descriptors.call(self._open)
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

    def _open(self) -> Rdict:
        try:
            return _open_read_only(self._path) if self.is_read_only else Rdict(self._where, _options())
        except Exception as exc:  # rocksdict raises a bare Exception for every failure
            if self._is_shortage(exc):
                raise _no_descriptor(str(exc)) from exc
            if _FULL in str(exc):
                raise OSError(errno.ENOSPC, f"the index cannot be opened: {exc}", str(self._path)) from exc
            raise StartError(
                f"the index {self._path} cannot be opened: {str(exc).strip(' .')}",
                "`dlog bookie rebuild-index` rebuilds it from the entry logs",
            ) from exc

    def _check_count(self, counted: int | None) -> None:
        stored = self.get(_SYNC_COUNT_KEY)
        self._syncs = 0 if stored is None else _COUNT.unpack(stored)[0]
        # An empty database was just created; the caller decides whether it may be empty.
        if counted is not None and self._syncs < counted and self.floor(b"\xff" * 16) is not None:
            raise StartError(
                f"the index {self._path} was synced {counted} times but records only {self._syncs} syncs: its"
                " write-ahead log is damaged and its last changes are lost",
                "`dlog bookie rebuild-index` rebuilds it from the entry logs",
            )

    def write(self, operations: Sequence[Operation]) -> None:
        self._change(lambda database: database.write(_batch(operations)))

    def delete_range(self, first: bytes, stop: bytes) -> None:
        self._change(lambda database: database.delete_range(first, stop))

    def get(self, key: bytes) -> bytes | None:
        database = self._db
        try:
            value: bytes | None = database.get(key)
        except Exception as exc:
            self._check_shortage(exc, database)
            value = self._descriptors.call(self._read, lambda database: database.get(key))
        return value

    def floor(self, key: bytes) -> tuple[bytes, bytes] | None:
        database = self._db
        try:
            return _floor(database, key)
        except Exception as exc:
            self._check_shortage(exc, database)
        return self._descriptors.call(self._read, lambda database: _floor(database, key))

    def scan(self, first: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        scan = self._descriptors.call(self._read, lambda database: self._begin_scan(database, first, stop))
        try:
            position = first
            while True:
                try:
                    iterator = scan.iterator
                    if iterator is None:
                        break
                    if not iterator.valid():
                        iterator.status()  # raises if an error ended the search
                        return
                    key, value = iterator.key(), iterator.value()
                    iterator.next()
                except Exception as exc:
                    if not self._is_shortage(exc):
                        raise self._broken(exc) from exc
                    iterator = None  # only ``scan`` may keep the database open
                    self._descriptors.call(self._seek, scan, position)
                    continue
                position = key + b"\0"
                iterator = None
                yield key, value
            raise _no_descriptor(f"the index {self._path} was opened again during a scan")
        finally:
            iterator = None  # the frame may live longer, in a traceback
            self._scans.discard(scan)
            scan.end()

    def sync(self) -> None:
        if self._counter is None:
            self._flush_wal()
            return
        self._syncs += 1
        self.write([(_SYNC_COUNT_KEY, _COUNT.pack(self._syncs))])
        self._flush_wal()
        self._counter.write_durably(_encode_count(self._syncs), 0)

    def _flush_wal(self) -> None:
        self._change(lambda database: database.flush_wal(True))

    def _begin_scan(self, database: Rdict, first: bytes, stop: bytes) -> _Scan:
        scan = _Scan(database, stop)
        self._scans.add(scan)
        try:
            scan.seek(first)
        except BaseException:
            self._scans.discard(scan)
            scan.end()
            raise
        return scan

    def _seek(self, scan: _Scan, position: bytes) -> None:
        if scan.snapshot is None:
            return  # ended: a repetition would not help
        try:
            scan.seek(position)
        except Exception as exc:
            scan.iterator = None
            if self._is_shortage(exc):
                raise _no_descriptor(str(exc)) from exc
            raise self._broken(exc) from exc

    # --- without a file descriptor ---

    def _is_shortage(self, error: Exception) -> bool:
        reason = str(error).replace(self._where, "")
        return any(shortage in reason for shortage in _SHORTAGES)

    def _check_shortage(self, error: Exception, database: Rdict) -> None:
        """Return if the call on this database may succeed later; raise the failure of the disk otherwise."""
        if self._is_shortage(error) or (self._is_reopening or database is not self._db):
            return
        raise self._broken(error) from error

    def _read(self, job: Callable[[Rdict], T]) -> T:
        """Read once more. Any thread. EMFILE while there is no descriptor or no open database."""
        database = self._db
        try:
            return job(database)
        except Exception as exc:
            self._check_shortage(exc, database)
            raise _no_descriptor(str(exc)) from exc

    def _change(self, job: Callable[[Rdict], None]) -> None:
        """Call ``job``, which may be repeated with the same effect. Called by the only thread that writes."""
        try:
            job(self._db)
        except Exception as exc:
            self._check_shortage(exc, self._db)
            self._descriptors.call(self._change_again, job)

    def _change_again(self, job: Callable[[Rdict], None]) -> None:
        self._open_again()
        try:
            job(self._db)
        except Exception as exc:
            self._check_shortage(exc, self._db)
            raise _no_descriptor(str(exc)) from exc

    def _open_again(self) -> None:
        """Close the database and open it again. Called by the only thread that writes.

        Raises:
            OSError: EMFILE: try again. Another error: the disk has failed, or writes are lost.
        """
        if not self._is_reopening:
            self._sequence = self._db.latest_sequence_number()
            self._is_reopening = True
            self._scan_waits = self._lock_waits = 0
            log.warning("%s: RocksDB found no file descriptor; the index is opened again", self._path)
        if self._scans and self._scan_waits < _SCAN_WAITS_MAX:
            self._scan_waits += 1
            raise _no_descriptor("a scan still uses the index")
        for scan in list(self._scans):
            scan.end()
        with contextlib.suppress(Exception):  # it cannot write its buffers, and is closed nevertheless
            self._db.close()
        try:
            database = Rdict(self._where, _options())
        except Exception as exc:
            if self._is_shortage(exc):
                raise _no_descriptor(str(exc)) from exc
            if _LOCKED in str(exc) and self._lock_waits < _LOCK_WAITS_MAX:
                self._lock_waits += 1
                raise _no_descriptor("the index is not closed yet") from exc
            self._fail(exc)
        if database.latest_sequence_number() < self._sequence:
            database.close()  # each later call fails, too
            self._fail("opened again, it lacks writes that had succeeded")
        self._db = database
        self._is_reopening = False
        log.warning("%s: the index is open again", self._path)

    def _fail(self, reason: Exception | str) -> NoReturn:
        self._is_reopening = False
        raise self._broken(reason)

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
        try:
            self._db.close()
        except Exception as exc:
            # Without a descriptor the buffers are not written; the write-ahead log has what was synced.
            self._check_shortage(exc, self._db)
            log.warning("%s: closed with a file descriptor missing: %s", self._path, exc)
        finally:
            if self._counter is not None:
                self._counter.close()

    def _broken(self, reason: Exception | str) -> OSError:
        # rocksdict raises a bare Exception for every failure; the engine treats each as a failing disk.
        is_full = _FULL in str(reason)
        return IndexFailedError(errno.ENOSPC if is_full else errno.EIO, f"index: {reason}", str(self._path))


class NewRocksKeyValues(RocksKeyValues):
    """A new database for Apache's bookie: no key and no file of ours is in it."""

    def sync(self) -> None:
        """Put everything into tables: an older RocksDB reads them, and the write-ahead log stays empty."""
        self._flush_wal()
        self._change(lambda database: database.flush())

    def close(self) -> None:
        super().close()
        (self._path / _BINDING_FILE).unlink(missing_ok=True)


def _batch(operations: Sequence[Operation]) -> WriteBatch:
    batch = WriteBatch(raw_mode=True)
    for key, value in operations:
        if value is None:
            batch.delete(key)
        else:
            batch.put(key, value)
    return batch


def _floor(database: Rdict, key: bytes) -> tuple[bytes, bytes] | None:
    iterator = database.iter()
    try:
        iterator.seek_for_prev(key)
        if not iterator.valid():
            iterator.status()  # raises if an error ended the search: damage must not look like absence
            return None
        return iterator.key(), iterator.value()
    finally:
        del iterator  # the traceback of an error must not keep the database open


def _no_descriptor(reason: str) -> OSError:
    return OSError(errno.EMFILE, reason)


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
