"""The counters and times of a namespace after known work in a directory."""

# covers: dlog/statistics_names.py

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

import dlog
import dlog.aio
import dlog.blocking
from dlog import statistics_names as names
from dlog.context import EMBEDDED_NAMESPACE_PATH
from dlog.write.log_writer import LogWriter
from ledger.runtime.statistics import names as ledgers
from tests.fakes.log_paths import paths_of

MEASURED = {"statistics": True}


@pytest.fixture
async def bounded() -> AsyncIterator[None]:
    with trio.fail_after(30):
        yield


@pytest.mark.slow
async def test_the_counters_are_those_of_the_work_done(tmp_path: Path, bounded: None) -> None:
    config = dlog.WriterConfig(segment_bytes_max=50, visibility_delay_ms=60_000)
    async with dlog.open_namespace(tmp_path.as_uri()) as namespace:
        async with namespace.open_writer("orders", create=True, config=config) as writer:
            await writer.append(b"x" * 100)
            await writer.append_many([b"y" * 10] * 9)
            await writer.flush()
            busy = namespace.statistics()
        async with namespace.open_reader("orders", follow=False) as reader:
            assert len([record async for record in reader]) == 10
        seen = namespace.statistics()
    counted = seen.counters
    assert busy.counters[names.WRITERS_OPENED] == counted[names.WRITERS_OPENED] == 1
    assert busy.counters[names.RECORDS_SENT] == counted[names.RECORDS_SENT] == 10
    assert counted[names.FLUSHES] == 1
    assert counted[names.READERS_OPENED] == 1
    assert counted[names.RECORDS_READ] == 10
    assert counted[names.ENTRIES_FETCHED] == counted[names.ENTRIES_SENT] == counted[ledgers.ENTRIES_CONFIRMED]
    assert counted[names.BYTES_FETCHED] == counted[names.BYTES_SENT] == counted[ledgers.BYTES_SUBMITTED]
    begun = counted[names.SEGMENTS_BEGUN]
    assert begun == counted[names.SEGMENTS_COMPLETED] == counted[names.SEGMENTS_ROLLED] + 1 > 1
    assert counted[ledgers.LEDGERS_CREATED] == begun
    assert counted[names.SEGMENTS_FAILED] == counted[names.LOCKS_LOST] == 0
    assert seen.gauges[names.WAITING_BYTES] == 0
    assert set(counted) == {*names.COUNTERS, *ledgers.COUNTERS}


@pytest.mark.slow
async def test_without_the_setting_no_time_is_measured(tmp_path: Path, bounded: None) -> None:
    async with dlog.open_namespace(tmp_path.as_uri()) as namespace:
        async with namespace.open_writer("orders", create=True) as writer:
            await writer.append(b"x")
            assert type(writer) is LogWriter
        assert namespace.statistics().histograms == {}


@pytest.mark.slow
async def test_with_the_setting_each_call_is_measured_once(tmp_path: Path, bounded: None) -> None:
    async with dlog.open_namespace(tmp_path.as_uri(), settings=MEASURED) as namespace:
        config = dlog.WriterConfig(segment_bytes_max=50)
        async with namespace.open_writer("orders", create=True, config=config) as writer:
            first = await writer.append(b"0" * 100)
            await writer.append_after(b"1", first)
            await writer.append_once(b"2", txid=writer.last_txid + 1)
            last = (await writer.append_many([b"3"] * 100))[-1]
            await writer.append_many_after([b"4"] * 100, last)
            await writer.flush()
            with pytest.raises(dlog.PositionConflictError):
                await writer.append_after(b"5", first)
        counts = {name: one.count for name, one in namespace.statistics().histograms.items()}
    assert counts[names.APPEND] == 3
    assert counts[names.APPEND_MANY] == 2
    assert counts[names.FLUSH] >= 1
    assert counts[names.LOCK] == counts[names.RECOVER] == 1
    assert counts[names.ROLL] >= 1
    assert set(counts) == {*names.TIMINGS, *ledgers.TIMINGS}


@pytest.mark.slow
async def test_a_writer_that_loses_its_lock_and_is_reopened_is_counted(tmp_path: Path, bounded: None) -> None:
    async with dlog.open_namespace(tmp_path.as_uri()) as namespace:
        async with namespace.open_writer("orders", create=True) as writer:
            await writer.append(b"x")
            lock = paths_of(EMBEDDED_NAMESPACE_PATH, "orders").lock_path
            (member,) = (await namespace.context.store.children(lock)).names
            await namespace.context.store.delete(f"{lock}/{member}")
            await writer._shell.finished.wait()
            await writer.reopen()
            await writer.append(b"y")
        seen = namespace.statistics().counters
    assert seen[names.LOCKS_LOST] == 1
    assert seen[names.WRITERS_OPENED] == 2
    assert seen[names.RECORDS_SENT] >= 2


@pytest.mark.slow
def test_the_blocking_face_counts_and_measures_too(tmp_path: Path) -> None:
    with dlog.blocking.open_namespace(tmp_path.as_uri(), settings=MEASURED) as namespace:
        with namespace.open_writer("orders", create=True) as writer:
            writer.append(b"x")
            writer.append_many([b"y", b"z"])
        seen = namespace.statistics()
    assert seen.counters[names.RECORDS_SENT] == 3
    assert seen.histograms[names.APPEND].count == 1


@pytest.mark.slow
def test_the_face_of_asyncio_counts_and_measures_too(tmp_path: Path) -> None:
    async def main() -> dlog.Statistics:
        async with dlog.aio.open_namespace(tmp_path.as_uri(), settings=MEASURED) as namespace:
            async with namespace.open_writer("orders", create=True) as writer:
                await writer.append(b"x")
            return namespace.statistics()

    seen = asyncio.run(main())
    assert seen.counters[names.RECORDS_SENT] == 1
    assert seen.histograms[names.APPEND].count == 1
