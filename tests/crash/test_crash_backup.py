"""Backups of a cluster whose bookies are processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

import dlog
from dlog.backup import open_backups
from dlog.cluster import open_local_cluster

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper, pytest.mark.slow]


async def payloads(uri: str, log: str) -> list[tuple[dlog.DLSN, bytes]]:
    async with (
        dlog.open_namespace(uri, read_only=True) as namespace,
        namespace.open_reader(log, follow=False) as reader,
    ):
        return [(record.dlsn, record.payload) async for record in reader]


async def test_a_cluster_is_backed_up_while_a_bookie_is_away_and_restored_into_a_directory(
    tmp_path: Path,
) -> None:
    destination, restored = tmp_path / "destination", tmp_path / "restored"
    with trio.fail_after(240):
        async with open_local_cluster(
            tmp_path / "cluster", bookie_count=4, session_timeout_ms=3000
        ) as cluster:
            config = dlog.NamespaceConfig(create=True)
            async with (
                dlog.open_namespace(cluster.uri, config=config) as namespace,
                namespace.open_writer("orders", create=True) as writer,
                namespace.open_writer("other", create=True) as other,
            ):
                await other.append(b"of no backup")
                for number in range(30):
                    await writer.append(b"%d" % number)
                await writer.flush()
                await namespace.backup.make(destination, logs=["orders"])
                cluster.kill(0)
                for number in range(30, 60):
                    await writer.append(b"%d" % number)
                await writer.flush()
                made = await namespace.backup.make(destination, logs=["orders"])
                assert made.is_whole
                found = await payloads(cluster.uri, "orders")
    async with open_backups(destination) as backups:
        assert (await backups.verify()).is_sound
        assert (await backups.restore(restored)).logs == ("orders",)
    assert await payloads(restored.as_uri(), "orders") == found
    assert [payload for _, payload in found] == [b"%d" % number for number in range(60)]
