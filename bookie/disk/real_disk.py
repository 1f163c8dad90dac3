"""The real disk: positioned calls of Linux, threads, advisory locks, RocksDB.

Inside: the implementation of ``disk``. Not inside: any file format.
Always: a write writes all its bytes or raises ``OSError``. A lock ends with its process, even if that is
killed. New files and directories are for their owner only (0600, 0700), whatever the umask; RocksDB chooses
the modes of its own files, in a directory of this kind. A call that finds no file descriptor is repeated
(``descriptors``); it is no failure of the disk. A path below a directory that is held is resolved from its
descriptor; its files are neither renamed nor deleted once another directory has its path.

Source: open(2), openat(2), pwritev2(2), flock(2).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import math
import mmap
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, TypeVar

import trio

from bookie.disk.descriptors import Descriptors
from bookie.disk.disk import BLOCK_BYTES, Buffer, Disk, DiskThread, DiskUsage, File
from bookie.disk.key_values import KeyValues
from bookie.disk.reader_pool import ReaderPool
from bookie.disk.rocksdb import NewRocksKeyValues, RocksKeyValues
from bookie.errors import DirectoryInUseError, StorageClosedError
from ledger.runtime.held_directories import CHECK_S, HeldDirectory
from ledger.runtime.log_lines import get_logger
from ledger.runtime.private_files import DIRECTORY_MODE, FILE_MODE, make_private_directories
from ledger.runtime.tasks.next_turn import call_next_turn
from ledger.runtime.tasks.thread_calls import calls_of_this_run

_BUFFERS_PER_CALL_MAX = 1024  # IOV_MAX of Linux
_READER_THREADS_MAX = 4
_SYNCER_THREADS = 8
_SYNCS_ALONE_MAX = 4
_SCRATCH_BYTES = 1 << 20
_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # modes of fallocate(2)
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_scratch: list[bytearray] = []  # one for each thread that was in ``pread_cached`` at a time

T = TypeVar("T")
log = get_logger(__name__)


class RealFile(File):
    """A file descriptor, with the positioned calls of Linux."""

    def __init__(self, path: Path, descriptor: int, *, direct: bool) -> None:
        self._path = path
        self._descriptor = descriptor
        self.direct = direct

    def pwrite(self, data: Buffer, offset: int) -> None:
        written = os.pwrite(self._descriptor, data, offset)
        if written != len(data):
            self._write_rest(memoryview(data)[written:], offset + written)

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        for start in range(0, len(buffers), _BUFFERS_PER_CALL_MAX):
            part = buffers[start : start + _BUFFERS_PER_CALL_MAX]
            wanted = sum(map(len, part))
            written = os.pwritev(self._descriptor, part, offset)
            if written != wanted:
                self._write_rest(memoryview(b"".join(part))[written:], offset + written)
            offset += wanted

    def write_durably(self, data: Buffer, offset: int) -> None:
        # One system call instead of two: the interpreter lock is released and taken once.
        try:
            written = os.pwritev(self._descriptor, [data], offset, os.RWF_DSYNC)
        except OSError as exc:
            if exc.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
            written = 0  # the file system does not know the flag
        if written != len(data):
            self._write_rest(memoryview(data)[written:], offset + written)
            self.sync()

    def _write_rest(self, rest: memoryview, offset: int) -> None:
        while len(rest):
            written = os.pwrite(self._descriptor, rest, offset)
            if written == 0:
                raise OSError(errno.EIO, f"no byte could be written at offset {offset}", str(self._path))
            rest = rest[written:]
            offset += written

    def pread(self, size_bytes: int, offset: int) -> bytes:
        try:
            data = os.pread(self._descriptor, size_bytes, offset)
        except OSError as exc:
            exc.filename = str(
                self._path
            )  # a directory can be opened in place of a file, and names itself here
            raise
        while len(data) < size_bytes:
            more = os.pread(self._descriptor, size_bytes - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def pread_cached(self, size_bytes: int, offset: int) -> bytes | None:
        # A new buffer for each large read would be filled with zeros first.
        try:
            scratch = _scratch.pop()
        except IndexError:
            scratch = bytearray(_SCRATCH_BYTES)
        view = memoryview(scratch if size_bytes <= _SCRATCH_BYTES else bytearray(size_bytes))[:size_bytes]
        try:
            count = os.preadv(self._descriptor, [view], offset, os.RWF_NOWAIT)
            return bytes(view[:count])
        except OSError:
            return None  # it would wait, or the file system lacks the flag: pread will report any error
        finally:
            _scratch.append(scratch)

    def will_need(self, size_bytes: int, offset: int) -> None:
        os.posix_fadvise(self._descriptor, offset, size_bytes, os.POSIX_FADV_WILLNEED)

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def truncate(self, size_bytes: int) -> None:
        os.ftruncate(self._descriptor, size_bytes)

    def give_back(self, start: int, stop: int) -> bool:
        import ctypes  # rarely needed

        if ctypes.sizeof(ctypes.c_long) < 8:  # of which ``off_t`` is made
            return False
        libc = ctypes.CDLL(None, use_errno=True)
        place = ctypes.c_long(start), ctypes.c_long(stop - start)
        if not libc.fallocate(self._descriptor, _KEEP_SIZE | _PUNCH_HOLE, *place):
            return True
        if (code := ctypes.get_errno()) in (errno.EOPNOTSUPP, errno.ENOSYS):
            return False
        raise OSError(code, os.strerror(code), str(self._path))

    def has_holes(self) -> bool:
        try:
            return os.lseek(self._descriptor, 0, os.SEEK_HOLE) < self.size()
        except OSError:  # the file system has none
            return False

    def close(self) -> None:
        os.close(self._descriptor)


class RealDiskThread(DiskThread):
    """An operating-system thread with its own queue, outside trio's pool."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[
            tuple[Callable[[], Any], Callable[[Any, BaseException | None], None] | None] | None
        ] = queue.SimpleQueue()
        # Jobs: each count is changed by one thread only. They are equal while the thread is idle.
        self._submitted_count = 0
        self._finished_count = 0
        self._calls = calls_of_this_run()
        self._ended = trio.Event()
        self._is_closing = False
        # A daemon: if the loop dies without aclose, the process can still end.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(
        self, job: Callable[[], Any], done: Callable[[Any, BaseException | None], None] | None
    ) -> None:
        if self._is_closing:
            if done is not None:
                self.call_soon(functools.partial(done, None, StorageClosedError(self._thread.name)))
            return
        self._submitted_count += 1
        self._jobs.put((job, done))

    def call_soon(self, callback: Callable[[], None]) -> None:
        call_next_turn(callback)

    def run_here(self, job: Callable[[], None]) -> bool:
        # Only the loop gives the thread jobs, and it is busy here. So an idle thread stays idle.
        if self._submitted_count != self._finished_count:
            return False
        job()
        return True

    def post(self, callback: Callable[..., None], *args: Any) -> None:
        with contextlib.suppress(trio.RunFinishedError):  # the loop has ended
            self._calls.call_soon(callback, *args)

    async def aclose(self) -> None:
        self._is_closing = True
        self._jobs.put(None)
        with trio.CancelScope(shield=True):
            await self._ended.wait()
        self._thread.join()

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, done = item
            try:
                result = job()
            except BaseException as exc:  # passed to ``done`` on the loop
                self._finished_count += 1
                if done is None:
                    log.exception("a job of thread %s raised", self._thread.name)
                else:
                    self.post(done, None, exc)
            else:
                self._finished_count += 1
                if done is not None:
                    self.post(done, result, None)
            del item, job, done  # a finished job must not keep a write cache alive while the thread waits
        self.post(self._ended.set)


