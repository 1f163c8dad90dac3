"""Renaming logs beside a real ZooKeeper: by two clients, and up to the size that one transaction takes."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

import dlog
from dlog.context import NamespaceContext
from dlog.namespace_handle import Namespace
from ledger.client import open_ledger_client
from ledger.metadata_store.lock import DistributedLock
from ledger.metadata_store.memory import MemoryTree
from ledger.metadata_store.store import NODE_BYTES_MAX, Create, Delete
from ledger.metadata_store.zookeeper import open_zookeeper_store
from ledger.metadata_store.zookeeper_security import NO_SECURITY
from namespace import logs
from namespace.log_nodes import LogNodes
from namespace.rename_nodes import Rename, rename_nodes
from namespace.segments.segment import LogSegment, encode_segment
from tests.fakes.dict_bookies import DictCluster
from tests.fakes.dict_namespace import CONFIG, read_all, write_segments
from tests.fakes.log_paths import paths_of
from tests.fakes.zookeeper_server import open_zookeeper_process

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]


async def test_a_log_is_renamed_beside_other_clients(tmp_path: Path) -> None:
    with trio.fail_after(120):
        async with (
            open_zookeeper_process(tmp_path) as server,
            open_zookeeper_store(server.hosts, security=NO_SECURITY) as one,
            open_zookeeper_store(server.hosts, security=NO_SECURITY) as two,
            trio.open_nursery() as nursery,
        ):
            bookies = DictCluster(MemoryTree(), one, nursery)
            for number in range(1, 4):
                await bookies.start(f"b{number}:1")
            await one.create("/ns")
            async with (
                open_ledger_client(one, bookies.dial) as client,
                open_ledger_client(two, bookies.dial) as other_client,
            ):
                namespace = Namespace(NamespaceContext("zk", one, client, "/ns", CONFIG, client_id="one"))
                other = Namespace(NamespaceContext("zk", two, other_client, "/ns", CONFIG, client_id="two"))
                payloads = await write_segments(namespace, "shop/old", 3)
                await namespace.cursors("shop/old").set("mine", dlog.DLSN(2, 0, 0))
                async with namespace.open_writer("shop/old"):
                    with pytest.raises(dlog.LogLockedError):
                        await other.rename_log("shop/old", "new")
                async with namespace.open_reader("shop/old") as reader:
                    assert [(await anext(reader)).payload for _ in payloads] == payloads
                    await other.rename_log("shop/old", "new")
                    with pytest.raises(dlog.LogRenamedError, match="renamed to 'new'"):
                        await anext(reader)
                await write_segments(namespace, "shop/old", 1, first=7)
                await write_segments(other, "new", 1, first=3)
                assert await namespace.list_logs() == ["new", "shop/old"]
                assert await read_all(namespace, "new") == [*payloads, b"3"]
                assert await read_all(other, "shop/old") == [b"7"]
                cursor = await namespace.cursors("new").get("mine")
                assert cursor is not None
                assert cursor.position == dlog.DLSN(2, 0, 0)
            nursery.cancel_scope.cancel()


async def test_zookeeper_takes_the_largest_log_that_is_not_refused(tmp_path: Path) -> None:
    with trio.fail_after(120):
        async with (
            open_zookeeper_process(tmp_path) as server,
            open_zookeeper_store(server.hosts, security=NO_SECURITY) as store,
        ):
            await store.create("/ns")
            await logs.create_log(LogNodes(store, "/ns", "old"))
            await DistributedLock(store, paths_of("/ns", "old").lock_path, "me").acquire(0)
            rename = Rename(LogNodes(store, "/ns", "old"), LogNodes(store, "/ns", "new"), b"t")
            nodes = []
            for number in range(1, 5_001):
                segment = LogSegment(segment_seqno=number, ledger_id=number, first_txid=number).completed(
                    last_entry_id=3,
                    last_slot_id=0,
                    last_txid=number,
                    record_count=4,
                    completed_ms=1,
                    start_sequence_id=number,
                )
                nodes.append((paths_of("/ns", "old").segment_path(segment.name), encode_segment(segment)))
            for start in range(0, len(nodes), 1_000):
                await store.commit([Create(*each) for each in nodes[start : start + 1_000]])
            with pytest.raises(dlog.LogRenameError, match="Truncate and purge the log"):
                await rename_nodes(rename)
            # As few as possible are deleted.
            size_bytes = sum(2 * (len(path) + 32) + len(value) for path, value in nodes) + 5_000
            while size_bytes > NODE_BYTES_MAX:
                gone, nodes = nodes[-10:], nodes[:-10]
                size_bytes -= sum(2 * (len(path) + 32) + len(value) for path, value in gone)
                await store.commit([Delete(path) for path, _ in gone])
            await rename_nodes(rename)
            assert await logs.list_logs(store, "/ns") == ["new"]
            found = (await store.children(paths_of("/ns", "new").segments_path)).names
            assert len(found) == len(nodes)
