"""A default cluster of three, of which one bookie is killed: writers continue, new logs are written, and the
writers roll to a full ensemble when it is back. What was written meanwhile is healed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import trio

import dlog
from dlog.cluster import open_local_cluster
from ledger.replication_asked import AskedReplication

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper, pytest.mark.slow]
TEST_TIMEOUT_S = 180


async def test_one_of_three_is_killed_and_comes_back(tmp_path: Path) -> None:
    acknowledged: list[bytes] = []
    stop = trio.Event()

    async def write(writer: dlog.LogWriter) -> None:
        while not stop.is_set():
            payload = b"%d" % len(acknowledged)
            await writer.append(payload)
            acknowledged.append(payload)

    async def appended_more() -> None:
        enough = len(acknowledged) + 20
        while len(acknowledged) < enough:  # noqa: ASYNC110
            await trio.sleep(0.01)

    async def degraded(namespace: dlog.Namespace, log: str) -> list[AskedReplication | None]:
        segments = await namespace.segments(log)
        ledgers = [await namespace.context.client.metadata(each.ledger_id) for each in segments]
        return [AskedReplication.of(each.custom) for each in ledgers]

    with trio.fail_after(TEST_TIMEOUT_S):
        async with (
            open_local_cluster(tmp_path / "cluster", session_timeout_ms=3000) as cluster,
            dlog.open_namespace(cluster.uri) as namespace,
            namespace.open_writer("orders", create=True) as writer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(write, writer)
            await appended_more()
            cluster.kill(1)
            await appended_more()
            async with namespace.open_writer("at-once", create=True) as other:
                await other.append(b"one")  # the cluster has not noticed yet
            while len(namespace.context.client.membership.writable) == 3:  # noqa: ASYNC110
                await trio.sleep(0.05)
            await appended_more()
            async with namespace.open_writer("new", create=True) as other:
                await other.append(b"one")
                assert await degraded(namespace, "new") == [AskedReplication(3, 3, 2)]
                assert namespace.statistics().gauges["dlog_degraded_segments"] == 1
                await cluster.restart(1)
                while len(await namespace.segments("new")) == 1:  # noqa: ASYNC110
                    await trio.sleep(0.05)
                await other.append(b"two")
                assert await degraded(namespace, "new") == [AskedReplication(3, 3, 2), None]
            healing = [
                sys.executable,
                "-m",
                "dlog.cli.main",
                "log",
                "heal",
                "new",
                "--uri",
                cluster.uri,
                "--json",
            ]
            done = await trio.run_process(healing, capture_stdout=True)
            (healed,) = json.loads(done.stdout)["new"]
            assert await degraded(namespace, "new") == [None, None]
            check = await namespace.context.client.replica_check(healed["ledger_id"])
            async for entry in check.entries(0, check.last_entry_id):
                assert entry.replicas == 3
            await appended_more()
            stop.set()
            assert await degraded(namespace, "orders") == [None]
            for log, written in (("at-once", [b"one"]), ("new", [b"one", b"two"]), ("orders", acknowledged)):
                async with namespace.open_reader(log, follow=False) as reader:
                    assert [each.payload async for each in reader] == written
