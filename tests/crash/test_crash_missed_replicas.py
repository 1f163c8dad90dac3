"""What a bookie missed is in it again soon after it is back: every replica is read from real processes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from dlog.cluster import LocalCluster, open_local_cluster
from dlog.cluster.layout import LEDGERS_ROOT
from ledger.client import LedgerClient, open_ledger_client
from ledger.codes import Code
from ledger.config import ClientConfig
from ledger.errors import BookieError
from ledger.metadata_store.zookeeper import open_zookeeper_store
from ledger.transport.dial import dial_tcp
from ledger.wire.messages import ReadRequest
from ledger.write.handle import WriteHandle
from tests.crash.test_crash_autorecovery import autorecovery, closed_ledger

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper, pytest.mark.slow]
TEST_TIMEOUT_S = 240
CLOSED = 12
APPENDS_BETWEEN = 20


class Writers:
    """Writers of some ledgers, which go on until they are stopped."""

    def __init__(self, client: LedgerClient, handles: list[WriteHandle]) -> None:
        self.client, self.handles = client, handles
        self.count = 0
        self.stop = trio.Event()

    async def write(self) -> None:
        while not self.stop.is_set():
            for handle in self.handles:
                await handle.append(b"entry %d" % self.count)
            self.count += 1
            await trio.sleep(0.01)

    async def go_on(self) -> None:
        """Return when some more entries of each ledger are acknowledged."""
        target = self.count + APPENDS_BETWEEN
        while self.count < target:  # noqa: ASYNC110
            await trio.sleep(0.01)


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[tuple[LocalCluster, LedgerClient]]:
    async with (
        open_local_cluster(path, session_timeout_ms=3000) as cluster,
        open_zookeeper_store(cluster.zookeeper_hosts) as store,
        open_ledger_client(store, dial_tcp, ClientConfig(), root=LEDGERS_ROOT) as client,
    ):
        yield cluster, client


async def holes(client: LedgerClient, ledgers: list[int], handles: list[WriteHandle]) -> list[str]:
    """The replicas that a bookie does not return, read one by one."""
    ends = {handle.ledger_id: handle.lac for handle in handles}
    found = []
    for ledger_id in [*ledgers, *ends]:
        metadata = await client.metadata(ledger_id)
        for entry_id in range(ends.get(ledger_id, metadata.last_entry_id) + 1):
            for bookie in metadata.ensemble_for(entry_id).bookies:
                try:
                    reply = await client.context.transport.call(bookie, ReadRequest(ledger_id, entry_id))
                except BookieError as exc:
                    found.append(str(exc))
                    continue
                if reply.code is not Code.OK:
                    found.append(f"entry {entry_id} of ledger {ledger_id} on {bookie}: {reply.code.name}")
    return found


async def until_replicated(client: LedgerClient, ledgers: list[int], handles: list[WriteHandle]) -> None:
    while await holes(client, ledgers, handles):  # noqa: ASYNC110
        await trio.sleep(0.5)


async def test_a_killed_bookie_of_three_gets_all_that_it_missed_and_no_writer_is_fenced(
    tmp_path: Path,
) -> None:
    with trio.fail_after(TEST_TIMEOUT_S):
        async with opened(tmp_path / "cluster") as (cluster, client):
            ledgers = [await closed_ledger(client) for _ in range(CLOSED)]
            log = tmp_path / "autorecovery.log"
            writers = Writers(client, [await client.create() for _ in range(3)])
            with autorecovery(cluster, log):  # with a grace of one second
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(writers.write)
                    await writers.go_on()
                    cluster.kill(0)
                    while "wait for a bookie" not in log.read_text():  # noqa: ASYNC110
                        await trio.sleep(0.1)
                    for _ in range(5):
                        await writers.go_on()
                    assert await holes(client, ledgers, writers.handles)
                    for handle in writers.handles:
                        assert not (await client.metadata(handle.ledger_id)).is_closed
                    ended = writers.handles.pop()
                    await ended.close()
                    ledgers.append(ended.ledger_id)
                    await cluster.restart(0)
                    await writers.go_on()
                    writers.stop.set()
                await until_replicated(client, ledgers, writers.handles)
                for handle in writers.handles:
                    assert not (await client.metadata(handle.ledger_id)).is_closed
                    await handle.close()
            assert "fenced" not in log.read_text()


async def test_a_rolling_restart_leaves_no_hole(tmp_path: Path) -> None:
    with trio.fail_after(TEST_TIMEOUT_S):
        async with opened(tmp_path / "cluster") as (cluster, client):
            ledgers = [await closed_ledger(client) for _ in range(CLOSED)]
            writers = Writers(client, [await client.create() for _ in range(3)])
            with autorecovery(cluster, tmp_path / "autorecovery.log"):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(writers.write)
                    for index in range(3):
                        await writers.go_on()
                        assert await cluster.terminate(index)
                        await writers.go_on()
                        await cluster.restart(index)
                    await writers.go_on()
                    writers.stop.set()
                await until_replicated(client, ledgers, writers.handles)
                for handle in writers.handles:
                    await handle.close()
