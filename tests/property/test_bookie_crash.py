"""Power cuts at every write, sync, rename and unlink of a bookie's storage, on a disk that forgets."""

from __future__ import annotations

import contextlib
import random

import attrs
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from bookie.errors import StorageFailedError
from bookie.index_kinds import IndexConfig, IndexKind
from bookie.page_index import PageIndexConfig
from bookie.storage import open_storage
from tests.property.bookie_work import CONFIG, KEY, Promises, body_of, check, play
from tests.property.forgetful_disk import PowerCutError, World


async def test_nothing_acknowledged_is_lost_wherever_the_power_is_cut() -> None:
    steps = await play(1, None)
    assert steps > 100
    for cut_at in range(1, steps + 1):
        await play(1, cut_at)


async def test_nothing_acknowledged_is_lost_with_an_index_of_pages() -> None:
    pages = PageIndexConfig(page_bytes=512, pages_max=4, open_files_max=2)
    config = attrs.evolve(CONFIG, index=IndexConfig(kind=IndexKind.PAGES, pages=pages))
    steps = await play(1, None, config=config, runs=16)
    for cut_at in range(1, steps + 1):
        await play(1, cut_at, config=config, runs=16)


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
