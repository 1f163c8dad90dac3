"""Garbage collection: which ledgers are deleted, and the order of the work of a round."""

# covers: bookie/gc/collector.py

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path

import pytest
import trio

from bookie.disk.fullness import Fullness
from bookie.errors import FormatError, StorageFailedError
from bookie.gc.collector import GarbageCollector, GcConfig, GcRoundResult, dead_ledgers
from bookie.gc.compaction_rules import CompactionConfig, CompactionLevel
from ledger.metadata_store.errors import ConnectionLostError


class Logs:
    """The collector of a directory; it only records the calls."""

    def __init__(self, done: list[str]) -> None:
        self.directory = Path("logs")
        self.done = done
        self.failure: Exception | None = None
        self.unfinished: Exception | None = None

    async def finish_compactions(self) -> None:
        self.done.append("finish")
        if self.unfinished is not None:
            raise self.unfinished

    async def remove_dead(self) -> list[int]:
        self.done.append("remove")
        if self.failure is not None:
            raise self.failure
        return [0]

    async def compact(self, level: CompactionLevel) -> int:
        self.done.append(f"compact {level.value}")
        return 0

    async def fill_reserve(self) -> None:
        pass


class Store:
    """A store that only records the calls."""

    def __init__(self, ledger_ids: list[int]) -> None:
        self.ids = ledger_ids
        self.done: list[str] = []
        self.logs = [Logs(self.done)]

    def ledger_ids(self) -> list[int]:
        return sorted(self.ids)

    async def delete_ledger(self, ledger_id: int) -> None:
        self.ids.remove(ledger_id)
        self.done.append(f"delete {ledger_id}")

    @property
    def collectors(self) -> list[Logs]:
        return self.logs


def collector(store: Store, live: Collection[int] | None = None, **more: object) -> GarbageCollector:
    async def listing(ids: Sequence[int]) -> Collection[int]:
        return store.ids if live is None else live

    return GarbageCollector(store, more.pop("live_ledgers", listing), **more)  # type: ignore[arg-type]


def fullness(is_near: bool, is_full: bool) -> Fullness:
    return Fullness(
        writable=not is_full, high_priority_writable=True, is_near=is_near, used=(1.0 if is_full else 0.5,)
    )


def test_dead_ledgers_are_local_and_not_live() -> None:
    assert dead_ledgers([3, 1, 2], {2, 9}) == [1, 3]
    assert dead_ledgers([], {2}) == []


async def test_a_round_deletes_the_ledgers_that_the_metadata_store_lacks() -> None:
    store = Store([1, 2, 3])

    async def live(ids: Sequence[int]) -> Collection[int]:
        assert list(ids) == [1, 2, 3]
        return {2}

    assert await collector(store, live_ledgers=live).run_round() == GcRoundResult((1, 3), (0,))
    assert store.ids == [2]
    assert store.done == ["finish", "delete 1", "delete 3", "remove"]


async def test_no_ledger_is_deleted_if_the_metadata_store_cannot_be_read() -> None:
    store = Store([1, 2, 3])

    async def live(ids: Sequence[int]) -> Collection[int]:
        raise ConnectionError("session lost")

    with pytest.raises(ConnectionError):
        await collector(store, live_ledgers=live).run_round()
    assert store.ids == [1, 2, 3]
    assert store.done == ["finish"]


async def test_a_ledger_created_during_the_listing_stays() -> None:
    store = Store([1])

    async def live(ids: Sequence[int]) -> Collection[int]:
        store.ids.append(2)
        return set()

    await collector(store, live_ledgers=live).run_round()
    assert store.ids == [2]


async def test_the_loop_survives_a_failed_round_and_ends_with_the_storage(
    autojump_clock: trio.abc.Clock,
) -> None:
    store = Store([1])
    calls = 0

    async def live(ids: Sequence[int]) -> Collection[int]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ConnectionError("session lost")
        store.logs[0].failure = StorageFailedError("disk") if calls == 3 else None
        return {1}

    garbage = collector(store, live_ledgers=live, config=GcConfig(interval_s=10))
    await garbage.run()
    assert (calls, store.done.count("remove")) == (3, 2)
    assert garbage.state.last_failure == "session lost"
    assert trio.current_time() >= 30


