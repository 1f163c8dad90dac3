"""Random work for a bookie's storage, the state that it has acknowledged, and a check of that state.

Used by tests that cut the power, fail writes and trace syncs.
"""

from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path

import attrs
import trio

from bookie.errors import StorageFailedError
from bookie.journal.files import JournalConfig
from bookie.storage.config import StorageConfig
from bookie.storage.opening import open_storage
from bookie.storage.storage import Storage
from tests.fakes.simulated_disk import PowerCutError, SimulatedDisk

KEY = b"k" * 20


def config_over(journals: int, ledgers: int) -> StorageConfig:
    """Small files and caches: within a few batches files roll, caches seal and journals are recycled."""
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
    """An entry's bytes: always the same for the same ids, since entries are immutable."""
    head = struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, 0)
    rng = random.Random(ledger_id * 1000 + entry_id)
    return head + rng.randbytes(rng.choice([10, 300, 5000]))


@attrs.define
class AcknowledgedState:
    """The entries, fences and LAC packets that the storage has acknowledged."""

    entries: dict[tuple[int, int], bytes] = attrs.field(factory=dict)
    fenced: set[int] = attrs.field(factory=set)
    lac_packets: dict[int, list[bytes]] = attrs.field(
        factory=dict
    )  # the acknowledged packet, then later ones
    with_lac: set[int] = attrs.field(factory=set)  # ledgers with an acknowledged packet


class Writer:
    """Submits random batches, and records what was acknowledged."""

    def __init__(
        self,
        storage: Storage,
        acknowledged: AcknowledgedState,
        rng: random.Random,
        *,
        journal_count: int,
        ledger_count: int,
    ) -> None:
        self.storage, self.acknowledged, self.rng = storage, acknowledged, rng
        self._journal_count = journal_count
        self._ledger_count = ledger_count
        self.replies = 0
        self.errors: list[BaseException] = []
        self._written: list[tuple[int, Callable[[], None]]] = []  # journal, and the action once it is synced

    def submit_batch(self) -> None:
        storage, rng = self.storage, self.rng
        batch = storage.new_batch()
        kept: list[tuple[int, Callable[[], None]]] = []
        covered: set[int] = set()  # journals that this batch writes to or waits for
        for _ in range(rng.randrange(1, 5)):
            ledger_id = rng.randrange(1, 1 + self._ledger_count)
            ledger = storage.ledger(ledger_id) or storage.create_ledger(batch, ledger_id, KEY)
            journal = ledger_id % self._journal_count
            covered.add(journal)
            if rng.random() < 0.1:  # a fence on an idle ledger: only ledger data to flush
                storage.stage_fence(batch, ledger)
                kept.append((journal, partial(self.acknowledged.fenced.add, ledger_id)))
                break
            entry_id = ledger.last_entry_id + rng.choice([1, 1, 1, 2])
            if rng.random() < 0.1 and ledger.last_entry_id >= 0:
                entry_id = rng.randrange(ledger.last_entry_id + 1)
            body = body_of(ledger_id, entry_id)
            storage.stage_entry(batch, ledger, entry_id, entry_id - 1, body)
            kept.append((journal, partial(self._keep, (ledger_id, entry_id), body)))
            if rng.random() < 0.2:
                packet = struct.pack(">qq", ledger_id, entry_id) + rng.randbytes(4)
                storage.stage_explicit_lac(batch, ledger, packet)
                self.acknowledged.lac_packets.setdefault(ledger_id, []).append(packet)
                kept.append((journal, partial(self._keep_packet, ledger_id, packet)))
        if self._journal_count > 1 and rng.random() < 0.2:  # a force
            ledger_id = rng.randrange(1, 1 + self._ledger_count)
            batch.await_ledger(ledger_id)
            covered.add(ledger_id % self._journal_count)

        def on_durable(error: BaseException | None) -> None:
            self.replies += 1
            if error is not None:
                self.errors.append(error)
                return
            assert not self.errors, "acknowledged after a failure"
            if not sync:
                self._written += kept
                return
            # Earlier writes to these journals are synced together with the batch.
            for _, keep in kept:
                keep()
            for journal, keep in self._written:
                if journal in covered:
                    keep()
            self._written = [one for one in self._written if one[0] not in covered]

        sync = rng.random() < 0.8
        storage.submit(batch, on_durable, sync=sync)

    def _keep(self, at: tuple[int, int], body: bytes) -> None:
        self.acknowledged.entries[at] = body

    def _keep_packet(self, ledger_id: int, packet: bytes) -> None:
        packets = self.acknowledged.lac_packets[ledger_id]
        if packet in packets:  # unless a later packet was recorded before it
            del packets[: packets.index(packet)]
        self.acknowledged.with_lac.add(ledger_id)


