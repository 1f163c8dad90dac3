"""The disk seam: files, directories, locks and the threads that may wait for them.

Inside: the interface. Not inside: the real disk (``real_disk``), any file format.
Always: bytes reach stable storage only by ``File.sync``, ``File.write_durably``,
``Disk.sync_directory`` and ``KeyValues.sync``. The engine accesses files only through this interface, so a
simulated disk can drop every write that was not synced and can stop at any step.

Methods of ``File`` block. They are called in a ``DiskThread`` or inside ``Disk.run``, except those that say
that they never wait. A write writes all its bytes or raises ``OSError``.

Source: LevelDB's ``Env`` and FoundationDB's AsyncFileNonDurable for the idea of the seam; open(2),
pwritev2(2) for the guarantees that the real disk relies on.
"""

from __future__ import annotations

import abc
import contextlib
import errno
import mmap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import attrs
import trio

from bookie.disk.descriptors import Descriptors
from bookie.disk.key_values import KeyValues
from ledger.causes import cause_of

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)  # the disk is full, not broken


def no_space(error: BaseException | None) -> OSError | None:
    """The lack of space that an error comes from; None if it comes from something else."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in NO_SPACE:
            return error
        error = cause_of(error)
    return None


BLOCK_BYTES = 4096  # direct writes begin and end on a multiple of this, in the file and in memory

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview | mmap.mmap


@attrs.frozen
class DiskUsage:
    """Size and free space of the file system that holds a directory."""

    total_bytes: int
    free_bytes: int  # available to this process
    device: int = 0  # equal for all directories of one file system; 0: unknown


class File(abc.ABC):
    """One open file. It has no position and no buffer."""

    direct: bool  # writes bypass the page cache and must be aligned to BLOCK_BYTES

    @abc.abstractmethod
    def pwrite(self, data: Buffer, offset: int) -> None:
        """Write all of ``data``. Not durable."""

    @abc.abstractmethod
    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Write all the buffers one after another. Not durable."""

    @abc.abstractmethod
    def write_durably(self, data: Buffer, offset: int) -> None:
        """Write, and return when *these* bytes are on stable storage. Earlier writes may not be."""

    @abc.abstractmethod
    def pread(self, size_bytes: int, offset: int) -> bytes:
        """Read; shorter than ``size_bytes`` only at the end of the file."""

    @abc.abstractmethod
    def pread_cached(self, size_bytes: int, offset: int) -> bytes | None:
        """Read without waiting for the disk. The result may be shorter than ``size_bytes``, or None."""

    def will_need(self, size_bytes: int, offset: int) -> None:
        """Hint that these bytes will be read soon. Never waits; may do nothing."""
        return

    @abc.abstractmethod
    def sync(self) -> None:
        """Return when all earlier writes to this file are on stable storage."""

    @abc.abstractmethod
    def size(self) -> int: ...

    @abc.abstractmethod
    def truncate(self, size_bytes: int) -> None:
        """Set the size. A file that grows has a hole at its end, which takes no space and reads as zeros."""

    def give_back(self, start: int, stop: int) -> bool:
        """Free the space of whole blocks, which read as zeros from then on; a crash may undo that.

        The size stays. After the end of the file nothing changes.

        Returns:
            False: The file system cannot do it. Nothing has changed.
        """
        return False

    def has_holes(self) -> bool:
        """True if a block of the file takes no space, so that a write there may find none."""
        return False

    @abc.abstractmethod
    def close(self) -> None: ...


