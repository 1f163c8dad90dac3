"""Auto-recovery as a process of its own, while a writer writes and a reader reads; and inside bookies."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from dlog.cluster import LocalCluster, local, open_local_cluster
from dlog.cluster.layout import LEDGERS_ROOT, bookie_config_text, bookie_id
from ledger.catalog.paths import cookie_path
from ledger.client import LedgerClient, open_ledger_client
from ledger.codes import Code
from ledger.config import ClientConfig
from ledger.ledger_spec import LedgerSpec
from ledger.metadata import LedgerMetadata
from ledger.metadata_store.zookeeper import open_zookeeper_store
from ledger.replication import current_auditor
from ledger.transport.dial import dial_tcp
from ledger.wire.messages import ReadRequest
from ledger.write.handle import WriteHandle
from tests.unit.bookie.http.test_admin import send_request

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper, pytest.mark.slow]
TEST_TIMEOUT_S = 120
PAYLOADS = [b"%d" % number * 50 for number in range(20)]


@contextmanager
def autorecovery(cluster: LocalCluster, log: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    service = f"zk://{cluster.zookeeper_hosts}{LEDGERS_ROOT}"
    command = [sys.executable, "-m", "dlog.cli.main", "autorecovery", "--service", service, "--grace", "1"]
    command += options
    with log.open("wb") as stderr, subprocess.Popen(command, stderr=stderr) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(30)


async def closed_ledger(client: LedgerClient, **shape: Any) -> int:
    async with await client.create_from(LedgerSpec(**shape)) as writer:
        await writer.append_many(PAYLOADS)
    return writer.ledger_id


async def check_replicas(client: LedgerClient, ledger_id: int, metadata: LedgerMetadata, last: int) -> None:
    for entry_id in range(last + 1):
        for bookie in metadata.ensemble_for(entry_id).bookies:
            reply = await client.context.transport.call(bookie, ReadRequest(ledger_id, entry_id))
            assert reply.code is Code.OK, (bookie, ledger_id, entry_id)


class Traffic:
    """A writer that writes until it is stopped, and a reader that follows it."""

    def __init__(self, client: LedgerClient, writer: WriteHandle) -> None:
        self.client, self.writer = client, writer
        self.stop = trio.Event()
        self.acknowledged: list[bytes] = []
        self.read: list[bytes] = []

    async def write(self) -> None:
        while not self.stop.is_set():
            payload = b"entry %d" % len(self.acknowledged)
            await self.writer.append(payload)
            self.acknowledged.append(payload)
            await trio.sleep(0.005)  # the check below reads each replica of each entry
        await self.writer.close()

    async def follow(self) -> None:
        read = self.read
        async with await self.client.open(self.writer.ledger_id, recover=False) as reader:
            while not (reader.is_closed and len(read) > reader.last_confirmed):
                last = await reader.wait_last_confirmed_beyond(len(read) - 1, timeout_s=1)
                while len(read) <= last:
                    read.extend(entry.payload for entry in await reader.read(len(read), last))


async def test_a_killed_bookie_is_healed_while_a_writer_writes_and_a_reader_reads(tmp_path: Path) -> None:
    with trio.fail_after(TEST_TIMEOUT_S):
        async with (
            open_local_cluster(tmp_path / "cluster", bookie_count=5, session_timeout_ms=3000) as cluster,
            open_zookeeper_store(cluster.zookeeper_hosts) as store,
            open_ledger_client(store, dial_tcp, ClientConfig(), root=LEDGERS_ROOT) as client,
        ):
            members = list(map(bookie_id, cluster.state.bookies))
            # Each of these loses a replica, wherever placement puts the others.
            ledgers = [await closed_ledger(client, bookies=members[:3]) for _ in range(4)]
            left_open = await client.create_from(LedgerSpec(bookies=members[:3]))
            await left_open.append_many(PAYLOADS)
            left_open.abandon()
            traffic = Traffic(client, await client.create())
            index, lost = 0, members[0]
            log = tmp_path / "autorecovery.log"
            with autorecovery(cluster, log, "--http-port", "0") as process:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(traffic.write)
                    nursery.start_soon(traffic.follow)
                    cluster.kill(index)
                    everything = [*ledgers, left_open.ledger_id, traffic.writer.ledger_id]
                    while await naming(client, everything, lost):  # noqa: ASYNC110
                        await trio.sleep(0.2)
                    traffic.stop.set()
                assert process.poll() is None
                served = re.search(r"metrics are served at (http://[^/]+)", log.read_text())
                assert served is not None
                status, metrics = await send_request(served[1], "GET", "/metrics")
                assert status == 200
                assert re.search(rb"^replication_worker_NUM_ENTRIES_WRITTEN [1-9]", metrics, re.MULTILINE)
            assert traffic.read == traffic.acknowledged
            for ledger_id in everything:
                metadata = await client.metadata(ledger_id)
                assert metadata.is_closed
                await check_replicas(client, ledger_id, metadata, metadata.last_entry_id)
            async with await client.open(left_open.ledger_id) as reader:
                assert [entry.payload for entry in await reader.read(0, len(PAYLOADS) - 1)] == PAYLOADS


async def test_a_second_bookie_that_is_lost_during_the_repair_is_healed_too(tmp_path: Path) -> None:
    """Each ledger of all five bookies has three replicas, so two losses leave one of each entry."""
    with trio.fail_after(TEST_TIMEOUT_S):
        async with (
            open_local_cluster(tmp_path / "cluster", bookie_count=5, session_timeout_ms=3000) as cluster,
            open_zookeeper_store(cluster.zookeeper_hosts) as store,
            open_ledger_client(store, dial_tcp, ClientConfig(), root=LEDGERS_ROOT) as client,
        ):
            members = list(map(bookie_id, cluster.state.bookies))
            first, second, *others = members
            shape = {"ack_quorum": 3, "bookies": (first, second, others[0])}
            ledgers = [await closed_ledger(client, **shape) for _ in range(6)]
            traffic = Traffic(client, await client.create())
            # Slow enough for a loss between the first ledger and the last one.
            with autorecovery(cluster, tmp_path / "autorecovery.log", "--rate", "6000") as process:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(traffic.write)
                    nursery.start_soon(traffic.follow)
                    cluster.kill(members.index(first))
                    while len(await naming(client, ledgers, first)) == len(ledgers):  # noqa: ASYNC110
                        await trio.sleep(0.05)
                    assert await naming(client, ledgers, first), "the repair is over"
                    cluster.kill(members.index(second))
                    everything = [*ledgers, traffic.writer.ledger_id]
                    while await naming(client, everything, first, second):  # noqa: ASYNC110
                        await trio.sleep(0.2)
                    traffic.stop.set()
                assert process.poll() is None
            assert traffic.read == traffic.acknowledged
            for ledger_id in everything:
                metadata = await client.metadata(ledger_id)
                assert all(len({*one.bookies}) == 3 for one in metadata.ensembles)
                await check_replicas(client, ledger_id, metadata, metadata.last_entry_id)


async def test_workers_inside_bookies_move_the_ledgers_of_a_bookie_that_is_decommissioned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_recovery(*arguments: Any, **more: Any) -> str:
        return bookie_config_text(*arguments, **more) + "autoRecoveryDaemonEnabled=true\n"

    monkeypatch.setattr(local, "bookie_config_text", with_recovery)
    with trio.fail_after(TEST_TIMEOUT_S):
        async with (
            open_local_cluster(tmp_path / "cluster", session_timeout_ms=3000) as cluster,
            open_zookeeper_store(cluster.zookeeper_hosts) as store,
            open_ledger_client(store, dial_tcp, ClientConfig(), root=LEDGERS_ROOT) as client,
        ):
            lost, other, third = map(bookie_id, cluster.state.bookies)
            ledger_id = await closed_ledger(client, ensemble_size=2, write_quorum=2, bookies=(lost, other))
            await cluster.terminate(0)
            service = f"zk://{cluster.zookeeper_hosts}{LEDGERS_ROOT}"
            command = ["bookie", "decommission", lost, "--yes", "--service", service]
            await trio.run_process([sys.executable, "-m", "dlog.cli.main", *command])
            assert await store.exists(cookie_path(LEDGERS_ROOT, lost)) is None
            assert await current_auditor(store, LEDGERS_ROOT) in (other, third)
            metadata = await client.metadata(ledger_id)
            assert metadata.last_ensemble.bookies == (third, other)
            await check_replicas(client, ledger_id, metadata, metadata.last_entry_id)


async def naming(client: LedgerClient, ledgers: list[int], *bookies: str) -> list[int]:
    """The ledgers that name one of the bookies in an ensemble."""
    found = [(ledger_id, await client.metadata(ledger_id)) for ledger_id in ledgers]
    return [
        ledger_id
        for ledger_id, metadata in found
        if any(not {*bookies}.isdisjoint(ensemble.bookies) for ensemble in metadata.ensembles)
    ]
