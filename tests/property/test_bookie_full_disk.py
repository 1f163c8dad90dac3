"""A bookie on a full disk: it starts, as often as it must, serves what it has, and loses nothing.

Source: docs/storage-tests.md 15; apache/bookkeeper#3150.
"""

from __future__ import annotations

import itertools
import random
from contextlib import nullcontext, suppress
from functools import partial
from unittest import mock

import attrs
import pytest
import trio

from bookie.errors import StorageFailedError
from bookie.journal import replay
from bookie.storage.config import StorageConfig
from bookie.storage.opening import open_storage
from bookie.storage.storage import Storage
from tests.effort import IS_SAMPLE, sampled
from tests.fakes.bookie_work import CONFIG, AcknowledgedState, check, config_over, work
from tests.fakes.simulated_disk import PowerCutError, SimulatedDisk
from tests.property.test_hostile_bookies import again, run_case


async def fence(storage: Storage, ledger_id: int) -> None:
    """What a read-only bookie still has to write."""
    answered = trio.Event()
    errors: list[BaseException | None] = []

    def on_durable(error: BaseException | None) -> None:
        errors.append(error)
        answered.set()

    ledger = storage.ledger(ledger_id)
    assert ledger is not None
    batch = storage.new_batch()
    storage.stage_fence(batch, ledger)
    storage.submit(batch, on_durable)
    await answered.wait()
    assert errors == [None]


@pytest.mark.slow
@pytest.mark.parametrize("config", [CONFIG, config_over(2, 2)], ids=["one disk", "several"])
@pytest.mark.parametrize("spares", [0, 1])
async def test_a_start_succeeds_where_every_allocation_fails_however_often(
    config: StorageConfig, spares: int
) -> None:
    config = attrs.evolve(config, journal=attrs.evolve(config.journal, spare_files_max=spares))
    disk, acknowledged = SimulatedDisk(), AcknowledgedState()
    await work(disk, acknowledged, random.Random(1), 30, config)
    disk.capacity_bytes = 0
    for _ in range(6):
        await check(disk, acknowledged, config)


@pytest.mark.slow
@pytest.mark.parametrize("config", [CONFIG, config_over(2, 2)], ids=["one disk", "several"])
async def test_power_cuts_on_a_full_disk_do_not_use_up_the_reserve(config: StorageConfig) -> None:
    """At any step of a start: the mark is overwritten then, and may be torn."""
    for seed in range(3):
        rng = random.Random(seed)
        disk, acknowledged = SimulatedDisk(), AcknowledgedState()
        await work(disk, acknowledged, rng, 30, config)
        disk.capacity_bytes = 0
        for cut_at in sampled(range(1, 30)):
            disk = disk.after_power_cut(rng)
            disk.cut_at = cut_at
            try:
                await check(disk, acknowledged, config)
            except (OSError, StorageFailedError):
                assert disk.is_off, "the power was cut"
        await check(disk.after_power_cut(rng), acknowledged, config)


ROOM_BYTES = 48 << 10  # for some pieces: the rest of the journal needs what the first ones gave back


@pytest.mark.slow
@pytest.mark.parametrize("config", [CONFIG, config_over(2, 2)], ids=["one disk", "several"])
async def test_wherever_the_power_is_cut_while_a_journal_gives_its_space_back_nothing_is_lost(
    config: StorageConfig,
) -> None:
    for seed in range(2):
        rng = random.Random(seed)
        work_steps = rng.randrange(100, 200)
        for cut_at in itertools.count(1 + seed, 8 if IS_SAMPLE else 2):
            disk, acknowledged = SimulatedDisk(), AcknowledgedState()
            disk.cut_at = work_steps
            with suppress(PowerCutError, StorageFailedError):
                await work(disk, acknowledged, random.Random(seed), 30, config)
            disk = disk.after_power_cut(rng)
            disk.capacity_bytes, disk.cut_at = disk.used_bytes() + ROOM_BYTES, cut_at
            with suppress(PowerCutError, StorageFailedError):
                await check(disk, acknowledged, config)
            was_cut = disk.is_off
            disk = disk.after_power_cut(rng)
            disk.capacity_bytes = disk.used_bytes() + ROOM_BYTES
            await check(disk, acknowledged, config)
            if not was_cut:
                break
        assert cut_at > 20, "there was something to flush"


async def test_a_fence_is_taken_on_a_full_disk_for_as_long_as_the_reserve_lasts() -> None:
    disk, acknowledged = SimulatedDisk(), AcknowledgedState()
    await work(disk, acknowledged, random.Random(1), 30)
    disk.capacity_bytes = 0
    async with open_storage(disk, CONFIG, wall_ms=lambda: 1000) as storage:
        await fence(storage, 1)
        disk.is_off = True
    # What it holds has to be flushed at the next start, which takes space: as soon as there is some, it is.
    disk = disk.after_power_cut(random.Random(0))
    disk.capacity_bytes = None
    acknowledged.fenced.add(1)
    await check(disk, acknowledged)