class DiskThread(abc.ABC):
    """A dedicated thread that runs jobs in the order of ``submit``."""

    @abc.abstractmethod
    def submit(
        self, job: Callable[[], Any], done: Callable[[Any, BaseException | None], None] | None
    ) -> None:
        """Queue a job. Called on the loop, which later calls ``done(result, error)``.

        Without ``done`` the job must not raise. After ``aclose`` was called it is not run, and ``done`` gets
        ``StorageClosedError``.
        """

    @abc.abstractmethod
    def post(self, callback: Callable[..., None], *args: Any) -> None:
        """Schedule a callback on the loop. Called in a job."""

    @abc.abstractmethod
    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call back on the loop, after the present step of it. Called on the loop."""

    def run_here(self, job: Callable[[], None]) -> bool:
        """Run a job on the loop, in place of the thread; called on the loop. The job must not raise.

        Returns:
            False: The thread has jobs, or the loop must not wait for this disk. Nothing was run.
        """
        return False

    @abc.abstractmethod
    async def aclose(self) -> None:
        """Wait until the queued jobs are done, then end the thread."""

    async def call(self, job: Callable[[], T]) -> T:
        """Queue a job and wait for its result. Not cancellable: on return the job has ended."""
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
    """All that the storage engine knows of the machine's disks.

    A missing file descriptor is no error of a disk: the real disk waits for one.
    """

    descriptors: Descriptors | None = None  # None: a disk that needs none

    @abc.abstractmethod
    def open(self, path: Path, *, create: bool = False, write: bool = False, direct: bool = False) -> File:
        """Open a file. With ``create`` it must not exist yet. ``direct`` may be ignored."""

    @abc.abstractmethod
    def rename(self, old: Path, new: Path) -> None:
        """Rename a file or a directory atomically; replaces ``new``. Durable after ``sync_directory``."""

    @abc.abstractmethod
    def link(self, old: Path, new: Path) -> None:
        """Give a file a second name; ``new`` must not exist. Durable after ``sync_directory``."""

    @abc.abstractmethod
    def unlink(self, path: Path) -> None: ...

    @abc.abstractmethod
    def remove_tree(self, path: Path) -> None:
        """Delete a directory and its contents. No error if it does not exist."""

    def remove_directory(self, path: Path) -> bool:
        """Remove a directory if it is empty. Durable after ``sync_directory`` of its parent.

        Returns:
            False: it stays.
        """
        return False

    @abc.abstractmethod
    def list_directory(self, path: Path) -> list[str]: ...

    @abc.abstractmethod
    def make_directory(self, path: Path, *, durably: bool = True) -> None:
        """Create a directory and its parents. No error if it exists.

        ``durably=False``: the caller syncs the parent of each directory that may be new.
        """

    @abc.abstractmethod
    def sync_directory(self, path: Path) -> None:
        """Return when creations, renames and unlinks in this directory are on stable storage."""

    @abc.abstractmethod
    def lock(self, path: Path) -> Callable[[], None]:
        """Lock the file; the result unlocks it. ``DirectoryInUseError`` if another process holds the lock."""

    def hold(self, path: Path) -> Callable[[], None]:
        """Keep a directory open: paths below it lead into it, also if it is moved; the result ends that.

        ``check_in_place`` fails once the path leads elsewhere.
        """
        return lambda: None

    def library_path(self, path: Path) -> str:
        """A path for a library that opens files itself; it leads into a held directory as well."""
        return str(path)

    def check_in_place(self) -> None:
        """Check that the path of each held directory still leads to it; a look may be 50 ms old.

        Raises ``DirectoryLostError`` if not. Renames and deletions in held directories look themselves.
        """
        return

    @abc.abstractmethod
    def usage(self, path: Path) -> DiskUsage: ...

    def check_directory(self, path: Path) -> None:
        """Raise ``OSError`` if the directory is missing or can no longer be read or written."""
        self.list_directory(path)

    @abc.abstractmethod
    def open_key_values(self, path: Path) -> KeyValues: ...

    def open_apache_database(self, path: Path, *, create: bool = False) -> KeyValues:
        """Open a RocksDB database of Apache's bookie. Read-only, and no file is changed; or new and empty.

        A new one has only the keys that the caller writes. ``sync`` puts them into tables.
        """
        return self.open_key_values(path)

    def lock_apache_database(self, path: Path) -> Callable[[], None]:
        """Keep RocksDB from opening the database for writing; the result unlocks it.

        ``DirectoryInUseError`` if another process has the database open. A missing database is not locked.
        """
        return lambda: None

    def with_descriptors(self, job: Callable[[], T]) -> T:
        """Call ``job``. If it finds no file descriptor, wait for one outside of it and repeat all of it.

        So the locks that it takes are free meanwhile. On the loop nothing waits: EMFILE or ENFILE is raised.
        """
        return job()

    @abc.abstractmethod
    def aligned_buffer(self, size_bytes: int) -> mmap.mmap | bytearray:
        """Zeroed memory with the alignment that direct writes need."""

    @abc.abstractmethod
    def start_thread(self, name: str) -> DiskThread: ...

    def clock_s(self) -> float:
        """A clock that measures how long a call took; 0 where the time of calls is not measured."""
        return 0.0

    @abc.abstractmethod
    async def run(self, job: Callable[..., T], *args: Any) -> T:
        """Run a short blocking read in a reader thread; their number is bounded."""

    def sync_all(self, files: Sequence[File], directories: Sequence[Path]) -> None:
        """``File.sync`` each, then ``sync_directory`` each. After an error each may or may not be synced."""
        for file in files:
            file.sync()
        for directory in directories:
            self.sync_directory(directory)

    def read_file(self, path: Path) -> bytes:
        """The content of a small file."""
        file = self.open(path)
        try:
            return file.pread(file.size(), 0)
        finally:
            file.close()

    def replace_file(self, path: Path, data: bytes) -> None:
        """Replace the file's content; a crash leaves the old content or the new. Durable on return."""
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
