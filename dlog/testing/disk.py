"""The bookie's disk seam for one process, over a simulated disk, with threads in virtual time.

Inside: ``ProcessDisk`` with its files, index and threads. Every operation is a step at which the process may
be killed, the power may be cut, or an error may be returned. Not inside: the content of the disk
(``platter``), the times of faults (``world``).
Always: after the death of its process no operation has an effect. A kill loses no write.

Source: as ``platter``.
"""

from __future__ import annotations

import bisect
import errno
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import trio
from crc32c import crc32c

from bookie.disk.disk import Buffer, Disk, DiskThread, DiskUsage, File
from bookie.disk.key_values import KeyValues, Operation
from bookie.errors import DirectoryInUseError
from dlog.testing.platter import OUT_OF_ORDER, Inode, MapState, Platter

TOTAL_BYTES = 1 << 40
T = TypeVar("T")
Done = Callable[[Any, BaseException | None], None]


class ProcessGoneError(OSError):
    """The process of this disk is dead; the operation had no effect."""


class ProcessDisk(Disk):
    """The disk seam of one process."""

    def __init__(self, platter: Platter, jobs_held: Callable[[], trio.Event | None]) -> None:
        """``jobs_held``: while the process is paused, returns the event that ends the pause; else None."""
        self.platter = platter
        self.is_gone = False
        self._locks: set[Path] = set()
        self._jobs_held = jobs_held
        self._threads: list[SimThread] = []

    def die(self) -> None:
        """Mark the process as dead: every later operation raises ``ProcessGoneError``."""
        self.is_gone = True

    def step(self, what: str, path: Path | None, *, sync: bool = False, grows: bool = True) -> None:
        """Called before each operation that changes something; kills, power cuts and errors happen here."""
        platter = self.platter
        if self.is_gone:
            raise ProcessGoneError(f"{what}: the process is dead")
        platter.steps += 1
        troubles = platter.troubles
        if troubles.cut_at_step is not None and _counts_as(troubles.cut_at, path, sync):
            troubles.cut_at_step -= 1
            if troubles.cut_at_step <= 0:
                troubles.cut_at_step = None
                troubles.on_cut()
                raise ProcessGoneError(f"{what}: the process was killed")
        if troubles.is_full and grows and troubles.growths_left > 0:
            troubles.growths_left -= 1
        elif troubles.is_full and grows:
            platter.counts["disk full"] += 1
            raise OSError(errno.ENOSPC, f"no space left: {what}", str(path))
        chance = troubles.sync_error if sync else troubles.write_error
        if chance and platter.rng.random() < chance:
            platter.counts["I/O error on sync" if sync else "I/O error on write"] += 1
            platter.trace.note(platter.name, f"I/O error: {what} {path.name if path else ''}")
            raise OSError(errno.EIO, f"I/O error: {what}", str(path))

    def check_read(self, path: Path) -> None:
        platter = self.platter
        if self.is_gone:
            raise ProcessGoneError("the process is dead")
        chance = platter.troubles.read_error
        if chance and platter.rng.random() < chance:
            platter.counts["I/O error on read"] += 1
            platter.trace.note(platter.name, f"I/O error: read {path.name}")
            raise OSError(errno.EIO, "I/O error: read", str(path))

    def delay_s(self) -> float:
        troubles = self.platter.troubles
        if troubles.slowness > 1:
            self.platter.counts["slow disk"] += 1
        return self.platter.rng.uniform(*self.platter.latency_s) * troubles.slowness

    def chooses_thread(self) -> bool:
        """True if a job that the loop could run is left to its thread: each in half of the cases."""
        return self.platter.rng.random() < 0.5

    # --- Disk ---

    def open(self, path: Path, *, create: bool = False, write: bool = False, direct: bool = False) -> File:
        names, name = self.platter.names, str(path)
        if create:
            self.step("create", path)
            if name in names:
                raise FileExistsError(path)
            self.platter.change_names((name, Inode()))
        elif self.is_gone:
            raise ProcessGoneError("the process is dead")
        inode = names.get(name)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", name)
        return SimFile(self, path, inode, direct=direct)

    def rename(self, old: Path, new: Path) -> None:
        self.step("rename", new, grows=False)
        name = str(old)
        self.platter.change_names((name, None), (str(new), self.platter.names[name]))

    def link(self, old: Path, new: Path) -> None:
        names, name = self.platter.names, str(new)
        if name in names:
            raise FileExistsError(errno.EEXIST, "the name is taken", name)
        self.step("link", new, grows=False)
        self.platter.change_names((name, names[str(old)]))

    def unlink(self, path: Path) -> None:
        name = str(path)
        if name not in self.platter.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", name)
        self.step("unlink", path, grows=False)
        self.platter.change_names((name, None))

    def remove_tree(self, path: Path) -> None:
        raise AssertionError("a serving bookie deletes no directories")

    def list_directory(self, path: Path) -> list[str]:
        if self.is_gone:
            raise ProcessGoneError("the process is dead")
        prefix = f"{path}/"
        start = len(prefix)
        found = [name[start:] for name in self.platter.names if name.startswith(prefix)]
        return sorted([name for name in found if "/" not in name])

    def make_directory(self, path: Path, *, durably: bool = True) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        self.step("sync directory", path, sync=True, grows=False)
        self.platter.synced_names()

    def lock(self, path: Path) -> Callable[[], None]:
        if path in self._locks:
            raise DirectoryInUseError(f"{path} is locked")
        self._locks.add(path)
        return lambda: self._locks.discard(path)

    def usage(self, path: Path) -> DiskUsage:
        troubles = self.platter.troubles
        if not troubles.is_full:
            return DiskUsage(TOTAL_BYTES, TOTAL_BYTES // 2)
        free_bytes = TOTAL_BYTES // 200 if troubles.free_bytes is None else troubles.free_bytes
        return DiskUsage(TOTAL_BYTES, free_bytes)

    def open_key_values(self, path: Path) -> KeyValues:
        return SimMap(self, path, self.platter.maps.setdefault(path, MapState()))

    def aligned_buffer(self, size_bytes: int) -> bytearray:
        return bytearray(-(-size_bytes // 4096) * 4096)

    def start_thread(self, name: str) -> DiskThread:
        return SimThread(self, name)

    async def run(self, job: Callable[..., T], *args: Any) -> T:
        await self.platter.timeline.sleep(self.delay_s())
        held = self._jobs_held()
        if held is not None and not self.is_gone:
            await held.wait()
        return job(*args)

    def held(self) -> bool:
        """True while jobs must wait because the process is paused."""
        return not self.is_gone and self._jobs_held() is not None


def _counts_as(wanted: str, path: Path | None, sync: bool) -> bool:
    return not wanted or (
        sync and (wanted == "sync" or (path is not None and path.parts[1].startswith("journal")))
    )


class SimFile(File):
    """An open file."""

    def __init__(self, disk: ProcessDisk, path: Path, inode: Inode, *, direct: bool) -> None:
        self._disk, self._path, self._inode, self.direct = disk, path, inode, direct

    def _write(self, data: Buffer, offset: int, what: str, *, durably: bool = False) -> None:
        content = bytes(data)
        if self.direct:
            assert offset % 4096 == 0, "a direct write must be aligned"  # our journal, under test
            assert len(content) % 4096 == 0, "a direct write must be aligned"  # the same
        inode = self._inode
        try:
            # Overwriting needs no space, unless there is a hole.
            grows = offset + len(content) > len(inode.now) or offset in inode.holes
            self._disk.step(what, self._path, grows=grows)
        except ProcessGoneError:
            raise
        except OSError as exc:
            if exc.errno == errno.EIO:
                inode.write(content, offset)  # the write had begun: any part of it may be on the disk
            raise
        inode.write(content, offset)
        platter = self._disk.platter
        platter.trace.mark(b"disk", offset, crc32c(content))
        if durably:
            self._disk.step("sync", self._path, sync=True, grows=False)
            inode.sync_last()

    def pwrite(self, data: Buffer, offset: int) -> None:
        self._write(data, offset, "write")

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        self._write(b"".join(map(bytes, buffers)), offset, "gathering write")

    def write_durably(self, data: Buffer, offset: int) -> None:
        self._write(data, offset, "durable write", durably=True)

    def pread(self, size_bytes: int, offset: int) -> bytes:
        self._disk.check_read(self._path)
        return bytes(self._inode.now[offset : offset + size_bytes])

    def pread_cached(self, size_bytes: int, offset: int) -> bytes | None:
        if offset % 3 == 0 or self._disk.is_gone:
            return None
        return bytes(self._inode.now[offset : offset + size_bytes])

    def sync(self) -> None:
        try:
            self._disk.step("sync", self._path, sync=True, grows=False)
        except ProcessGoneError:
            raise
        except OSError:
            # The kernel drops dirty pages that it cannot write, so that a second sync "succeeds".
            platter = self._disk.platter
            shown = bytearray(self._inode.now)
            self._inode.lose(platter.rng, OUT_OF_ORDER, platter.counts)
            self._inode.now = shown  # the page cache still has them
            raise
        self._inode.sync()

    def size(self) -> int:
        return len(self._inode.now)

    def truncate(self, size_bytes: int) -> None:
        size_now = self.size()
        if size_bytes < size_now:
            self._disk.step("cut", self._path, grows=False)
            self._inode.cut(size_bytes)
            return
        self._write(bytes(size_bytes - size_now), size_now, "grow")

    def give_back(self, start: int, stop: int) -> bool:
        if start < self.size():
            self._disk.step("give back", self._path, grows=False)
            self._inode.write(bytes(stop - start), start)
            self._inode.holes = range(start, stop)
            self._disk.platter.counts["space given back"] += 1
        return True

    def has_holes(self) -> bool:
        return bool(self._inode.holes)

    def close(self) -> None:
        pass


class SimMap(KeyValues):
    """The index database of one process; its ``MapState`` outlives the process."""

    def __init__(self, disk: ProcessDisk, path: Path, state: MapState) -> None:
        self._disk, self._path, self._state = disk, path, state

    def write(self, operations: Sequence[Operation]) -> None:
        if operations:
            self._disk.step("index write", self._path)
            self._state.apply(list(operations))

    def delete_range(self, first: bytes, stop: bytes) -> None:
        self._disk.step("index delete", self._path, grows=False)
        self._state.apply([(key, None) for key, _ in self.scan(first, stop)])

    def get(self, key: bytes) -> bytes | None:
        self._check(key)
        return self._state.values.get(key)

    def _check(self, key: bytes) -> None:
        if key in self._state.damaged:
            self._disk.platter.counts["damage found in the index"] += 1
            raise OSError(errno.EIO, "index: a block has a wrong checksum", str(self._path))

    def floor(self, key: bytes) -> tuple[bytes, bytes] | None:
        keys = self._state.keys
        at = bisect.bisect_right(keys, key)
        if at == 0:
            return None
        self._check(keys[at - 1])
        return keys[at - 1], self._state.values[keys[at - 1]]

    def scan(self, first: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        keys = self._state.keys
        found = keys[bisect.bisect_left(keys, first) : bisect.bisect_left(keys, stop)]
        if self._state.damaged:
            for key in found:
                self._check(key)
        return iter([(key, self._state.values[key]) for key in found])

    def sync(self) -> None:
        self._disk.step("index sync", self._path, sync=True, grows=False)
        self._state.sync()

    def close(self) -> None:
        pass


class SimThread(DiskThread):
    """A bookie's thread in virtual time: its jobs run one after the other, each after a random delay."""

    def __init__(self, disk: ProcessDisk, name: str) -> None:
        self._disk, self._name = disk, name
        self._jobs: deque[tuple[Callable[[], Any], Done | None]] = deque()
        self._posted: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._is_scheduled = False
        self._idle = trio.Event()

    def submit(self, job: Callable[[], Any], done: Done | None) -> None:
        self._jobs.append((job, done))
        self._schedule()

    def post(self, callback: Callable[..., None], *args: Any) -> None:
        self._posted.append((callback, args))

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._disk.platter.timeline.after(0.0, callback)

    def run_here(self, job: Callable[[], None]) -> bool:
        if self._jobs or self._is_scheduled or self._disk.held() or self._disk.chooses_thread():
            return False
        job()
        return True

    async def aclose(self) -> None:
        while self._jobs or self._is_scheduled:
            self._idle = trio.Event()
            with trio.CancelScope(shield=True):
                await self._idle.wait()
        await trio.lowlevel.checkpoint()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            delay_s = 0.0 if self._disk.is_gone else self._disk.delay_s()
            self._disk.platter.timeline.after(delay_s, self._run)

    def _run(self) -> None:
        if self._disk.held():
            self._disk.platter.timeline.after(0.05, self._run)  # the process is paused: try again later
            return
        self._is_scheduled = False
        if not self._jobs:
            self._idle.set()
            return
        job, done = self._jobs.popleft()
        result, error = None, None
        try:
            result = job()
        except Exception as exc:
            error = exc
        posted, self._posted = self._posted, []
        for callback, args in posted:
            callback(*args)
        if done is not None:
            done(result, error)
        elif error is not None:
            raise error
        if self._jobs:
            self._schedule()
        else:
            self._idle.set()