async def test_an_outage_of_the_metadata_store_is_one_line_without_a_traceback(
    autojump_clock: trio.abc.Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    store = Store([1])
    calls = 0

    async def live(ids: Sequence[int]) -> Collection[int]:
        nonlocal calls
        calls += 1
        if calls <= 3:
            raise ConnectionLostError("/ledgers")
        store.logs[0].failure = StorageFailedError("disk") if calls == 5 else None
        return {1}

    await collector(store, live_ledgers=live, config=GcConfig(interval_s=10)).run()
    lines = [one for one in caplog.records if "the metadata store" in one.getMessage()]
    assert [(one.levelname, one.exc_info) for one in lines] == [("WARNING", None), ("INFO", None)]
    assert "waits for the metadata store" in lines[0].getMessage()
    assert "the metadata store is back" in lines[1].getMessage()


async def test_a_failure_in_one_directory_stops_no_other() -> None:
    store = Store([1])
    store.logs.append(Logs(store.done))
    store.logs[0].failure = OSError("bad disk")
    garbage = collector(store)
    assert await garbage.run_round() == GcRoundResult((), (0,))
    assert store.done.count("remove") == 2
    assert garbage.state.last_failure == "bad disk"


async def test_a_compaction_that_cannot_be_finished_stops_no_other_work(
    autojump_clock: trio.abc.Clock,
) -> None:
    store = Store([1, 2])
    store.logs.append(Logs(store.done))
    store.logs[0].unfinished = FormatError("a damaged page")
    garbage = collector(store, {1}, config=GcConfig(interval_s=10))
    with trio.move_on_after(1):
        await garbage.run()
    assert store.done == ["finish", "finish"], "both are tried at the start, and the bookie continues"
    assert garbage.state.last_failure == "a damaged page"
    assert await garbage.run_round() == GcRoundResult((2,), (0, 0))
    store.logs[1].unfinished = StorageFailedError("disk")
    with pytest.raises(StorageFailedError):
        await garbage.run_round()
    with trio.fail_after(1):
        await garbage.run()


async def test_interrupted_compactions_are_finished_at_the_start(
    autojump_clock: trio.abc.Clock,
) -> None:
    store = Store([])
    with trio.move_on_after(1):
        await collector(store).run()
    assert store.done == ["finish"]


async def test_compaction_runs_at_its_intervals(autojump_clock: trio.abc.Clock) -> None:
    store = Store([1])
    compaction = CompactionConfig(minor_interval_s=100, major_interval_s=250)
    garbage = collector(store, config=GcConfig(interval_s=50), compaction=compaction)
    with trio.move_on_after(620):
        await garbage.run()
    # Counted from the first round, at 50: minor at 150 and 250, major at 300, and so on.
    assert [what for what in store.done if what.startswith("compact")] == [
        "compact minor", "compact minor", "compact major", "compact minor", "compact minor", "compact major",
    ]  # fmt: skip
    assert (garbage.state.minor_compactions, garbage.state.major_compactions) == (4, 2)


async def test_a_forced_round_begins_at_once(autojump_clock: trio.abc.Clock) -> None:
    store = Store([1])
    garbage = collector(store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(garbage.run)
        await trio.sleep(1)
        garbage.force(minor=True)
        was_forced = garbage.state.is_forced
        await trio.sleep(1)
        assert store.done[-1] == "compact minor"
        assert (was_forced, garbage.state.is_forced) == (True, False)
        garbage.force()
        await trio.sleep(1)
        assert store.done[-1] == "compact major"
        garbage.suspend(major=True)
        garbage.force()
        await trio.sleep(1)
        assert store.done[-1] == "compact minor", "a command without a level respects a suspension"
        garbage.force(major=True)
        await trio.sleep(1)
        assert store.done[-1] == "compact major", "a command with a level does not"
        nursery.cancel_scope.cancel()


async def test_a_full_disk_suspends_compaction_or_forces_it(autojump_clock: trio.abc.Clock) -> None:
    garbage = collector(Store([1]))
    for is_near, is_full, suspended in (
        (True, False, (False, True)),
        (True, True, (True, True)),
        (True, False, (False, True)),
        (False, False, (False, False)),
    ):
        garbage.on_fullness(fullness(is_near, is_full))
        assert garbage.suspended() == suspended
    garbage.suspend(minor=True)
    garbage.on_fullness(fullness(True, True))
    garbage.on_fullness(fullness(False, False))
    assert garbage.suspended() == (True, False), "an operator's suspension stays"
    garbage.resume(minor=True, major=True)
    assert garbage.suspended() == (False, False)

    store = Store([1])
    forcing = collector(store, compaction=CompactionConfig(forces_when_full=True))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(forcing.run)
        await trio.sleep(1)
        forcing.on_fullness(fullness(True, True))
        assert forcing.suspended() == (False, False)
        await trio.sleep(1)
        assert store.done[-1] == "compact major"
        store.done.clear()
        await trio.sleep(601)
        assert store.done[-1] == "compact major", "again while the disk is full"
        forcing.on_fullness(fullness(False, False))
        store.done.clear()
        await trio.sleep(601)
        assert store.done[-1] == "remove"
        nursery.cancel_scope.cancel()


async def test_over_replicated_ledgers_are_deleted_once_an_interval(
    autojump_clock: trio.abc.Clock,
) -> None:
    store = Store([1, 2])
    calls: list[float] = []

    async def delete_over_replicated(
        ids: Sequence[int], delete: Callable[[int], Awaitable[None]]
    ) -> Sequence[int]:
        calls.append(trio.current_time())
        if 2 in ids:
            await delete(2)
        return [2]

    config = GcConfig(interval_s=10, over_replicated_interval_s=100)
    start = trio.current_time()
    with trio.move_on_after(255):
        await collector(store, config=config, delete_over_replicated=delete_over_replicated).run()
    assert [at - start for at in calls] == [110, 210]
    assert store.ids == [1]
    calls.clear()
    with trio.move_on_after(300):
        await collector(
            store,
            config=GcConfig(interval_s=10, over_replicated_interval_s=0),
            delete_over_replicated=delete_over_replicated,
        ).run()
    assert calls == []
