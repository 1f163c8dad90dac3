"""A simulated disk that loses unsynced writes at a power cut; steps are numbered, threads run on the loop.

The disk keeps durable and unsynced sectors for each file, durable names and unsynced changes for each
directory, and durable and unsynced batches for each index. At a power cut any subset of the unsynced sectors
survives, and any prefix of the unsynced directory changes and batches.

``turns`` decides which thread of a bookie runs next. Each thread runs its own jobs in order, so one directory
may be far behind another. One seed reproduces an execution.
"""

from __future__ import annotations

import errno
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import trio

from bookie.disk.disk import BLOCK_BYTES, Buffer, Disk, DiskThread, DiskUsage, File
from bookie.disk.key_values import KeyValues, Operation
from bookie.errors import BookieServerError, DirectoryInUseError, StartError
from ledger.runtime.tasks.next_turn import call_next_turn

T = TypeVar("T")
Done = Callable[[Any, BaseException | None], None]
SECTOR = 512


class PowerCutError(OSError):
    """The power is off: every call fails."""


class Inode:
    def __init__(self) -> None:
        self.size = 0
        self.durable_size = 0
        self.durable: dict[int, bytes] = {}
        self.newer: dict[int, list[bytes]] = {}  # unsynced versions of each sector; any of them may survive
        self.holes: set[int] = set()  # blocks without space

    def sector(self, index: int) -> bytes:
        versions = self.newer.get(index)
        return versions[-1] if versions else self.durable.get(index, bytes(SECTOR))

    def write(self, data: bytes, offset: int) -> None:
        stop = offset + len(data)
        for index in range(offset // SECTOR, -(-stop // SECTOR)):
            start = index * SECTOR
            old = self.sector(index)
            low, high = max(offset, start), min(stop, start + SECTOR)
            new = old[: low - start] + data[low - offset : high - offset] + old[high - start :]
            self.newer.setdefault(index, []).append(new)
        self.size = max(self.size, stop)

    def read(self, size: int, offset: int) -> bytes:
        stop = min(offset + size, self.size)
        if stop <= offset:
            return b""
        first = offset // SECTOR
        data = b"".join(self.sector(index) for index in range(first, -(-stop // SECTOR)))
        return data[offset - first * SECTOR : stop - first * SECTOR]

    def settle(self, first: int = 0, stop: int | None = None) -> None:
        for index in list(self.newer):
            if index >= first and (stop is None or index < stop):
                self.durable[index] = self.newer.pop(index)[-1]

    @property
    def used_bytes(self) -> int:
        return (-(-self.size // BLOCK_BYTES) - len(self.holes)) * BLOCK_BYTES

    def holes_in(self, start: int, stop: int) -> set[int]:
        return self.holes & set(range(start // BLOCK_BYTES, -(-stop // BLOCK_BYTES)))

    def punch(self, start: int, stop: int) -> None:
        """Make holes; until the next sync a power cut may bring back what was there."""
        self.write(bytes(stop - start), start)
        self.holes.update(range(start // BLOCK_BYTES, stop // BLOCK_BYTES))

    def cut(self, size_bytes: int) -> None:
        """Cut the end off; what was there may survive a power cut, as zeros or as it was."""
        first = -(-size_bytes // SECTOR)
        for index in [index for index in self.newer if index >= first]:
            del self.newer[index]
        if size_bytes % SECTOR:
            index = size_bytes // SECTOR
            kept = self.sector(index)[: size_bytes % SECTOR]
            self.newer.setdefault(index, []).append(kept.ljust(SECTOR, b"\0"))
        self.size = size_bytes
        self.holes = {block for block in self.holes if block * BLOCK_BYTES < size_bytes}

    def survivor(self, rng: random.Random, chance: float) -> Inode:
        after = Inode()
        after.durable = dict(self.durable)
        for index, versions in self.newer.items():
            if rng.random() < chance:
                after.durable[index] = rng.choice(versions)
        after.size = after.durable_size = self.size if rng.random() < chance else self.durable_size
        after.holes = {block for block in self.holes if (block + 1) * BLOCK_BYTES <= after.size}
        return after


class SimulatedDisk(Disk):
    """The simulated disk: counts steps, and cuts the power at one of them."""

    def __init__(self, turns: random.Random | None = None) -> None:
        """``turns`` decides which thread runs its next job; None: each thread in turn, one job each."""
        self.names: dict[Path, Inode] = {}
        self.maps: dict[Path, MapState] = {}
        self.steps = 0
        self.cut_at: int | None = None
        self.fail_at: int | None = None  # only this step raises an error
        self.is_off = False
        self.locked: set[Path] = set()
        self.durable_writes = 0
        self.fail_if: Callable[[str], bool] = lambda what: False
        self.capacity_bytes: int | None = None
        self.full_at: int | None = None  # from this step on there is no space
        self.can_give_back = True
        self.trace: list[str] = []
        self.turns = turns
        self._tree_moves: list[tuple[Path, Path]] = []  # directories renamed since the last sync of one
        self._durable: dict[Path, dict[Path, Inode]] = {}  # directory -> its durable names
        # Directory -> its names after each change since its last sync.
        self._changes: dict[Path, list[dict[Path, Inode]]] = {}

    def step(self, what: str) -> None:
        """Count one step; a power cut or an injected error may come before it."""
        if self.is_off:
            raise PowerCutError(f"{what}: the power is off")
        self.steps += 1
        if self.steps == self.cut_at:
            self.is_off = True
            raise PowerCutError(f"power cut at step {self.steps}: {what}")
        if self.steps == self.fail_at:
            raise OSError(errno.EIO, f"injected at step {self.steps}: {what}")
        if self.steps == self.full_at:
            self.capacity_bytes = self.used_bytes()
        if self.fail_if(what):
            raise OSError(errno.EIO, f"injected: {what}")
        self.trace.append(what)

    def allocate(self, size_bytes: int, what: str) -> None:
        """Take space; ENOSPC if too little is free."""
        if self.capacity_bytes is not None and self.used_bytes() + size_bytes > self.capacity_bytes:
            raise OSError(errno.ENOSPC, f"no space left: {what}")

    def used_bytes(self) -> int:
        """The space of files and indexes, with one block for each name."""
        files = sum(BLOCK_BYTES + inode.used_bytes for inode in self.names.values())
        return files + sum(sum(map(len, state.now.values())) for state in self.maps.values())

    def after_power_cut(self, rng: random.Random) -> SimulatedDisk:
        """The disk of the next process, with the state that survived."""
        for old, new in reversed(self._tree_moves[rng.randrange(len(self._tree_moves) + 1) :]):
            self._move_tree(new, old)
        self._tree_moves.clear()
        chance = rng.choice([0.0, 0.5, 0.9, 1.0])
        disk = SimulatedDisk(None if self.turns is None else random.Random(rng.random()))
        disk.capacity_bytes, disk.can_give_back = self.capacity_bytes, self.can_give_back
        inodes: dict[int, Inode] = {}
        for directory in sorted(self._durable.keys() | self._changes.keys()):
            names = rng.choice([self._durable.get(directory, {}), *self._changes.get(directory, [])])
            survivors = {
                path: inodes.setdefault(id(inode), inode.survivor(rng, chance))
                for path, inode in names.items()
            }
            disk.names.update(survivors)
            disk._durable[directory] = survivors
        for path, state in self.maps.items():
            disk.maps[path] = state.survivor(rng)
        return disk

    @property
    def durable_names(self) -> dict[Path, Inode]:
        """The names that survive every power cut, with their files."""
        return {path: inode for names in self._durable.values() for path, inode in names.items()}

    def _in(self, directory: Path) -> dict[Path, Inode]:
        return {path: inode for path, inode in self.names.items() if path.parent == directory}

    def _changed(self, path: Path) -> None:
        self._changes.setdefault(path.parent, []).append(self._in(path.parent))

    # --- Disk ---

    def open(self, path: Path, *, create: bool = False, write: bool = False, direct: bool = False) -> File:
        if create:
            self.step(f"create {path}")
            if path in self.names:
                raise FileExistsError(path)
            self.allocate(4096, f"create {path}")
            self.names[path] = Inode()
            self._changed(path)
        if path not in self.names:
            raise FileNotFoundError(path)
        return SimulatedFile(self, path, self.names[path], direct=direct)

    def rename(self, old: Path, new: Path) -> None:
        self.step(f"rename {old} {new}")
        if old not in self.names:
            self._move_tree(old, new)
            self._tree_moves.append((old, new))
            return
        assert old.parent == new.parent
        self.names[new] = self.names.pop(old)
        self._changed(new)

    def link(self, old: Path, new: Path) -> None:
        self.step(f"link {old} {new}")
        if new in self.names:
            raise FileExistsError(new)
        self.names[new] = self.names[old]
        self._changed(new)

    def _move_tree(self, old: Path, new: Path) -> None:
        """Rename a directory with its contents; their durable and unsynced state is kept."""
        assert not self._below(self.names, new), f"{new} exists already"
        assert not self._below(self.maps, new), f"{new} exists already"
        trees: tuple[dict[Path, Any], ...] = (self.names, self.maps, self._durable, self._changes)
        for tree in trees:
            for path in self._below(tree, old):
                tree[new / path.relative_to(old)] = tree.pop(path)
        for directory in self._below(self._durable, new):
            self._durable[directory] = {
                directory / path.name: inode for path, inode in self._durable[directory].items()
            }
        for directory in self._below(self._changes, new):
            self._changes[directory] = [
                {directory / path.name: inode for path, inode in names.items()}
                for names in self._changes[directory]
            ]

    @staticmethod
    def _below(tree: dict[Path, Any], root: Path) -> list[Path]:
        return [path for path in tree if root in (path, *path.parents)]

    def remove_tree(self, path: Path) -> None:
        for below in self._below(self.names, path):
            self.unlink(below)
        for below in self._below(self.maps, path):
            self.step(f"remove {below}")
            del self.maps[below]
        for directory in {*self._below(self._durable, path), *self._below(self._changes, path)}:
            self._durable.pop(directory, None)
            self._changes.pop(directory, None)

    def unlink(self, path: Path) -> None:
        if path not in self.names:
            raise FileNotFoundError(path)
        self.step(f"unlink {path}")
        del self.names[path]
        self._changed(path)

    def list_directory(self, path: Path) -> list[str]:
        below = [one for one in (*self.names, *self.maps) if path in one.parents]
        return sorted({one.relative_to(path).parts[0] for one in below})

    def make_directory(self, path: Path, *, durably: bool = True) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        self.step(f"sync directory {path}")
        self._durable[path] = self._in(path)
        self._changes.pop(path, None)
        self._tree_moves.clear()

    def lock(self, path: Path) -> Callable[[], None]:
        if path in self.locked:
            raise DirectoryInUseError(f"{path} is locked")
        self.locked.add(path)
        return lambda: self.locked.discard(path)

    def usage(self, path: Path) -> DiskUsage:
        total = 1 << 40 if self.capacity_bytes is None else self.capacity_bytes
        return DiskUsage(total, total // 2 if self.capacity_bytes is None else total - self.used_bytes())

    def open_key_values(self, path: Path) -> KeyValues:
        return SimulatedMap(self, path, self.maps.setdefault(path, MapState()))

    def open_apache_database(self, path: Path, *, create: bool = False) -> KeyValues:
        """A map beside a file ``CURRENT``, which RocksDB makes with a new database."""
        current = path / "CURRENT"
        if create:
            self.replace_file(current, b"MANIFEST-000001\n")
        elif not self.read_file(current).startswith(b"MANIFEST"):
            raise StartError(f"{path}: RocksDB refuses CURRENT")
        return self.open_key_values(path)

    def aligned_buffer(self, size_bytes: int) -> bytearray:
        return bytearray(-(-size_bytes // 4096) * 4096)

    def start_thread(self, name: str) -> DiskThread:
        return LoopThread(self)

    async def run(self, job: Callable[..., T], *args: Any) -> T:
        await trio.lowlevel.checkpoint()
        return job(*args)


class SimulatedFile(File):
    def __init__(self, disk: SimulatedDisk, path: Path, inode: Inode, *, direct: bool) -> None:
        self.disk, self.path, self.inode, self.direct = disk, path, inode, direct

    def _write(self, data: Buffer, offset: int, what: str) -> None:
        content = bytes(data)
        if self.direct:
            assert offset % 4096 == 0, "a direct write must be aligned"
            assert len(content) % 4096 == 0, "a direct write must be aligned"
        try:
            self.disk.step(f"{what} {self.path}")
        except OSError:
            self.inode.write(content, offset)  # the write had begun: any part of it may have reached the disk
            raise
        stop = offset + len(content)
        holes = self.inode.holes_in(offset, stop)
        if holes or stop > self.inode.size:
            growth = max(0, stop - self.inode.size) + len(holes) * BLOCK_BYTES
            self.disk.allocate(growth, f"{what} {self.path}")
        self.inode.holes -= holes
        self.inode.write(content, offset)

    def pwrite(self, data: Buffer, offset: int) -> None:
        self._write(data, offset, "write")

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        self._write(b"".join(map(bytes, buffers)), offset, "gathering write")

    def write_durably(self, data: Buffer, offset: int) -> None:
        self._write(data, offset, "durable write")
        self.disk.step(f"end of durable write {self.path}")
        self.inode.settle(offset // SECTOR, -(-(offset + len(data)) // SECTOR))
        self.inode.durable_size = max(self.inode.durable_size, offset + len(data))
        self.disk.durable_writes += 1

    def pread(self, size_bytes: int, offset: int) -> bytes:
        return self.inode.read(size_bytes, offset)

    def pread_cached(self, size_bytes: int, offset: int) -> bytes | None:
        return self.inode.read(size_bytes, offset) if offset % 3 else None

    def sync(self) -> None:
        self.disk.step(f"sync {self.path}")
        self.inode.settle()
        self.inode.durable_size = self.inode.size
        self.disk.durable_writes += 1

    def size(self) -> int:
        return self.inode.size

    def truncate(self, size_bytes: int) -> None:
        if size_bytes < self.inode.size:
            self.disk.step(f"cut {self.path}")
            self.inode.cut(size_bytes)
            return
        self._write(bytes(size_bytes - self.inode.size), self.inode.size, "grow")

    def give_back(self, start: int, stop: int) -> bool:
        assert start % BLOCK_BYTES == stop % BLOCK_BYTES == 0, "only whole blocks take less space"
        if self.disk.can_give_back and start < self.inode.size:
            self.disk.step(f"give back {self.path}")
            self.inode.punch(start, stop)
        return self.disk.can_give_back

    def has_holes(self) -> bool:
        return bool(self.inode.holes)

    def close(self) -> None:
        pass


class MapState:
    def __init__(self) -> None:
        self.durable: dict[bytes, bytes] = {}
        self.newer: list[dict[bytes, bytes]] = []  # the map after each unsynced batch

    @property
    def now(self) -> dict[bytes, bytes]:
        return self.newer[-1] if self.newer else self.durable

    def survivor(self, rng: random.Random) -> MapState:
        after = MapState()
        after.durable = dict(rng.choice([self.durable, *self.newer]))
        return after


class SimulatedMap(KeyValues):
    def __init__(self, disk: SimulatedDisk, path: Path, state: MapState) -> None:
        self.disk, self.path, self.state = disk, path, state

    def write(self, operations: Sequence[Operation]) -> None:
        self.disk.step(f"index write {self.path}")
        size_bytes = sum(len(key) + len(value) for key, value in operations if value is not None)
        self.disk.allocate(size_bytes, f"index write {self.path}")
        after = dict(self.state.now)
        for key, value in operations:
            if value is None:
                after.pop(key, None)
            else:
                after[key] = value
        self.state.newer.append(after)

    def delete_range(self, first: bytes, stop: bytes) -> None:
        self.disk.step(f"index delete {self.path}")
        self.state.newer.append({k: v for k, v in self.state.now.items() if not first <= k < stop})

    def get(self, key: bytes) -> bytes | None:
        return self.state.now.get(key)

    def floor(self, key: bytes) -> tuple[bytes, bytes] | None:
        below = max((k for k in self.state.now if k <= key), default=None)
        return None if below is None else (below, self.state.now[below])

    def scan(self, first: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        return iter(sorted((k, v) for k, v in self.state.now.items() if first <= k < stop))

    def sync(self) -> None:
        self.disk.step(f"index sync {self.path}")
        self.state.durable = dict(self.state.now)
        self.state.newer.clear()

    def close(self) -> None:
        pass


class LoopThread(DiskThread):
    """Runs its jobs on the loop, in order, when ``turns`` selects this thread."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk
        self._token = trio.lowlevel.current_trio_token()
        self._jobs: deque[tuple[Callable[[], Any], Done | None]] = deque()

    def submit(self, job: Callable[[], Any], done: Done | None) -> None:
        self._jobs.append((job, done))
        if len(self._jobs) == 1:
            self._token.run_sync_soon(self._run)

    def call_soon(self, callback: Callable[[], None]) -> None:
        call_next_turn(callback)

    def _run(self) -> None:
        if self._disk.turns is not None and self._disk.turns.random() < 0.7:
            self._token.run_sync_soon(self._run)  # another thread runs first
            return
        job, done = self._jobs[0]
        try:
            result = job()
        except (OSError, BookieServerError) as exc:
            assert done is not None
            done(None, exc)
        else:
            if done is not None:
                done(result, None)
        self._jobs.popleft()
        if self._jobs:
            self._token.run_sync_soon(self._run)

    def run_here(self, job: Callable[[], None]) -> bool:
        if self._jobs or (self._disk.turns is not None and self._disk.turns.random() < 0.5):
            return False
        job()
        return True

    def post(self, callback: Callable[..., None], *args: Any) -> None:
        self._token.run_sync_soon(callback, *args)

    async def aclose(self) -> None:
        while self._jobs:
            await trio.lowlevel.checkpoint()
