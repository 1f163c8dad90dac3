"""A bookie on a full disk: it starts, as often as it must, serves what it has, and loses nothing.

Source: reference test 15; apache/bookkeeper#3150.
"""

from __future__ import annotations

import random

import attrs
import pytest
import trio

from bookie.errors import StorageFailedError
from bookie.storage import Storage, StorageConfig, open_storage
from tests.property.bookie_work import CONFIG, Promises, check, config_over, work
from tests.property.forgetful_disk import World


async def fence(storage: Storage, ledger_id: int) -> None:
    """What a read-only bookie still has to write."""
    answered = trio.Event()
    errors: list[BaseException | None] = []

    def on_durable(error: BaseException | None) -> None:
        errors.append(error)
        answered.set()

    ledger = storage.ledger(ledger_id)
    assert ledger is not None
    storage.stage_fence(ledger)
    storage.submit(on_durable)
    await answered.wait()
    assert errors == [None]


@pytest.mark.parametrize("config", [CONFIG, config_over(2, 2)], ids=["one disk", "several"])
@pytest.mark.parametrize("spares", [0, 1])
async def test_a_start_succeeds_where_every_allocation_fails_however_often(
    config: StorageConfig, spares: int
) -> None:
    config = attrs.evolve(config, journal=attrs.evolve(config.journal, spare_files_max=spares))
    world, promises = World(), Promises()
    await work(world, promises, random.Random(1), 30, config)
    world.capacity_bytes = 0
    for _ in range(6):
        await check(world, promises, config)


@pytest.mark.parametrize("config", [CONFIG, config_over(2, 2)], ids=["one disk", "several"])
async def test_power_cuts_on_a_full_disk_do_not_use_up_the_reserve(config: StorageConfig) -> None:
    """At any step of a start: the mark is overwritten then, and may be torn."""
    for seed in range(3):
        rng = random.Random(seed)
        world, promises = World(), Promises()
        await work(world, promises, rng, 30, config)
        world.capacity_bytes = 0
        for cut_at in range(1, 30):
            world = world.after_power_cut(rng)
            world.cut_at = cut_at
            try:
                await check(world, promises, config)
            except (OSError, StorageFailedError):
                assert world.is_off, "the power was cut"
        await check(world.after_power_cut(rng), promises, config)


async def test_a_fence_is_taken_on_a_full_disk_for_as_long_as_the_reserve_lasts() -> None:
    world, promises = World(), Promises()
    await work(world, promises, random.Random(1), 30)
    world.capacity_bytes = 0
    async with open_storage(world, CONFIG, wall_ms=lambda: 1000) as storage:
        await fence(storage, 1)
        world.is_off = True
    # What it holds has to be flushed at the next start, which takes space: as soon as there is some, it is.
    world = world.after_power_cut(random.Random(0))
    world.capacity_bytes = None
    promises.fenced.add(1)
    await check(world, promises)


async def test_a_disk_that_fills_up_stops_the_bookie_and_loses_nothing() -> None:
    for capacity_kib in range(100, 400, 20):
        world, promises = World(), Promises()
        world.capacity_bytes = capacity_kib << 10
        try:
            await work(world, promises, random.Random(capacity_kib), 40)
        except (OSError, StorageFailedError):
            pass
        world = world.after_power_cut(random.Random(1))
        world.capacity_bytes = None
        await check(world, promises)
