"""Power cuts at every write, sync, rename and unlink of a bookie's storage, on a disk that forgets."""

from __future__ import annotations

import contextlib
import random

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from bookie.errors import StorageFailedError
from bookie.index.index_factory import IndexConfig, IndexKind
from bookie.index.page_cache import PageIndexConfig
from bookie.journal.format import journal_id_of
from bookie.journal.last_mark import LastMarks, greatest_marks
from bookie.storage.config import CURRENT
from bookie.storage.opening import open_storage
from tests.effort import examples, sampled
from tests.fakes.bookie_work import CONFIG, KEY, AcknowledgedState, body_of, check, play, work
from tests.fakes.simulated_disk import PowerCutError, SimulatedDisk
from tests.strategies import SEEDS


@pytest.mark.slow
async def test_nothing_acknowledged_is_lost_wherever_the_power_is_cut() -> None:
    steps = await play(1, None)
    assert steps > 100
    for cut_at in sampled(range(1, steps + 1)):
        await play(1, cut_at)


@pytest.mark.slow
async def test_nothing_acknowledged_is_lost_with_an_index_of_pages() -> None:
    pages = PageIndexConfig(page_bytes=512, pages_max=4, open_files_max=2)
    config = attrs.evolve(CONFIG, index=IndexConfig(kind=IndexKind.PAGES, pages=pages))
    steps = await play(1, None, config=config, batches=16)
    for cut_at in sampled(range(1, steps + 1)):
        await play(1, cut_at, config=config, batches=16)


def remove_closed_journals(disk: SimulatedDisk) -> bool:
    """Remove the journal files that a closed mark makes needless; True if there was such a mark."""
    directories = [path / CURRENT for path in CONFIG.ledger_directories]
    marks = LastMarks(disk, directories, 1)
    (mark,) = greatest_marks(marks.read())
    if marks.closed((mark,)) != [True]:
        return False
    journals = CONFIG.journal_directories[0] / CURRENT
    for name in disk.list_directory(journals):
        if (journal_id := journal_id_of(name)) is not None and journal_id <= mark.journal_id:
            disk.unlink(journals / name)
    disk.sync_directory(journals)
    return True


@pytest.mark.slow
async def test_a_journal_closed_in_order_is_not_needed_wherever_the_power_is_cut() -> None:
    """Before the closing, at each step of it, and at each step of a start without the journal."""
    found = 0
    steps = await play(2, None, batches=12)
    for cut_at in sampled(range(1, steps + 1)):
        rng = random.Random(cut_at)
        disk, acknowledged = SimulatedDisk(), AcknowledgedState()
        disk.cut_at = cut_at
        with contextlib.suppress(PowerCutError, StorageFailedError):
            await work(disk, acknowledged, random.Random(2), 12)
        for _ in range(4):
            disk = disk.after_power_cut(rng)
            found += remove_closed_journals(disk)
            disk.cut_at = disk.steps + rng.randrange(1, 60)
            with contextlib.suppress(PowerCutError, StorageFailedError):
                await check(disk, acknowledged)
                await work(disk, acknowledged, rng, 2)
        disk = disk.after_power_cut(rng)
        await check(disk, acknowledged)
        assert remove_closed_journals(disk), "the check has closed it in order"
        await check(disk, acknowledged)
    assert found > 3


async def test_every_acknowledgement_is_covered_by_a_sync_made_after_its_run_was_submitted() -> None:
    """apache/bookkeeper#3979: objects that remembered an earlier flush made the journal skip syncs."""
    disk = SimulatedDisk()
    async with open_storage(disk, CONFIG, wall_ms=lambda: 1000) as storage:
        batch = storage.new_batch()
        ledger = storage.create_ledger(batch, 1, KEY)
        answered: list[int] = []
        for entry_id in range(200):
            body = body_of(1, entry_id)
            storage.stage_entry(batch, ledger, entry_id, -1, body)

            def on_durable(
                error: BaseException | None,
                entry_id: int = entry_id,
                body: bytes = body,
                at: int = disk.durable_writes,
            ) -> None:
                assert error is None
                assert disk.durable_writes > at
                journals = [inode for path, inode in disk.durable_names.items() if path.suffix == ".txn"]
                assert any(body in b"".join(v for _, v in sorted(i.durable.items())) for i in journals)
                answered.append(entry_id)

            storage.submit(batch, on_durable)
            batch = storage.new_batch()
            if entry_id % 7 == 0:
                while len(answered) <= entry_id:
                    await trio.lowlevel.checkpoint()
            await storage.wait_capacity()
    assert answered == list(range(200))


@pytest.mark.slow
async def test_deferred_runs_are_synced_before_the_journal_goes_on_in_the_next_file() -> None:
    disk, answered = SimulatedDisk(), 0
    with contextlib.suppress(PowerCutError, StorageFailedError):
        async with open_storage(disk, CONFIG, wall_ms=lambda: 1000) as storage:
            batch = storage.new_batch()
            ledger = storage.create_ledger(batch, 1, KEY)

            def on_durable(error: BaseException | None) -> None:
                nonlocal answered
                assert error is None
                answered += 1

            for entry_id in range(20):  # more than a file holds
                storage.stage_entry(batch, ledger, entry_id, -1, body_of(1, entry_id))
                storage.submit(batch, on_durable, sync=False)
                batch = storage.new_batch()
                while answered <= entry_id:
                    await trio.lowlevel.checkpoint()
            storage.submit(batch, on_durable)
            while answered <= 20:
                await trio.lowlevel.checkpoint()
            disk.is_off = True
    acknowledged = AcknowledgedState({(1, entry_id): body_of(1, entry_id) for entry_id in range(20)})
    for seed in range(20):
        await check(disk.after_power_cut(random.Random(seed)), acknowledged)


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(seed=SEEDS, cut_at=st.integers(1, 500))
def test_nothing_acknowledged_is_lost_under_any_work(seed: int, cut_at: int) -> None:
    trio.run(play, seed, cut_at)
