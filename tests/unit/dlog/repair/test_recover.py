"""Logs whose writer died: recovery completes its segments, and writes no record."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import trio.testing

import dlog
from tests.fakes.dict_bookies import DictCluster, open_cluster
from tests.fakes.dict_namespace import Opened, open_on, read_all, write_segments
from tests.unit.dlog.repair.test_check_and_repair import kinds, leave_in_progress


@pytest.fixture
async def cluster() -> AsyncIterator[DictCluster]:
    async with open_cluster() as opened:
        yield opened


RECOVERS: list[Callable[[Opened], Awaitable[object]]] = [
    lambda opened: opened.namespace.repair.recover("log"),
    lambda opened: opened.namespace.repair.apply("log"),
]


@pytest.mark.parametrize("recover", RECOVERS, ids=["recover", "repair"])
async def test_a_dead_writer_s_segment_is_completed_without_a_record(
    cluster: DictCluster, recover: Callable[[Opened], Awaitable[object]]
) -> None:
    async with open_on(cluster) as opened:
        await write_segments(opened.namespace, "log", 1)
        ledger_id = await leave_in_progress(opened, 2, b"x", first_txid=5)
        await recover(opened)
        segment = (await opened.namespace.segments("log"))[-1]
        assert (segment.ledger_id, segment.is_completed, segment.record_count) == (ledger_id, True, 1)
        metadata = await opened.client.metadata(ledger_id)
        assert (metadata.is_closed, metadata.last_entry_id) == (True, 0)
        assert len(await opened.namespace.segments("log")) == 2
        assert await read_all(opened.namespace, "log") == [b"0", b"x"]
        assert await opened.namespace.repair.recover("log") == []


async def test_a_recovery_refuses_a_log_with_a_writer(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened, opened.namespace.open_writer("log", create=True) as writer:
        await writer.append(b"0")
        with pytest.raises(dlog.LogLockedError):
            await opened.namespace.repair.recover("log")
        await writer.append(b"1")
        assert await read_all(opened.namespace, "log")


@pytest.mark.slow
async def test_a_recovery_that_is_cut_anywhere_is_finished_by_the_next(
    autojump_clock: trio.testing.MockClock,
) -> None:
    for cut in range(20):
        async with open_cluster() as cluster:
            async with open_on(cluster) as opened:
                await write_segments(opened.namespace, "log", 1)
                await leave_in_progress(opened, 2, b"x", first_txid=5)
                await leave_in_progress(opened, 3, None, first_txid=6)
                opened.store.writes_left = cut
                try:
                    await opened.namespace.repair.recover("log")
                except dlog.LogUnavailableError:
                    pass
                is_finished = not opened.store.is_cut
            async with open_on(cluster) as after:
                await after.namespace.repair.recover("log")
                assert await kinds(after) == []
                assert await read_all(after.namespace, "log") == [b"0", b"x"]
        if is_finished:
            return
    raise AssertionError("the recovery never ended")