@pytest.mark.slow
async def test_a_disk_that_fills_up_stops_the_bookie_and_loses_nothing() -> None:
    for capacity_kib in range(100, 400, 20):
        disk, acknowledged = SimulatedDisk(), AcknowledgedState()
        disk.capacity_bytes = capacity_kib << 10
        try:
            await work(disk, acknowledged, random.Random(capacity_kib), 40)
        except (OSError, StorageFailedError):
            pass
        disk = disk.after_power_cut(random.Random(1))
        disk.capacity_bytes = None
        await check(disk, acknowledged)


def sizes(disk: SimulatedDisk) -> int:
    return sum(inode.size for inode in disk.names.values())


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start on a full disk flushes group by group. Otherwise all of these journals were one piece."""
    monkeypatch.setattr(replay, "PIECE_BYTES", PIECE_BYTES)


PIECE_BYTES = 2000
FIRST_STEP = 10  # before it a start has made nothing
OPENINGS = 20
CONFIGS = [CONFIG, config_over(2, 2)]


async def work_until_full(config: StorageConfig, full_at: int) -> tuple[SimulatedDisk, AcknowledgedState]:
    """Work on a disk that has no space from a step on. The same work for each step."""
    disk, acknowledged = SimulatedDisk(), AcknowledgedState()
    disk.full_at = full_at
    with suppress(OSError, StorageFailedError):
        await work(disk, acknowledged, random.Random(7), 30, config)
    return disk, acknowledged


async def measured(config: StorageConfig) -> tuple[int, int]:
    """The bytes of a fresh directory with the same records, and the steps of the work."""
    disk = SimulatedDisk()
    await work(disk, AcknowledgedState(), random.Random(7), 30, config)
    return sizes(disk), disk.steps


async def open_often(
    config: StorageConfig, full_at: int, fresh_bytes: int, *, gives_back: bool = True
) -> None:
    """Fill the disk at this step, free it in small steps, open it each time, and measure it at the end."""
    rng = random.Random(full_at)
    disk, acknowledged = await work_until_full(config, full_at)
    disk.can_give_back = gives_back
    for attempt in range(OPENINGS):
        disk = disk.after_power_cut(rng)
        disk.capacity_bytes = disk.used_bytes() + (attempt % 4 == 0) * 2048
        # Without space for the index nothing was acknowledged.
        with nullcontext() if acknowledged.entries else suppress(OSError):
            await check(disk, acknowledged, config)
    disk = disk.after_power_cut(rng)
    disk.capacity_bytes = None
    await check(disk, acknowledged, config)
    async with open_storage(disk, config, wall_ms=lambda: 1000) as storage:
        await storage.remove_dead_logs()
    assert sizes(disk) <= 1.3 * fresh_bytes, f"{sizes(disk)} bytes; a fresh directory has {fresh_bytes}"


@pytest.mark.slow
@pytest.mark.parametrize("gives_back", [True, False])
@pytest.mark.parametrize("config", CONFIGS, ids=["one disk", "several"])
async def test_full_at_any_write_freed_in_small_steps_and_opened_twenty_times_nothing_grows(
    config: StorageConfig, gives_back: bool
) -> None:
    """A sample of the writes; ``sweep`` tries each."""
    fresh_bytes, steps = await measured(config)
    chosen = random.Random(steps).sample(range(FIRST_STEP, steps), 12)
    for full_at in sampled(chosen, 2):
        await open_often(config, full_at, fresh_bytes, gives_back=gives_back)


_FRAMES = 150  # of a sweep's count, for one write


def sweep(seed: int, count: int) -> list[str]:
    """Full at each write in turn, of one disk and of several; the reports of what failed.

    With a count of 300,000 one turn tries every write.
    """
    with mock.patch.object(replay, "PIECE_BYTES", PIECE_BYTES):
        return _sweep(seed, count)


def _sweep(seed: int, count: int) -> list[str]:
    reports = []
    cases = max(1, count // _FRAMES)
    for number in range(seed * cases, (seed + 1) * cases):
        turn, config = number // len(CONFIGS), CONFIGS[number % len(CONFIGS)]
        fresh_bytes, steps = trio.run(measured, config)
        full_at = FIRST_STEP + turn % (steps - FIRST_STEP)
        gives_back = turn // (steps - FIRST_STEP) % 2 == 0
        case = partial(open_often, config, full_at, fresh_bytes, gives_back=gives_back)
        report = run_case(case)
        if report is not None:
            report = f"full at step {full_at}, {len(config.ledger_directories)} directories: {report}"
            reports.append(again(__name__, seed, count, report))
    return reports