async def work(
    disk: SimulatedDisk,
    acknowledged: AcknowledgedState,
    rng: random.Random,
    batches: int,
    config: StorageConfig = CONFIG,
) -> None:
    """Submit some batches, waiting for some of the replies, with checkpoints between them."""
    journal_count = len(config.journal_directories)
    async with open_storage(disk, config, wall_ms=lambda: 1000) as storage:
        writer = Writer(
            storage,
            acknowledged,
            rng,
            journal_count=journal_count,
            ledger_count=3 if journal_count == 1 else 4,
        )
        for number in range(batches):
            writer.submit_batch()
            if rng.random() < 0.5:
                while writer.replies <= number:
                    await trio.lowlevel.checkpoint()
            if rng.random() < 0.3:
                await storage.flush()
            await storage.wait_capacity()


async def check(disk: SimulatedDisk, acknowledged: AcknowledgedState, config: StorageConfig = CONFIG) -> None:
    """Check that the acknowledged state is present."""
    async with open_storage(disk, config, wall_ms=lambda: 1000) as storage:
        for (ledger_id, entry_id), body in acknowledged.entries.items():
            stored = await storage.read(ledger_id, entry_id)
            assert stored == body, f"entry {ledger_id}:{entry_id} changed"
            record = storage.ledger(ledger_id)
            assert record is not None
            assert record.master_key == KEY
            assert record.last_entry_id >= entry_id
            assert record.lac >= entry_id - 1
            run = await storage.read_batch(ledger_id, entry_id, 3, 1 << 20)
            assert run[0] == body
        for ledger_id in acknowledged.fenced:
            record = storage.ledger(ledger_id)
            assert record is not None
            assert record.fenced, f"ledger {ledger_id} lost its fence"
        for ledger_id in acknowledged.with_lac:
            record = storage.ledger(ledger_id)
            assert record is not None
            assert record.explicit_lac in acknowledged.lac_packets[ledger_id]


async def play(
    seed: int,
    cut_at: int | None,
    *,
    batches: int = 28,
    config: StorageConfig = CONFIG,
    fail_at: int | None = None,
    uneven: bool = False,
    later_config: StorageConfig | None = None,
) -> int:
    """Work until the power is cut, check, cut again during the check, and check twice; return the steps.

    Args:
        fail_at: A step that raises an error; the power is cut later as well.
        uneven: Threads run in random order.
        later_config: The configuration of the last starts, which may have more directories.
    """
    rng = random.Random(seed)
    disk, acknowledged = SimulatedDisk(random.Random(seed) if uneven else None), AcknowledgedState()
    disk.cut_at, disk.fail_at = cut_at, fail_at
    with contextlib.suppress(PowerCutError, StorageFailedError):
        try:
            await work(disk, acknowledged, rng, batches, config)
        except OSError:
            if fail_at is None or disk.steps < fail_at:
                raise
    steps = disk.steps
    after = disk.after_power_cut(rng)
    after.cut_at = rng.randrange(1, 40)
    with contextlib.suppress(PowerCutError, StorageFailedError):
        await check(after, acknowledged, config)
    after = after.after_power_cut(rng)
    for _ in range(2):  # the second time after a clean stop
        await check(after, acknowledged, later_config or config)
    return steps