class RealDisk(Disk):
    """The machine's own file systems."""

    def __init__(self) -> None:
        self.descriptors: Descriptors = Descriptors()
        self._readers: ReaderPool | None = None
        self._syncers: ThreadPoolExecutor | None = None
        self._held: dict[Path, HeldDirectory] = {}
        self._checked_s = -CHECK_S  # the last look at all of them

    def open(self, path: Path, *, create: bool = False, write: bool = False, direct: bool = False) -> File:
        flags = os.O_CLOEXEC | (os.O_RDWR if write else os.O_RDONLY)
        if create:
            flags |= os.O_CREAT | os.O_EXCL
        if direct:
            try:
                return RealFile(path, self._open(path, flags | os.O_DIRECT), direct=True)
            except OSError as exc:
                if exc.errno != errno.EINVAL:
                    raise
                # The file system does not support direct writes. With O_CREAT the file may exist by now.
                flags &= ~os.O_EXCL
        return RealFile(path, self._open(path, flags), direct=False)

    def hold(self, path: Path, descriptor: int | None = None) -> Callable[[], None]:
        """As ``Disk.hold``. ``descriptor``: of the directory, if the caller has it open; it stays open."""
        held = HeldDirectory(path, self._open(path, _DIRECTORY) if descriptor is None else os.dup(descriptor))
        self._held[path] = held

        def release() -> None:
            del self._held[path]
            held.close()

        return release

    def check_in_place(self) -> None:
        began_s, all_held = time.monotonic(), tuple(self._held.values())
        # What a rename or a deletion saw holds at once.
        if began_s - self._checked_s >= CHECK_S or any(held.is_lost for held in all_held):
            for held in all_held:
                held.check()
            self._checked_s = began_s

    def _place(self, path: Path, *, changes: bool = False) -> tuple[str | Path, int | None]:
        """The name of a path and the directory that it begins at; None: the working directory.

        ``changes``: a name is about to be taken away, so the directory must be in its place.
        """
        if self._held:
            for above in (path, *path.parents):
                if (held := self._held.get(above)) is not None:
                    if changes:
                        held.check()
                    return str(path.relative_to(above)), held.fd
        return path, None

    def library_path(self, path: Path) -> str:
        """A path for RocksDB, which takes no descriptor."""
        name, descriptor = self._place(path)
        return str(path.absolute()) if descriptor is None else f"/proc/self/fd/{descriptor}/{name}"

    def rename(self, old: Path, new: Path) -> None:
        (source, source_fd), (target, target_fd) = (
            self._place(old, changes=True),
            self._place(new, changes=True),
        )
        with _named(new):
            os.rename(source, target, src_dir_fd=source_fd, dst_dir_fd=target_fd)

    def link(self, old: Path, new: Path) -> None:
        (source, source_fd), (target, target_fd) = self._place(old), self._place(new, changes=True)
        with _named(new):
            os.link(source, target, src_dir_fd=source_fd, dst_dir_fd=target_fd)

    def unlink(self, path: Path) -> None:
        name, directory_fd = self._place(path, changes=True)
        with _named(path):
            os.unlink(name, dir_fd=directory_fd)

    def remove_tree(self, path: Path) -> None:
        name, directory_fd = self._place(path, changes=True)
        with contextlib.suppress(FileNotFoundError):
            self.descriptors.call(shutil.rmtree, name, dir_fd=directory_fd)

    def remove_directory(self, path: Path) -> bool:
        name, directory_fd = self._place(path, changes=True)
        try:
            os.rmdir(name, dir_fd=directory_fd)
        except OSError:  # it is not empty, or a disk that fails will say so at the next sync
            return False
        return True

    def list_directory(self, path: Path) -> list[str]:
        descriptor = self._open(path, _DIRECTORY)  # of its own: two threads may list at the same time
        try:
            return os.listdir(descriptor)
        finally:
            os.close(descriptor)

    def make_directory(self, path: Path, *, durably: bool = True) -> None:
        name, directory_fd = self._place(path)
        if directory_fd is None:
            made = make_private_directories(path)
        else:
            made = _make_below(directory_fd, path, Path(name))
        for directory in made:
            if durably:
                self.sync_directory(directory.parent)

    def sync_directory(self, path: Path) -> None:
        descriptor = self._open(path, _DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sync_all(self, files: Sequence[File], directories: Sequence[Path]) -> None:
        if len(files) + len(directories) < _SYNCS_ALONE_MAX:
            super().sync_all(files, directories)
            return
        # Concurrent syncs share one commit of the file system's journal: 8 times as fast.
        if self._syncers is None:
            self._syncers = ThreadPoolExecutor(_SYNCER_THREADS, thread_name_prefix="bookie-sync")
        for syncs in (
            [file.sync for file in files],
            [functools.partial(self.sync_directory, directory) for directory in directories],
        ):
            remaining = iter(syncs)  # shared: a job for each sync would take longer than the sync
            jobs = [self._syncers.submit(_call_each, remaining) for _ in range(_SYNCER_THREADS)]
            wait(jobs)  # also after an error: no sync may run while its file is closed
            for job in jobs:
                job.result()

    def lock(self, path: Path) -> Callable[[], None]:
        # A planted symlink would have its target overwritten.
        descriptor = self._open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            if exc.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            raise DirectoryInUseError(
                f"{path.parent} is in use by another process (id {holder}). Stop that process, or give this"
                " bookie another directory"
            ) from exc
        with contextlib.suppress(OSError):
            os.fchmod(descriptor, FILE_MODE)  # not ours if root locks a directory of another user
        with contextlib.suppress(OSError):  # the disk may be full; the id is for messages only
            # Always 32 bytes: the file is never truncated, so its block stays allocated.
            os.pwrite(descriptor, b"%-31d\n" % os.getpid(), 0)
        _locks.add(descriptor)
        return functools.partial(_unlock, descriptor)

    def usage(self, path: Path) -> DiskUsage:
        name, directory_fd = self._place(path)
        where = directory_fd if directory_fd is not None and name == "." else path
        stats = os.statvfs(where)
        total_bytes, free_bytes = stats.f_blocks * stats.f_frsize, stats.f_bavail * stats.f_frsize
        return DiskUsage(total_bytes, free_bytes, os.stat(where).st_dev)

    def check_directory(self, path: Path) -> None:
        name, directory_fd = self._place(path, changes=True)
        super().check_directory(path)
        if os.statvfs(path).f_flag & os.ST_RDONLY:  # Linux remounts a file system with errors read-only
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        if not os.access(name, os.R_OK | os.W_OK | os.X_OK, dir_fd=directory_fd):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    def open_key_values(self, path: Path) -> KeyValues:
        self.make_directory(path)  # RocksDB would let others in
        return RocksKeyValues(path, self)

    def open_apache_database(self, path: Path, *, create: bool = False) -> KeyValues:
        if not create:
            return RocksKeyValues(path, read_only=True)
        self.make_directory(path)
        return NewRocksKeyValues(path)

    def lock_apache_database(self, path: Path) -> Callable[[], None]:
        name, directory_fd = self._place(path / "LOCK")
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory_fd)
        except FileNotFoundError:
            return lambda: None
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # RocksDB holds such a lock, too
        except OSError as exc:
            os.close(descriptor)
            if exc.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            raise DirectoryInUseError(
                f"{path} is open in another process. Stop Apache's bookie on these directories"
            ) from exc
        return functools.partial(os.close, descriptor)

    def with_descriptors(self, job: Callable[[], T]) -> T:
        return self.descriptors.call(job)

    def aligned_buffer(self, size_bytes: int) -> mmap.mmap | bytearray:
        return mmap.mmap(-1, math.ceil(size_bytes / BLOCK_BYTES) * BLOCK_BYTES)

    def start_thread(self, name: str) -> DiskThread:
        return RealDiskThread(name)

    clock_s = staticmethod(time.perf_counter)

    def _open(self, path: Path, flags: int) -> int:
        # Linux takes the descriptor before it creates the file, so the call may be repeated with O_EXCL.
        name, directory_fd = self._place(path)
        with _named(path):
            return self.descriptors.call(os.open, name, flags, FILE_MODE, dir_fd=directory_fd)

    async def run(self, job: Callable[..., T], *args: Any) -> T:
        readers = self._readers
        if readers is None or readers.calls is not calls_of_this_run():
            readers = self._readers = ReaderPool(_READER_THREADS_MAX)
        return await readers.run(job, *args)


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """An error names the whole path, not one from an open directory on; and a symlink in its place."""
    try:
        yield
    except OSError as exc:
        exc.filename = str(path)
        if exc.errno in (errno.ELOOP, errno.ENOENT, errno.EEXIST) and os.path.islink(path):
            exc.strerror = f"{exc.strerror} (a symbolic link is in its place)"
        raise


def _make_below(directory_fd: int, path: Path, name: Path) -> list[Path]:
    """As ``make_private_directories`` for a directory below one that is open."""
    made = []
    above = path.parents[len(name.parts) - 1] if name.parts else path
    for count in range(1, len(name.parts) + 1):
        here = Path(*name.parts[:count])
        try:
            os.mkdir(here, DIRECTORY_MODE, dir_fd=directory_fd)
        except FileExistsError:
            continue  # if it is a file, the call that needs the directory says so
        os.chmod(here, DIRECTORY_MODE, dir_fd=directory_fd)  # the umask may have taken rights of the owner
        made.append(above / here)
    return made


def _call_each(calls: Iterator[Callable[[], None]]) -> None:
    for call in calls:
        call()


_locks: set[int] = set()  # descriptors of this process's lock files


def _unlock(descriptor: int) -> None:
    _locks.discard(descriptor)
    os.close(descriptor)


def _forget_locks() -> None:
    # A forked child shares its parent's locks. Left open, they would outlive a killed parent.
    for descriptor in list(_locks):
        _unlock(descriptor)


os.register_at_fork(after_in_child=_forget_locks)
