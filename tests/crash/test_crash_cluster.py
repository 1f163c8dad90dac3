"""SIGKILL for bookies and writers of a cluster: no acknowledged record is lost, repeated or reordered."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from dlog.cluster import open_local_cluster
from tests.crash.crash_appender import check_log, open_appender

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper, pytest.mark.slow]
TEST_TIMEOUT_S = 240
LOG = "crash"


async def test_bookies_killed_in_turn_and_then_the_writer_lose_nothing(tmp_path: Path) -> None:
    with trio.fail_after(TEST_TIMEOUT_S):
        async with open_local_cluster(tmp_path / "cluster", session_timeout_ms=3000) as cluster:
            async with open_appender(cluster.uri, LOG) as writer:
                await writer.wait_acknowledged(200)
                for index in range(3):
                    cluster.kill(index)
                    # Two of three bookies are an ack quorum.
                    await writer.wait_acknowledged(writer.acknowledged + 200)
                    await cluster.restart(index)
                    await writer.wait_acknowledged(writer.acknowledged + 200)
                acknowledged = await writer.kill()
            async with open_appender(cluster.uri, LOG) as second:
                await second.wait_open()
                assert second.opened_behind is not None
                assert second.opened_behind >= acknowledged
                await second.wait_acknowledged(second.opened_behind + 200)
                acknowledged = await second.kill()
            await check_log(cluster.uri, LOG, acknowledged)


async def test_all_bookies_and_the_writer_killed_at_once_lose_nothing(tmp_path: Path) -> None:
    with trio.fail_after(TEST_TIMEOUT_S):
        async with open_local_cluster(tmp_path / "cluster", session_timeout_ms=3000) as cluster:
            async with open_appender(cluster.uri, LOG) as writer:
                await writer.wait_acknowledged(500)
                for index in range(3):
                    cluster.kill(index)
                acknowledged = await writer.kill()
            async with trio.open_nursery() as nursery:
                for index in range(3):
                    nursery.start_soon(cluster.restart, index)
            async with open_appender(cluster.uri, LOG) as second:
                await second.wait_open()
                assert second.opened_behind is not None
                assert second.opened_behind >= acknowledged
                await second.wait_acknowledged(second.opened_behind + 100)
                acknowledged = await second.kill()
            await check_log(cluster.uri, LOG, acknowledged)
