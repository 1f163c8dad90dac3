"""Power cuts at every write, sync, rename and unlink of a bookie's storage, on a disk that forgets.

The disk here keeps, for each file, sectors that are durable and newer ones that are not; for each
directory, names that are durable and changes that are not; for the index, a prefix of its batches. A cut
lets any subset of the sectors, and any prefix of the rest, survive. Its threads run on the loop, so that
one number reproduces a run.
"""

from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import attrs
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from bookie.disk import Buffer, Disk, DiskThread, DiskUsage, File
from bookie.errors import DirectoryInUseError, StorageFailedError
from bookie.index_kinds import IndexConfig, IndexKind
from bookie.journal import JournalConfig
from bookie.key_values import KeyValues, Operation
from bookie.page_index import PageIndexConfig
from bookie.storage import Storage, StorageConfig, open_storage

T = TypeVar("T")
Done = Callable[[Any, BaseException | None], None]
SECTOR = 512
KEY = b"k" * 20


class PowerCutError(OSError):
    """Nothing can be done any more."""


class Inode:
    def __init__(self) -> None:
        self.size = 0
        self.durable_size = 0
        self.durable: dict[int, bytes] = {}
        self.newer: dict[int, list[bytes]] = {}  # versions of a sector that may or may not survive

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

    def survivor(self, rng: random.Random, chance: float) -> Inode:
        after = Inode()
        after.durable = dict(self.durable)
        for index, versions in self.newer.items():
            if rng.random() < chance:
                after.durable[index] = rng.choice(versions)
        after.size = after.durable_size = self.size if rng.random() < chance else self.durable_size
        return after


