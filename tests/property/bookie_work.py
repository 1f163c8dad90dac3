"""Random work for a bookie's storage, what it has promised, and a look whether it kept that.

Used by the tests that cut the power, fail writes and trace syncs.
"""

from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import Callable
from pathlib import Path

import attrs
import trio

from bookie.errors import StorageFailedError
from bookie.journal_files import JournalConfig
from bookie.storage import Storage, StorageConfig, open_storage
from tests.property.forgetful_disk import PowerCutError, World

KEY = b"k" * 20


def config_over(journals: int, ledgers: int) -> StorageConfig:
    """Small files and caches: everything rolls, seals and is recycled within a few runs."""
    return StorageConfig(
        journal_directories=tuple(Path(f"/j{number}") for number in range(journals)),
        ledger_directories=tuple(Path(f"/l{number}") for number in range(ledgers)),
        journal=JournalConfig(
            file_bytes_max=64 << 10, preallocate_bytes=16 << 10, group_bytes_max=8 << 10, spare_files_max=1
        ),
        write_cache_bytes_max=64 << 10,
        entry_log_bytes_max=24 << 10,
    )


CONFIG = config_over(1, 1)


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

    def __init__(
        self,
        storage: Storage,
        promises: Promises,
        rng: random.Random,
        *,
        journal_count: int,
        ledger_count: int,
    ) -> None:
        self.storage, self.promises, self.rng = storage, promises, rng
        self._journal_count = journal_count
        self._ledger_count = ledger_count
        self.answers = 0
        self.errors: list[BaseException] = []
        self._written: list[tuple[int, Callable[[], None]]] = []  # journal; to be kept once that is synced

    def submit_run(self) -> None:
        storage, rng = self.storage, self.rng
        kept: list[tuple[int, Callable[[], None]]] = []
        covered: set[int] = set()  # journals that this run has parts in, or waits for
        for _ in range(rng.randrange(1, 5)):
            ledger_id = rng.randrange(1, 1 + self._ledger_count)
            ledger = storage.ledger(ledger_id) or storage.create_ledger(ledger_id, KEY)
            journal = ledger_id % self._journal_count
            covered.add(journal)
            if rng.random() < 0.1:  # a fence on an idle ledger: nothing but ledger data to flush
                storage.stage_fence(ledger)
                kept.append((journal, lambda ledger_id=ledger_id: self.promises.fenced.add(ledger_id)))  # type: ignore[misc]
                break
            entry_id = ledger.last_entry_id + rng.choice([1, 1, 1, 2])
            if rng.random() < 0.1 and ledger.last_entry_id >= 0:
                entry_id = rng.randrange(ledger.last_entry_id + 1)
            body = body_of(ledger_id, entry_id)
            storage.stage_entry(ledger, entry_id, entry_id - 1, body)
            kept.append((journal, lambda at=(ledger_id, entry_id), body=body: self._keep(at, body)))  # type: ignore[misc]
            if rng.random() < 0.2:
                packet = struct.pack(">qq", ledger_id, entry_id) + rng.randbytes(4)
                storage.stage_explicit_lac(ledger, packet)
                self.promises.lac_packets.setdefault(ledger_id, []).append(packet)
                kept.append((journal, lambda i=ledger_id, packet=packet: self._keep_packet(i, packet)))  # type: ignore[misc]
        if self._journal_count > 1 and rng.random() < 0.2:  # a force
            ledger_id = rng.randrange(1, 1 + self._ledger_count)
            storage.await_ledger(ledger_id)
            covered.add(ledger_id % self._journal_count)

        def on_durable(error: BaseException | None) -> None:
            self.answers += 1
            if error is not None:
                self.errors.append(error)
                return
            assert not self.errors, "acknowledged after a failure"
            if not sync:
                self._written += kept
                return
            # What was written to these journals before is synced with the run.
            for _, keep in kept:
                keep()
            for journal, keep in self._written:
                if journal in covered:
                    keep()
            self._written = [one for one in self._written if one[0] not in covered]

        sync = rng.random() < 0.8
        storage.submit(on_durable, sync=sync)

    def _keep(self, at: tuple[int, int], body: bytes) -> None:
        self.promises.entries[at] = body

    def _keep_packet(self, ledger_id: int, packet: bytes) -> None:
        packets = self.promises.lac_packets[ledger_id]
        if packet in packets:  # not if a later one was kept before it
            del packets[: packets.index(packet)]
        self.promises.with_lac.add(ledger_id)


async def work(
    world: World, promises: Promises, rng: random.Random, runs: int, config: StorageConfig = CONFIG
) -> None:
    """Some runs, answered or not, and checkpoints between them."""
    journal_count = len(config.journal_directories)
    async with open_storage(world, config, wall_ms=lambda: 1000) as storage:
        writer = Writer(
            storage,
            promises,
            rng,
            journal_count=journal_count,
            ledger_count=3 if journal_count == 1 else 4,
        )
        for number in range(runs):
            writer.submit_run()
            if rng.random() < 0.5:
                while writer.answers <= number:
                    await trio.lowlevel.checkpoint()
            if rng.random() < 0.3:
                await storage.flush()
            await storage.wait_room()


async def check(world: World, promises: Promises, config: StorageConfig = CONFIG) -> None:
    """Whether everything acknowledged is there."""
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


async def play(
    seed: int,
    cut_at: int | None,
    *,
    runs: int = 28,
    config: StorageConfig = CONFIG,
    fail_at: int | None = None,
    uneven: bool = False,
    later_config: StorageConfig | None = None,
) -> int:
    """Work until the power is cut, look at what is left, cut again while recovering; return the steps.

    Args:
        fail_at: A step that ends in an error, after which the power is cut anyway.
        uneven: Threads get their turns by chance.
        later_config: For the last starts: directories may have been added.
    """
    rng = random.Random(seed)
    world, promises = World(random.Random(seed) if uneven else None), Promises()
    world.cut_at, world.fail_at = cut_at, fail_at
    with contextlib.suppress(PowerCutError, StorageFailedError):
        try:
            await work(world, promises, rng, runs, config)
        except OSError:
            if fail_at is None or world.steps < fail_at:
                raise
    steps = world.steps
    after = world.after_power_cut(rng)
    after.cut_at = rng.randrange(1, 40)
    with contextlib.suppress(PowerCutError, StorageFailedError):
        await check(after, promises, config)
    after = after.after_power_cut(rng)
    for _ in range(2):  # and once more after a clean stop
        await check(after, promises, later_config or config)
    return steps
