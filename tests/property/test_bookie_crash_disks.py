"""Power cuts and failing writes of a bookie over several journals and ledger directories.

``DLOG_CRASH_SEEDS`` raises the number of works that are cut at each of their steps; 1 is played by default.
"""

from __future__ import annotations

import contextlib
import os
import random
from pathlib import Path

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from bookie.errors import StartError, StorageFailedError
from bookie.journal.format import NO_MARK, JournalMark, decode_mark, is_closed_mark, journal_name
from bookie.storage.opening import open_storage
from tests.effort import examples, sampled
from tests.fakes.bookie_work import KEY, AcknowledgedState, body_of, check, config_over, play, work
from tests.fakes.simulated_disk import PowerCutError, SimulatedDisk
from tests.strategies import SEEDS

CUT_SEEDS = range(int(os.environ.get("DLOG_CRASH_SEEDS", "1")))
TWO_BY_TWO = config_over(2, 2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", CUT_SEEDS)
async def test_with_two_journals_and_directories_nothing_is_lost_wherever_the_power_is_cut(seed: int) -> None:
    steps = await play(seed, None, batches=14, config=TWO_BY_TWO, uneven=True)
    assert steps > 200
    for cut_at in sampled(range(1, steps + 1)):
        await play(seed, cut_at, batches=14, config=TWO_BY_TWO, uneven=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", CUT_SEEDS)
async def test_an_error_at_any_step_ends_in_a_stop_or_in_nothing_lost(seed: int) -> None:
    """docs/storage-tests.md 6: errors on every write, sync, rename and unlink of each kind of file."""
    steps = await play(seed, None, batches=10, config=TWO_BY_TWO, uneven=True)
    for fail_at in sampled(range(1, steps + 1)):
        await play(seed, None, batches=10, config=TWO_BY_TWO, uneven=True, fail_at=fail_at)


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(
    seed=SEEDS,
    cut_at=st.integers(1, 700),
    journals=st.integers(1, 3),
    ledgers=st.integers(1, 3),
    more=st.tuples(st.integers(0, 1), st.integers(0, 2)),
)
def test_nothing_acknowledged_is_lost_over_any_directories_and_when_some_are_added(
    seed: int, cut_at: int, journals: int, ledgers: int, more: tuple[int, int]
) -> None:
    async def main() -> None:
        await play(
            seed,
            cut_at,
            batches=20,
            config=config_over(journals, ledgers),
            uneven=True,
            later_config=config_over(journals + more[0], ledgers + more[1]),
        )

    trio.run(main)


class MarkWatcher(SimulatedDisk):
    """Looks at each mark in the moment it takes its name."""

    def __init__(self, turns: random.Random) -> None:
        super().__init__(turns)
        self.seen: dict[Path, tuple[JournalMark, bool]] = {}  # the mark, and whether it is closed

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        if new.name.startswith("lastMark"):
            data = self.names[new].read(100, 0)
            mark, is_closed = decode_mark(data), is_closed_mark(data)
            assert (mark, is_closed) > self.seen.get(new, (NO_MARK, False)), f"{new} says nothing new"
            self.seen[new] = mark, is_closed
            journal = Path(f"/j{new.name.removeprefix('lastMark.')}/current")
            assert journal / journal_name(mark.journal_id) in self.names, f"{new} names a file that is gone"


@pytest.mark.slow
async def test_no_mark_goes_back_and_each_names_a_file_that_is_there() -> None:
    """docs/storage-tests.md 4: whatever the threads' turns; apache/bookkeeper#4105, #4740."""
    for seed in range(12):
        disk = MarkWatcher(random.Random(seed))
        await work(disk, AcknowledgedState(), random.Random(seed), 20, TWO_BY_TWO)
        assert len(disk.seen) == 4


async def test_data_is_synced_before_the_index_that_before_the_marks_and_they_before_journals_go() -> None:
    """docs/storage-tests.md 14, by a trace of everything that is done to the disk."""
    disk = SimulatedDisk()
    await work(disk, AcknowledgedState(), random.Random(7), 40, TWO_BY_TWO)
    dirty: set[str] = set()
    unsynced_marks: set[str] = set()
    marks = retired = 0
    for what in disk.trace:
        verb, _, rest = what.partition(" /")
        path = f"/{rest}".split()[0]
        directory, _, name = path.rpartition("/")
        if name.endswith(".log") and verb in ("write", "gathering write"):
            dirty.add(path)
        elif name.endswith(".log") and verb == "sync":
            dirty.discard(path)
        elif verb == "index write":
            # What a start writes first says only that the index is complete.
            assert not any(one.startswith(f"{directory}/") and one.endswith(".log") for one in dirty), what
            dirty.add(path)
        elif verb == "index sync":
            dirty.discard(path)
        elif verb == "rename" and name.startswith("lastMark"):
            assert not dirty, what
            unsynced_marks.add(directory)
            marks += 1
        elif verb == "sync directory":
            unsynced_marks.discard(path)
        elif name.endswith(".txn") and verb in ("rename", "unlink"):
            assert not unsynced_marks, what
            retired += 1
    assert marks > 20
    assert retired > 2


@pytest.mark.slow
async def test_a_long_journal_is_replayed_into_a_small_cache_and_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """docs/storage-tests.md 13: nothing is rejected, and replaying twice changes nothing."""
    disk = SimulatedDisk()
    config = attrs.evolve(TWO_BY_TWO, write_cache_bytes_max=4 << 20)
    written = 0

    def on_durable(error: BaseException | None) -> None:
        nonlocal written
        assert error is None
        written += 1

    acknowledged = AcknowledgedState()
    async with open_storage(disk, config, wall_ms=lambda: 1000) as storage:
        for ledger_id in range(1, 5):
            batch = storage.new_batch()
            ledger = storage.create_ledger(batch, ledger_id, KEY)
            for entry_id in range(100):
                body = body_of(ledger_id, entry_id)
                storage.stage_entry(batch, ledger, entry_id, entry_id - 1, body)
                acknowledged.entries[ledger_id, entry_id] = body
            storage.submit(batch, on_durable)
        while written < 4:
            await trio.lowlevel.checkpoint()
        disk.is_off = True
    assert sum(map(len, acknowledged.entries.values())) > 8 * TWO_BY_TWO.write_cache_bytes_max
    disk = disk.after_power_cut(random.Random(0))
    for seed in range(3):
        await check(disk, acknowledged, TWO_BY_TWO)
        disk = disk.after_power_cut(random.Random(seed))
        for path in [path for path in disk.names if path.name.startswith("lastMark")]:
            del disk.names[path]  # so that all is replayed again
            disk.sync_directory(path.parent)


@pytest.mark.slow
async def test_a_start_over_lost_journals_can_be_begun_again_wherever_the_power_is_cut() -> None:
    config = attrs.evolve(TWO_BY_TWO, accepts_losses=True)

    async def survived(cut_at: int | None) -> SimulatedDisk:
        """Both journals are lost after all was flushed; a start over empty ones, cut at a step."""
        rng = random.Random(cut_at or 0)
        disk, acknowledged = SimulatedDisk(), AcknowledgedState()
        await work(disk, acknowledged, random.Random(3), 10, TWO_BY_TWO)
        marks = {path: disk.names[path].read(100, 0) for path in disk.names if "lastMark" in path.name}
        for path in [path for path in disk.names if path.is_relative_to("/j0") or path.is_relative_to("/j1")]:
            del disk.names[path]
        disk.steps, disk.cut_at = 0, cut_at
        with contextlib.suppress(PowerCutError, StorageFailedError):
            await check(disk, acknowledged, config)
        if cut_at is None:
            return disk
        for number in range(3):
            disk = disk.after_power_cut(rng)
            for path, mark in marks.items():
                assert decode_mark(disk.names[path].read(100, 0)) >= decode_mark(mark), "a mark goes back"
            # What serves at last is an ordinary bookie.
            await check(disk, acknowledged, config if number < 2 else TWO_BY_TWO)
        return disk

    for cut_at in sampled(range(1, (await survived(None)).steps + 1)):
        await survived(cut_at)


async def test_a_wiped_ledger_directory_is_noticed_without_a_cookie() -> None:
    disk, acknowledged = SimulatedDisk(), AcknowledgedState()
    await work(disk, acknowledged, random.Random(3), 10, TWO_BY_TWO)
    for path in [path for path in disk.names if path.is_relative_to("/l1")]:
        del disk.names[path]
    disk.maps = {path: state for path, state in disk.maps.items() if not path.is_relative_to("/l1")}
    with pytest.raises(StartError, match="wiped"):
        await check(disk, acknowledged, TWO_BY_TWO)