class World(Disk):
    """The simulated disk: counts steps, and cuts the power at one of them."""

    def __init__(self) -> None:
        self.names: dict[Path, Inode] = {}
        self.durable_names: dict[Path, Inode] = {}
        self.name_changes: list[dict[Path, Inode]] = []  # the names after each change since the last sync
        self.maps: dict[Path, MapState] = {}
        self.steps = 0
        self.cut_at: int | None = None
        self.is_off = False
        self.locked: set[Path] = set()
        self.durable_writes = 0
        self.fail_if: Callable[[str], bool] = lambda what: False

    def step(self, what: str) -> None:
        """One thing that a power cut may come before."""
        if self.is_off:
            raise PowerCutError(f"{what}: the power is off")
        self.steps += 1
        if self.steps == self.cut_at:
            self.is_off = True
            raise PowerCutError(f"power cut at step {self.steps}: {what}")
        if self.fail_if(what):
            raise OSError(5, f"injected: {what}")

    def after_power_cut(self, rng: random.Random) -> World:
        chance = rng.choice([0.0, 0.5, 0.9, 1.0])
        world = World()
        names = rng.choice([self.durable_names, *self.name_changes])
        inodes: dict[int, Inode] = {}
        for path, inode in names.items():
            world.names[path] = inodes.setdefault(id(inode), inode.survivor(rng, chance))
        world.durable_names = dict(world.names)
        for path, state in self.maps.items():
            world.maps[path] = state.survivor(rng)
        return world

    # --- Disk ---

    def open(self, path: Path, *, create: bool = False, write: bool = False, direct: bool = False) -> File:
        if create:
            self.step(f"create {path.name}")
            if path in self.names:
                raise FileExistsError(path)
            self.names[path] = Inode()
            self.name_changes.append(dict(self.names))
        if path not in self.names:
            raise FileNotFoundError(path)
        return SimulatedFile(self, path, self.names[path], direct=direct)

    def rename(self, old: Path, new: Path) -> None:
        self.step(f"rename {old.name} {new.name}")
        self.names[new] = self.names.pop(old)
        self.name_changes.append(dict(self.names))

    def unlink(self, path: Path) -> None:
        if path not in self.names:
            raise FileNotFoundError(path)
        self.step(f"unlink {path.name}")
        del self.names[path]
        self.name_changes.append(dict(self.names))

    def list_directory(self, path: Path) -> list[str]:
        return sorted(file.name for file in self.names if file.parent == path)

    def make_directory(self, path: Path) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        self.step(f"sync directory {path.name}")
        self.durable_names = dict(self.names)
        self.name_changes.clear()

    def lock(self, path: Path) -> Callable[[], None]:
        if path in self.locked:
            raise DirectoryInUseError(f"{path} is locked")
        self.locked.add(path)
        return lambda: self.locked.discard(path)

    def usage(self, path: Path) -> DiskUsage:
        return DiskUsage(1 << 40, 1 << 39)

    def open_key_values(self, path: Path) -> KeyValues:
        return SimulatedMap(self, self.maps.setdefault(path, MapState()))

    def aligned_buffer(self, size_bytes: int) -> bytearray:  # type: ignore[override]
        return bytearray(-(-size_bytes // 4096) * 4096)

    def start_thread(self, name: str) -> DiskThread:
        return LoopThread()

    async def run(self, job: Callable[..., T], *args: Any) -> T:
        await trio.lowlevel.checkpoint()
        return job(*args)


class SimulatedFile(File):
    def __init__(self, world: World, path: Path, inode: Inode, *, direct: bool) -> None:
        self.world, self.path, self.inode, self.direct = world, path, inode, direct

    def _write(self, data: Buffer, offset: int, what: str) -> None:
        content = bytes(data)
        if self.direct:
            assert offset % 4096 == 0, "a direct write must be aligned"
            assert len(content) % 4096 == 0, "a direct write must be aligned"
        try:
            self.world.step(f"{what} {self.path.name}")
        except PowerCutError:
            self.inode.write(content, offset)  # it had begun: any part of it may have reached the disk
            raise
        self.inode.write(content, offset)

    def pwrite(self, data: Buffer, offset: int) -> None:
        self._write(data, offset, "write")

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        self._write(b"".join(map(bytes, buffers)), offset, "gathering write")

    def write_durably(self, data: Buffer, offset: int) -> None:
        self._write(data, offset, "durable write")
        self.world.step(f"end of durable write {self.path.name}")
        self.inode.settle(offset // SECTOR, -(-(offset + len(data)) // SECTOR))
        self.inode.durable_size = max(self.inode.durable_size, offset + len(data))
        self.world.durable_writes += 1

    def pread(self, size_bytes: int, offset: int) -> bytes:
        return self.inode.read(size_bytes, offset)

    def pread_cached(self, size_bytes: int, offset: int) -> bytes | None:
        return self.inode.read(size_bytes, offset) if offset % 3 else None

    def sync(self) -> None:
        self.world.step(f"sync {self.path.name}")
        self.inode.settle()
        self.inode.durable_size = self.inode.size
        self.world.durable_writes += 1

    def size(self) -> int:
        return self.inode.size

    def truncate(self, size_bytes: int) -> None:
        raise AssertionError("the engine truncates nothing")

    def close(self) -> None:
        pass


class MapState:
    def __init__(self) -> None:
        self.durable: dict[bytes, bytes] = {}
        self.newer: list[dict[bytes, bytes]] = []  # the whole map after each unsynced batch

    @property
    def now(self) -> dict[bytes, bytes]:
        return self.newer[-1] if self.newer else self.durable

    def survivor(self, rng: random.Random) -> MapState:
        after = MapState()
        after.durable = dict(rng.choice([self.durable, *self.newer]))
        return after


class SimulatedMap(KeyValues):
    def __init__(self, world: World, state: MapState) -> None:
        self.world, self.state = world, state

    def write(self, operations: Sequence[Operation]) -> None:
        self.world.step("index write")
        after = dict(self.state.now)
        for key, value in operations:
            if value is None:
                after.pop(key, None)
            else:
                after[key] = value
        self.state.newer.append(after)

    def delete_range(self, first: bytes, stop: bytes) -> None:
        self.world.step("index delete")
        self.state.newer.append({k: v for k, v in self.state.now.items() if not first <= k < stop})

    def get(self, key: bytes) -> bytes | None:
        return self.state.now.get(key)

    def floor(self, key: bytes) -> tuple[bytes, bytes] | None:
        below = max((k for k in self.state.now if k <= key), default=None)
        return None if below is None else (below, self.state.now[below])

    def scan(self, first: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        return iter(sorted((k, v) for k, v in self.state.now.items() if first <= k < stop))

    def sync(self) -> None:
        self.world.step("index sync")
        self.state.durable = dict(self.state.now)
        self.state.newer.clear()

    def close(self) -> None:
        pass


class LoopThread(DiskThread):
    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()

    def submit(self, job: Callable[[], Any], done: Done | None) -> None:
        self._token.run_sync_soon(self._run, job, done)

    def _run(self, job: Callable[[], Any], done: Done | None) -> None:
        try:
            result = job()
        except OSError as exc:
            assert done is not None
            done(None, exc)
        except StorageFailedError as exc:
            assert done is not None
            done(None, exc)
        else:
            if done is not None:
                done(result, None)

    def post(self, callback: Callable[..., None], *args: Any) -> None:
        self._token.run_sync_soon(callback, *args)

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


# --- the workload ---------------------------------------------------------------------------------

CONFIG = StorageConfig(
    journal_directories=(Path("/j"),),
    ledger_directories=(Path("/l"),),
    journal=JournalConfig(
        file_bytes_max=64 << 10, preallocate_bytes=16 << 10, group_bytes_max=8 << 10, spare_files_max=1
    ),
    write_cache_bytes_max=64 << 10,
    entry_log_bytes_max=24 << 10,
)


def body_of(ledger_id: int, entry_id: int) -> bytes:
    """An entry's bytes: the same whenever it is added, as entries are immutable."""
    head = struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, 0)
    rng = random.Random(ledger_id * 1000 + entry_id)
    return head + rng.randbytes(rng.choice([10, 300, 5000]))


@attrs.define
class Promises:
    """What the storage has acknowledged."""

    entries: dict[tuple[int, int], bytes] = attrs.field(factory=dict)
    fenced: set[int] = attrs.field(factory=set)
    lac_packets: dict[int, list[bytes]] = attrs.field(factory=dict)  # the acknowledged one, then later ones
    with_lac: set[int] = attrs.field(factory=set)  # ledgers of which a packet was acknowledged


class Writer:
    """Stages random runs and remembers what was acknowledged."""

    def __init__(self, storage: Storage, promises: Promises, rng: random.Random) -> None:
        self.storage, self.promises, self.rng = storage, promises, rng
        self.answers = 0
        self.errors: list[BaseException] = []
        self.deferred: list[Callable[[], None]] = []

    def submit_run(self) -> None:
        storage, rng = self.storage, self.rng
        kept: list[Callable[[], None]] = []
        for _ in range(rng.randrange(1, 5)):
            ledger_id = rng.randrange(1, 4)
            ledger = storage.ledger(ledger_id) or storage.create_ledger(ledger_id, KEY)
            if rng.random() < 0.1:  # a fence on an idle ledger: nothing but ledger data to flush
                storage.stage_fence(ledger)
                kept.append(lambda ledger_id=ledger_id: self.promises.fenced.add(ledger_id))  # type: ignore[misc]
                break
            entry_id = ledger.last_entry_id + rng.choice([1, 1, 1, 2])
            if rng.random() < 0.1 and ledger.last_entry_id >= 0:
                entry_id = rng.randrange(ledger.last_entry_id + 1)
            body = body_of(ledger_id, entry_id)
            storage.stage_entry(ledger, entry_id, entry_id - 1, body)
            kept.append(lambda at=(ledger_id, entry_id), body=body: self._keep(at, body))  # type: ignore[misc]
            if rng.random() < 0.2:
                packet = struct.pack(">qq", ledger_id, entry_id) + rng.randbytes(4)
                storage.stage_explicit_lac(ledger, packet)
                self.promises.lac_packets.setdefault(ledger_id, []).append(packet)
                kept.append(lambda ledger_id=ledger_id, packet=packet: self._keep_packet(ledger_id, packet))  # type: ignore[misc]

        def on_durable(error: BaseException | None) -> None:
            self.answers += 1
            if error is not None:
                self.errors.append(error)
                return
            assert not self.errors, "acknowledged after a failure"
            self.deferred += kept
            if sync:  # what was only written before is synced with it
                for keep in self.deferred:
                    keep()
                self.deferred.clear()

        sync = rng.random() < 0.8
        storage.submit(on_durable, sync=sync)

    def _keep(self, at: tuple[int, int], body: bytes) -> None:
        self.promises.entries[at] = body

    def _keep_packet(self, ledger_id: int, packet: bytes) -> None:
        packets = self.promises.lac_packets[ledger_id]
        del packets[: packets.index(packet)]
        self.promises.with_lac.add(ledger_id)


async def work(
    world: World, promises: Promises, rng: random.Random, runs: int, config: StorageConfig = CONFIG
) -> None:
    async with open_storage(world, config, wall_ms=lambda: 1000) as storage:
        writer = Writer(storage, promises, rng)
        for number in range(runs):
            writer.submit_run()
            if rng.random() < 0.5:
                while writer.answers <= number:
                    await trio.lowlevel.checkpoint()
            if rng.random() < 0.3:
                await storage.flush()
            await storage.wait_room()


async def check(world: World, promises: Promises, config: StorageConfig = CONFIG) -> None:
    async with open_storage(world, config, wall_ms=lambda: 1000) as storage:
        for (ledger_id, entry_id), body in promises.entries.items():
            stored = await storage.read(ledger_id, entry_id)
            assert stored == body, f"entry {ledger_id}:{entry_id} changed"
            record = storage.ledger(ledger_id)
            assert record is not None
            assert record.master_key == KEY
            assert record.last_entry_id >= entry_id
            assert record.lac >= entry_id - 1
            run = await storage.read_run(ledger_id, entry_id, 3, 1 << 20)
            assert run[0] == body
        for ledger_id in promises.fenced:
            record = storage.ledger(ledger_id)
            assert record is not None
            assert record.fenced, f"ledger {ledger_id} lost its fence"
        for ledger_id in promises.with_lac:
            record = storage.ledger(ledger_id)
            assert record is not None
            assert record.explicit_lac in promises.lac_packets[ledger_id]


async def play(seed: int, cut_at: int | None, *, runs: int = 28, config: StorageConfig = CONFIG) -> int:
    """Work until the power is cut, look at what is left, cut again while recovering; return the steps."""
    rng = random.Random(seed)
    world, promises = World(), Promises()
    world.cut_at = cut_at
    with contextlib.suppress(PowerCutError, StorageFailedError):
        await work(world, promises, rng, runs, config)
    steps = world.steps
    after = world.after_power_cut(rng)
    after.cut_at = rng.randrange(1, 40)
    with contextlib.suppress(PowerCutError, StorageFailedError):
        await check(after, promises, config)
    after = after.after_power_cut(rng)
    await check(after, promises, config)
    await check(after, promises, config)  # and once more after a clean stop
    return steps


async def test_nothing_acknowledged_is_lost_wherever_the_power_is_cut() -> None:
    steps = await play(1, None)
    assert steps > 100
    for cut_at in range(1, steps + 1):
        await play(1, cut_at)


async def test_nothing_acknowledged_is_lost_with_an_index_of_pages() -> None:
    pages = PageIndexConfig(page_bytes=512, pages_max=4, open_files_max=2)
    config = attrs.evolve(CONFIG, index=IndexConfig(kind=IndexKind.PAGES, pages=pages))
    steps = await play(1, None, config=config)
    for cut_at in range(1, steps + 1):
        await play(1, cut_at, config=config)


async def test_every_acknowledgement_is_covered_by_a_sync_made_after_its_run_was_submitted() -> None:
    """apache/bookkeeper#3979: objects that remembered an earlier flush made the journal skip syncs."""
    world = World()
    async with open_storage(world, CONFIG, wall_ms=lambda: 1000) as storage:
        ledger = storage.create_ledger(1, KEY)
        answered: list[int] = []
        for entry_id in range(200):
            body = body_of(1, entry_id)
            storage.stage_entry(ledger, entry_id, -1, body)

            def on_durable(
                error: BaseException | None,
                entry_id: int = entry_id,
                body: bytes = body,
                at: int = world.durable_writes,
            ) -> None:
                assert error is None
                assert world.durable_writes > at
                journals = [inode for path, inode in world.durable_names.items() if path.suffix == ".txn"]
                assert any(body in b"".join(v for _, v in sorted(i.durable.items())) for i in journals)
                answered.append(entry_id)

            storage.submit(on_durable)
            if entry_id % 7 == 0:
                while len(answered) <= entry_id:
                    await trio.lowlevel.checkpoint()
            await storage.wait_room()
    assert answered == list(range(200))


async def test_deferred_runs_are_synced_before_the_journal_goes_on_in_the_next_file() -> None:
    world, answered = World(), 0
    with contextlib.suppress(PowerCutError, StorageFailedError):
        async with open_storage(world, CONFIG, wall_ms=lambda: 1000) as storage:
            ledger = storage.create_ledger(1, KEY)

            def on_durable(error: BaseException | None) -> None:
                nonlocal answered
                assert error is None
                answered += 1

            for entry_id in range(20):  # more than a file holds
                storage.stage_entry(ledger, entry_id, -1, body_of(1, entry_id))
                storage.submit(on_durable, sync=False)
                while answered <= entry_id:
                    await trio.lowlevel.checkpoint()
            storage.submit(on_durable)
            while answered <= 20:
                await trio.lowlevel.checkpoint()
            world.is_off = True
    promises = Promises({(1, entry_id): body_of(1, entry_id) for entry_id in range(20)})
    for seed in range(20):
        await check(world.after_power_cut(random.Random(seed)), promises)


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), cut_at=st.integers(1, 500))
def test_nothing_acknowledged_is_lost_under_any_work(seed: int, cut_at: int) -> None:
    trio.run(play, seed, cut_at)
