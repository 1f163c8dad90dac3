"""A rolling restart of all bookies under a writer: no append fails, and nothing acknowledged is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

import dlog
from dlog.cluster import open_local_cluster

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper, pytest.mark.slow]
TEST_TIMEOUT_S = 180
APPENDS_BETWEEN = 20


async def test_a_writer_goes_on_while_each_bookie_is_restarted_in_turn(tmp_path: Path) -> None:
    acknowledged: list[bytes] = []
    stop = trio.Event()

    async def write(writer: dlog.LogWriter) -> None:
        while not stop.is_set():
            payload = b"%d" % len(acknowledged)
            await writer.append(payload)
            acknowledged.append(payload)

    async def appended_since(count: int) -> None:
        while len(acknowledged) < count + APPENDS_BETWEEN:  # noqa: ASYNC110
            await trio.sleep(0.01)

    with trio.fail_after(TEST_TIMEOUT_S):
        async with (
            open_local_cluster(tmp_path / "cluster", session_timeout_ms=3000) as cluster,
            dlog.open_namespace(cluster.uri) as namespace,
        ):
            await namespace.create_log("orders")
            async with namespace.open_writer("orders") as writer, trio.open_nursery() as nursery:
                nursery.start_soon(write, writer)
                for index in range(3):
                    await appended_since(len(acknowledged))
                    assert await cluster.terminate(index)
                    await appended_since(len(acknowledged))  # two of three acknowledge
                    await cluster.restart(index)
                await appended_since(len(acknowledged))
                stop.set()
            async with namespace.open_reader("orders") as reader:
                assert [(await anext(reader)).payload for _ in acknowledged] == acknowledged
