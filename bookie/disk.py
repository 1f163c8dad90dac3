"""The disk seam: files, directories, locks and the threads that may wait for them.

Inside: the interface and the real disk. Not inside: any file format.
Always: bytes reach stable storage only by ``File.sync``, ``File.write_durably``,
``Disk.sync_directory`` and ``KeyValues.sync``; the engine touches no file but through here, so that a
simulated disk can lose whatever was not synced and stop at any step.

Methods of ``File`` block; they are called in a ``DiskThread`` or inside ``Disk.run``, except where they
say that they never wait. A write is whole or raises ``OSError``.

Source: LevelDB's ``Env`` and FoundationDB's AsyncFileNonDurable for the idea of the seam; open(2),
pwritev2(2) for what the real one relies on.
"""

from __future__ import annotations

import abc
import contextlib
import errno
import fcntl
import functools
import logging
import math
import mmap
import os
import queue
import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, TypeVar

import attrs
import trio

from bookie.errors import DirectoryInUseError
from bookie.key_values import KeyValues, RocksKeyValues
from bookie.reader_pool import ReaderPool

NO_SPACE = (
    errno.ENOSPC,
    errno.EDQUOT,
)  # what an ``OSError`` says when there is no room, and nothing is broken
BLOCK_BYTES = 4096  # direct writes begin and end on a multiple of this, in the file and in memory
_BUFFERS_PER_CALL_MAX = 1024  # IOV_MAX of Linux
_READER_THREADS_MAX = 4
_SYNCER_THREADS = 8
_SYNCS_ALONE_MAX = 4

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview | mmap.mmap
log = logging.getLogger(__name__)


@attrs.frozen
class DiskUsage:
    """Of the file system a directory lies on."""

    total_bytes: int
    free_bytes: int  # what this process may still use
    device: int = 0  # the same for all directories of a file system; 0: not known


class File(abc.ABC):
    """One open file. No position, no buffering of its own."""

    direct: bool  # writes bypass the page cache and must be aligned to BLOCK_BYTES

    @abc.abstractmethod
    def pwrite(self, data: Buffer, offset: int) -> None:
        """Write all of ``data``. Not durable."""

    @abc.abstractmethod
    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Write all the buffers, one behind the other. Not durable."""

    @abc.abstractmethod
    def write_durably(self, data: Buffer, offset: int) -> None:
        """Write and return once *these* bytes are on stable storage. Earlier ones may not be."""

    @abc.abstractmethod
    def pread(self, size_bytes: int, offset: int) -> bytes:
        """Read; shorter than asked for only at the end of the file."""

    @abc.abstractmethod
    def pread_cached(self, size_bytes: int, offset: int) -> bytes | None:
        """Read without ever waiting for the disk: perhaps less than asked for, or None."""

    def will_need(self, size_bytes: int, offset: int) -> None:
        """A hint that these bytes will be read soon. Does not wait; may do nothing."""
        return

    @abc.abstractmethod
    def sync(self) -> None:
        """Return once everything written to this file is on stable storage."""

    @abc.abstractmethod
    def size(self) -> int: ...

    @abc.abstractmethod
    def truncate(self, size_bytes: int) -> None: ...

    @abc.abstractmethod
    def close(self) -> None: ...


class DiskThread(abc.ABC):
    """A thread of its own that runs jobs in the order they were given."""

    @abc.abstractmethod
    def submit(
        self, job: Callable[[], Any], done: Callable[[Any, BaseException | None], None] | None
    ) -> None:
        """Queue a job; from the loop. ``done(result, error)`` is called on the loop afterwards.

        Without ``done`` the job must not raise.
        """

    @abc.abstractmethod
    def post(self, callback: Callable[..., None], *args: Any) -> None:
        """Have a callback run on the loop; from a job."""

    @abc.abstractmethod
    async def aclose(self) -> None:
        """Wait for the queued jobs, then end the thread."""

    async def call(self, job: Callable[[], T]) -> T:
        """Queue a job and wait for its result. Not cancellable: on return the job is over."""
        outcome: list[tuple[T, BaseException | None]] = []
        waiting: list[trio.lowlevel.Task] = []

        def done(result: T, error: BaseException | None) -> None:
            outcome.append((result, error))
            for task in waiting:
                trio.lowlevel.reschedule(task)

        self.submit(job, done)
        if outcome:
            await trio.lowlevel.cancel_shielded_checkpoint()
        else:
            waiting.append(trio.lowlevel.current_task())
            await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
        result, error = outcome[0]
        if error is not None:
            raise error
        return result


class Disk(abc.ABC):
    """All that the storage engine may know of the machine's disks."""

    @abc.abstractmethod
    def open(self, path: Path, *, create: bool = False, write: bool = False, direct: bool = False) -> File:
        """Open a file; ``create`` demands that it does not exist yet. ``direct`` is a wish."""

    @abc.abstractmethod
    def rename(self, old: Path, new: Path) -> None:
        """Atomic, replacing ``new``, of a file or a directory; durable after ``sync_directory``."""

    @abc.abstractmethod
    def link(self, old: Path, new: Path) -> None:
        """A second name for a file; ``new`` must not exist. Durable after ``sync_directory``."""

    @abc.abstractmethod
    def unlink(self, path: Path) -> None: ...

    @abc.abstractmethod
    def remove_tree(self, path: Path) -> None:
        """Delete a directory with all that is in it; no error if there is none."""

    @abc.abstractmethod
    def list_directory(self, path: Path) -> list[str]: ...

    @abc.abstractmethod
    def make_directory(self, path: Path) -> None:
        """With its parents, durably; no error if it exists."""

    @abc.abstractmethod
    def sync_directory(self, path: Path) -> None:
        """Return once creations, renames and unlinks in this directory are on stable storage."""

    @abc.abstractmethod
    def lock(self, path: Path) -> Callable[[], None]:
        """Take the lock file; the result gives it back. ``DirectoryInUseError`` if somebody has it."""

    @abc.abstractmethod
    def usage(self, path: Path) -> DiskUsage: ...

    def check_directory(self, path: Path) -> None:
        """``OSError`` if the directory is not there, or can no longer be read or written."""
        self.list_directory(path)

    @abc.abstractmethod
    def open_key_values(self, path: Path) -> KeyValues: ...

    @abc.abstractmethod
    def aligned_buffer(self, size_bytes: int) -> mmap.mmap | bytearray:
        """Zeroed memory that direct writes accept."""

    @abc.abstractmethod
    def start_thread(self, name: str) -> DiskThread: ...

    @abc.abstractmethod
    async def run(self, job: Callable[..., T], *args: Any) -> T:
        """Run a short blocking read in one of a few reader threads."""

    def sync_all(self, files: Sequence[File], directories: Sequence[Path]) -> None:
        """``File.sync`` each, then ``sync_directory`` each. After an error any of them may be synced."""
        for file in files:
            file.sync()
        for directory in directories:
            self.sync_directory(directory)

    def read_file(self, path: Path) -> bytes:
        """The whole of a small file."""
        file = self.open(path)
        try:
            return file.pread(file.size(), 0)
        finally:
            file.close()

    def replace_file(self, path: Path, data: bytes) -> None:
        """Put ``data`` at ``path`` so that a crash leaves the old content or the new; durable on return."""
        temporary = path.with_name(path.name + ".tmp")
        with contextlib.suppress(FileNotFoundError):
            self.unlink(temporary)
        file = self.open(temporary, create=True, write=True)
        try:
            file.pwrite(data, 0)
            file.sync()
        finally:
            file.close()
        self.rename(temporary, path)
        self.sync_directory(path.parent)


