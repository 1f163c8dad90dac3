"""A cluster whose ZooKeeper lost everything is restored from a backup, with the disks of its bookies.

The test uses processes, the commands and a ZooKeeper. Source: docs/metadata.md 18.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

import dlog
from bookie.cluster.cluster_removal import nuke_cluster
from bookie.identity.cookie_check import read_instance_id
from dlog.cluster import open_local_cluster
from dlog.cluster.layout import LEDGERS_ROOT
from ledger.client import open_ledger_client
from ledger.metadata_store.store import MetadataStore
from ledger.metadata_store.zookeeper import open_zookeeper_store
from ledger.transport.dial import dial_tcp

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper, pytest.mark.slow]
TEST_TIMEOUT_S = 180
PAYLOADS = [b"%d" % number for number in range(100)]
NAMESPACE = "/dlog"


async def metadata_command(*words: str) -> Any:
    done = await trio.run_process(
        [sys.executable, "-m", "dlog.cli.main", "metadata", *words, "--json"], capture_stdout=True
    )
    return json.loads(done.stdout)


async def delete_tree(store: MetadataStore, path: str) -> None:
    for name in (await store.children(path)).names:
        await delete_tree(store, f"{path}/{name}")
    await store.delete(path)


async def test_a_cluster_is_restored_with_its_logs_and_its_open_ledgers(tmp_path: Path) -> None:
    file = tmp_path / "backup"
    with trio.fail_after(TEST_TIMEOUT_S):
        async with open_local_cluster(tmp_path / "cluster", session_timeout_ms=3000) as cluster:
            hosts = cluster.zookeeper_hosts
            service = ("--service", f"zk://{hosts}{LEDGERS_ROOT}")
            async with (
                open_zookeeper_store(hosts) as store,
                open_ledger_client(store, dial_tcp, root=LEDGERS_ROOT) as client,
            ):
                left = await client.create()
                await left.append_many(PAYLOADS)
                left.abandon()
                async with dlog.open_namespace(cluster.uri) as namespace:
                    await namespace.create_log("orders")
                    async with namespace.open_writer("orders") as writer:
                        await writer.append(b"before")
                saved = await metadata_command("backup", str(file), *service, "--namespace", NAMESPACE)
                later = await client.create()
                await later.close()
                for index in range(3):
                    await cluster.terminate(index)
                await nuke_cluster(store, LEDGERS_ROOT, await read_instance_id(store, LEDGERS_ROOT))
                await delete_tree(store, NAMESPACE)
            restored = await metadata_command("restore", str(file), *service, "--yes")
            assert restored["nodes"] == saved["nodes"]
            for index, member in enumerate(cluster.state.bookies):
                config = cluster.paths.bookie_config(member.name)
                await metadata_command("accept-disks", "--config", str(config), "--yes")
                await cluster.restart(index)
            async with (
                open_zookeeper_store(hosts) as store,
                open_ledger_client(store, dial_tcp, root=LEDGERS_ROOT) as client,
            ):
                async with await client.open(left.ledger_id) as reader:
                    assert [one.payload for one in await reader.read(0, len(PAYLOADS) - 1)] == PAYLOADS
                new = await client.create()
                await new.close()
                assert new.ledger_id >= restored["id_series"] << 32 > later.ledger_id
                async with dlog.open_namespace(cluster.uri) as namespace:
                    async with namespace.open_writer("orders") as writer:
                        await writer.append(b"after")
                    async with namespace.open_reader("orders") as reader_of_log:
                        records = [await anext(reader_of_log) for _ in range(2)]
                    assert [record.payload for record in records] == [b"before", b"after"]
            for member in cluster.state.bookies:
                assert "in limbo" not in cluster.paths.log(member.name).read_text()
