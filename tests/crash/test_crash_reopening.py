"""Writers with ``reopen=True`` beside real bookies that are killed and a ZooKeeper that falls silent: each
continues by itself, and the log has what was acknowledged, once and in order."""

# covers: dlog/write/reopening.py

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import attrs
import pytest
import trio

import dlog
from dlog.cluster import open_local_cluster
from dlog.shards import create_sharded_log, open_sharded_writer, shard_names
from ledger.metadata_store.store import SessionState
from tests.fakes.silenceable_proxy import proxy_to
from tests.unit.dlog.test_expired_zookeeper_sessions import expired

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper, pytest.mark.slow]
TEST_TIMEOUT_S = 180
KEYS = [b"key-%d" % number for number in range(4)]


async def test_writers_come_back_from_killed_bookies_and_a_silent_zookeeper(tmp_path: Path) -> None:
    acknowledged: dict[bytes, list[bytes]] = {key: [] for key in KEYS}
    config = attrs.evolve(
        dlog.NamespaceConfig(), session_timeout_ms=3000, writer=dlog.WriterConfig(retry_timeout_s=1)
    )

    async def write(writer: dlog.shards.ShardedWriter, key: bytes) -> None:
        number = 0
        while True:
            number += 1
            payload = b"%s/%06d" % (key, number)
            try:
                await writer.append(key, payload)
            except dlog.WriteError:
                if writer.state is dlog.WriterState.FAILED:
                    raise  # it does not come back
                continue  # it was in flight: perhaps it is in the log
            acknowledged[key].append(payload)

    async def all_appended(more: int) -> None:
        enough = {key: len(of_key) + more for key, of_key in acknowledged.items()}
        while any(len(acknowledged[key]) < count for key, count in enough.items()):  # noqa: ASYNC110
            await trio.sleep(0.02)

    with trio.fail_after(TEST_TIMEOUT_S):
        async with open_local_cluster(tmp_path / "cluster", session_timeout_ms=3000) as cluster:
            parts = urlsplit(cluster.uri)
            async with (
                proxy_to(int(parts.netloc.rpartition(":")[2])) as proxy,
                dlog.open_namespace(cluster.uri) as other,  # which sees what ZooKeeper does
                dlog.open_namespace(
                    f"{parts.scheme}://{proxy.hosts}{parts.path}", config=config
                ) as namespace,
            ):
                await create_sharded_log(namespace, "orders", 2)
                async with (
                    open_sharded_writer(namespace, "orders", reopen=True) as writer,
                    trio.open_nursery() as nursery,
                ):
                    for key in KEYS:
                        nursery.start_soon(write, writer, key)
                    await all_appended(20)
                    cluster.kill(1)
                    cluster.kill(2)
                    while writer.state is not dlog.WriterState.REOPENING:  # noqa: ASYNC110
                        await trio.sleep(0.02)
                    await cluster.restart(1)
                    await cluster.restart(2)
                    await all_appended(20)
                    store, observer = namespace.context.store, other.context.store
                    session = store.session_id
                    proxy.silence()
                    while store.state == SessionState.CONNECTED:
                        await store.wait_state_change(SessionState.CONNECTED)
                    for shard in await shard_names(other, "orders"):
                        await expired(store, session, observer, f"{parts.path}/{shard}/<default>/lock")
                    proxy.heal()
                    while store.session_id == session:
                        await store.wait_state_change(store.state)
                    await all_appended(20)
                    assert {each.state for each in writer.health()} == {dlog.WriterState.OPEN}
                    nursery.cancel_scope.cancel()
                stored: dict[bytes, list[bytes]] = {key: [] for key in KEYS}
                for shard in await shard_names(namespace, "orders"):
                    async with namespace.open_reader(shard, follow=False) as reader:
                        async for record in reader:
                            stored[record.payload.partition(b"/")[0]].append(record.payload)
    for key in KEYS:
        assert stored[key] == sorted(set(stored[key]))
        assert set(acknowledged[key]) <= set(stored[key])