# --- the real one ---------------------------------------------------------------------------------


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
        # One system call in place of two: the interpreter lock is given up and taken back once.
        try:
            written = os.pwritev(self._descriptor, [data], offset, os.RWF_DSYNC)
        except OSError as exc:
            if exc.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
            written = 0  # a file system that does not know the flag
        if written != len(data):
            self._write_rest(memoryview(data)[written:], offset + written)
            self.sync()

    def _write_rest(self, rest: memoryview, offset: int) -> None:
        while len(rest):
            written = os.pwrite(self._descriptor, rest, offset)
            if written == 0:
                raise OSError(errno.EIO, f"nothing could be written at {offset}", str(self._path))
            rest = rest[written:]
            offset += written

    def pread(self, size_bytes: int, offset: int) -> bytes:
        data = os.pread(self._descriptor, size_bytes, offset)
        while len(data) < size_bytes:
            more = os.pread(self._descriptor, size_bytes - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def pread_cached(self, size_bytes: int, offset: int) -> bytes | None:
        data = bytearray(size_bytes)
        try:
            count = os.preadv(self._descriptor, [data], offset, os.RWF_NOWAIT)
        except OSError:
            return None  # would wait, or the file system cannot tell: pread will say what is wrong
        return bytes(data) if count == size_bytes else bytes(memoryview(data)[:count])

    def will_need(self, size_bytes: int, offset: int) -> None:
        os.posix_fadvise(self._descriptor, offset, size_bytes, os.POSIX_FADV_WILLNEED)

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def truncate(self, size_bytes: int) -> None:
        os.ftruncate(self._descriptor, size_bytes)

    def close(self) -> None:
        os.close(self._descriptor)


class RealDiskThread(DiskThread):
    """An operating-system thread that waits on a queue of its own, not one of trio's pool."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[
            tuple[Callable[[], Any], Callable[[Any, BaseException | None], None] | None] | None
        ] = queue.SimpleQueue()
        self._token = trio.lowlevel.current_trio_token()
        self._ended = trio.Event()
        # A daemon: a loop that died without aclose must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(
        self, job: Callable[[], Any], done: Callable[[Any, BaseException | None], None] | None
    ) -> None:
        self._jobs.put((job, done))

    def post(self, callback: Callable[..., None], *args: Any) -> None:
        with contextlib.suppress(trio.RunFinishedError):  # nobody is left to hear it
            self._token.run_sync_soon(callback, *args)

    async def aclose(self) -> None:
        self._jobs.put(None)
        with trio.CancelScope(shield=True):
            await self._ended.wait()
        self._thread.join()

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, done = item
            try:
                result = job()
            except BaseException as exc:  # handed to the loop, which must not lose it
                if done is None:
                    log.exception("a job of thread %s raised", self._thread.name)
                else:
                    self.post(done, None, exc)
            else:
                if done is not None:
                    self.post(done, result, None)
            del item, job, done  # a finished job must not keep a write cache alive while we wait
        self.post(self._ended.set)


class RealDisk(Disk):
    """The machine's own file systems."""

    def __init__(self) -> None:
        self._readers: ReaderPool | None = None
        self._syncers: ThreadPoolExecutor | None = None

    def open(self, path: Path, *, create: bool = False, write: bool = False, direct: bool = False) -> File:
        flags = os.O_CLOEXEC | (os.O_RDWR if write else os.O_RDONLY)
        if create:
            flags |= os.O_CREAT | os.O_EXCL
        if direct:
            try:
                return RealFile(path, os.open(path, flags | os.O_DIRECT, 0o644), direct=True)
            except OSError as exc:
                if exc.errno != errno.EINVAL:
                    raise
                # The file system has no direct writes. With O_CREAT the file may exist by now.
                flags &= ~os.O_EXCL
        return RealFile(path, os.open(path, flags, 0o644), direct=False)

    def rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)

    def link(self, old: Path, new: Path) -> None:
        os.link(old, new)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def remove_tree(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def list_directory(self, path: Path) -> list[str]:
        return os.listdir(path)

    def make_directory(self, path: Path) -> None:
        missing = [path]
        while not missing[-1].exists():
            missing.append(missing[-1].parent)
        path.mkdir(parents=True, exist_ok=True)
        for made in missing[1:]:
            self.sync_directory(made)

    def sync_directory(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sync_all(self, files: Sequence[File], directories: Sequence[Path]) -> None:
        if len(files) + len(directories) < _SYNCS_ALONE_MAX:
            super().sync_all(files, directories)
            return
        # Syncs that wait at the same time share a commit of the file system's journal: 8 times as fast.
        if self._syncers is None:
            self._syncers = ThreadPoolExecutor(_SYNCER_THREADS, thread_name_prefix="bookie-sync")
        for jobs in (
            [self._syncers.submit(file.sync) for file in files],
            [self._syncers.submit(self.sync_directory, directory) for directory in directories],
        ):
            wait(jobs)  # all of them, also after an error: none may still run when its file is closed
            for job in jobs:
                job.result()

    def lock(self, path: Path) -> Callable[[], None]:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            if exc.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            raise DirectoryInUseError(
                f"{path.parent} is in use by another process (id {holder}). Stop that one, or give this"
                " bookie a directory of its own"
            ) from exc
        with contextlib.suppress(OSError):  # on a full disk; it is for messages only
            os.pwrite(descriptor, b"%-31d\n" % os.getpid(), 0)  # of one length: nothing is freed and lost
        _locks.add(descriptor)
        return functools.partial(_unlock, descriptor)

    def usage(self, path: Path) -> DiskUsage:
        figures = os.statvfs(path)
        total_bytes, free_bytes = figures.f_blocks * figures.f_frsize, figures.f_bavail * figures.f_frsize
        return DiskUsage(total_bytes, free_bytes, os.stat(path).st_dev)

    def check_directory(self, path: Path) -> None:
        super().check_directory(path)
        if os.statvfs(path).f_flag & os.ST_RDONLY:  # what Linux does to a file system with errors
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    def open_key_values(self, path: Path) -> KeyValues:
        return RocksKeyValues(path, self)

    def aligned_buffer(self, size_bytes: int) -> mmap.mmap | bytearray:
        return mmap.mmap(-1, math.ceil(size_bytes / BLOCK_BYTES) * BLOCK_BYTES)

    def start_thread(self, name: str) -> DiskThread:
        return RealDiskThread(name)

    async def run(self, job: Callable[..., T], *args: Any) -> T:
        readers = self._readers
        if readers is None or readers.token is not trio.lowlevel.current_trio_token():
            readers = self._readers = ReaderPool(_READER_THREADS_MAX)
        return await readers.run(job, *args)


_locks: set[int] = set()  # descriptors of the lock files that this process holds


def _unlock(descriptor: int) -> None:
    _locks.discard(descriptor)
    os.close(descriptor)


def _forget_locks() -> None:
    # A forked child shares its parent's locks; kept open there, they would outlive a parent that is killed.
    for descriptor in list(_locks):
        _unlock(descriptor)


os.register_at_fork(after_in_child=_forget_locks)
