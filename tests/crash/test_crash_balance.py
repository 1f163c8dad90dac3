"""`dlog balance` as a process on a real cluster that grew, while a reader reads; kills; a lost bookie."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from subprocess import DEVNULL

import pytest
import trio

from dlog.cluster import LocalCluster, open_local_cluster
from dlog.cluster.layout import LEDGERS_ROOT, Member, bookie_id
from ledger.client import LedgerClient, open_ledger_client
from ledger.codes import Code
from ledger.config import ClientConfig
from ledger.metadata_store.zookeeper import open_zookeeper_store
from ledger.transport.dial import dial_tcp
from ledger.wire.messages import ReadRequest
from tests.mounts import mount_memory, unmount

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper, pytest.mark.slow]
TEST_TIMEOUT_S = 240
SESSION_MS = 3000
LEDGERS = 20
PAYLOADS = [bytes([number]) * 20_000 for number in range(20)]
LAST = len(PAYLOADS) - 1
# Replicas that a bookie shall not have are deleted each second, and not each day.
COLLECTS_AT_ONCE = {"gcWaitTime": 500, "gcOverreplicatedLedgerWaitTime": 1000}
DISK_BYTES = 256 << 20
SMALL = COLLECTS_AT_ONCE | {
    "logSizeLimit": 4 << 20,
    "flushReserveBytes": 4 << 20,
    "compactionReserveBytes": 8 << 20,
    "minUsableSizeForEntryLogCreation": 4 << 20,
    "minUsableSizeForHighPriorityWrites": 4 << 20,
    "minUsableSizeForIndexFileCreation": 4 << 20,
    "diskCheckInterval": 500,
}
RATE = 1_000_000  # so that a run takes seconds, and can be killed in its middle


async def write_ledgers(client: LedgerClient) -> list[int]:
    found = []
    for _ in range(LEDGERS):
        async with await client.create() as writer:
            await writer.append_many(PAYLOADS)
        found.append(writer.ledger_id)
    return found


class Balances:
    """Runs of the command in this cluster."""

    def __init__(self, cluster: LocalCluster) -> None:
        service = f"zk://{cluster.zookeeper_hosts}{LEDGERS_ROOT}"
        self._command = [sys.executable, "-m", "dlog.cli.main", "balance", "--service", service, "--json"]

    async def run(self, *options: str) -> tuple[int, str, str]:
        done = await trio.run_process(
            [*self._command, *options], capture_stdout=True, capture_stderr=True, check=False
        )
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    async def run_killed(self, client: LedgerClient, bookies: set[str]) -> None:
        """Kill a run when it has moved a replica to one of these."""
        async with trio.open_nursery() as nursery:
            process: trio.Process = await nursery.start(
                partial(
                    trio.run_process,
                    [*self._command, "--rate", str(RATE)],
                    stdout=DEVNULL,
                    stderr=DEVNULL,
                    check=False,
                )
            )
            while await replicas_on(client, bookies) == 0:  # noqa: ASYNC110
                await trio.sleep(0.05)
            assert process.poll() is None
            process.send_signal(signal.SIGKILL)


async def replicas(client: LedgerClient) -> dict[str, int]:
    """The ledgers that the metadata place on each bookie."""
    found = dict.fromkeys(client.membership.writable, 0)
    for ledger_id in await client.ledger_ids():
        for bookie in (await client.metadata(ledger_id)).last_ensemble.bookies:
            found[bookie] = found.get(bookie, 0) + 1
    return found


async def replicas_on(client: LedgerClient, bookies: set[str]) -> int:
    found = await replicas(client)
    return sum(found[bookie] for bookie in bookies)


async def check_replicas(client: LedgerClient, ledgers: list[int]) -> None:
    for ledger_id in ledgers:
        metadata = await client.metadata(ledger_id)
        for entry_id in range(LAST + 1):
            for bookie in metadata.ensemble_for(entry_id).bookies:
                reply = await client.context.transport.call(bookie, ReadRequest(ledger_id, entry_id))
                assert reply.code is Code.OK, (bookie, ledger_id, entry_id)


async def set_up(cluster: LocalCluster, index: int, settings: Mapping[str, int]) -> None:
    """Start a bookie again with these settings."""
    config = cluster.paths.bookie_config(cluster.state.bookies[index].name)
    lines = config.read_text("utf-8").splitlines()
    lines = [line for line in lines if line.partition("=")[0] not in settings]
    lines += [f"{key}={value}" for key, value in settings.items()]
    assert await cluster.terminate(index)
    config.write_text("\n".join(lines) + "\n", "utf-8")
    await cluster.restart(index)


class Reader:
    """It reads ledgers that it opened before the moves, round and round."""

    def __init__(self, client: LedgerClient, ledgers: list[int]) -> None:
        self._client, self._ledgers, self.rounds = client, ledgers, 0

    async def run(self) -> None:
        handles = [await self._client.open(one, recover=False) for one in self._ledgers]
        while True:
            for handle in handles:
                entries = await handle.read(0, handle.last_confirmed)
                assert [entry.payload for entry in entries] == PAYLOADS
            self.rounds += 1
            await trio.sleep(0.01)

    async def wait_rounds(self, count: int) -> None:
        wanted = self.rounds + count
        while self.rounds < wanted:  # noqa: ASYNC110
            await trio.sleep(0.05)


async def test_two_bookies_that_are_added_get_their_share_whatever_dies_and_no_read_fails(
    tmp_path: Path,
) -> None:
    with trio.fail_after(TEST_TIMEOUT_S):
        async with open_local_cluster(tmp_path, bookie_count=3, session_timeout_ms=SESSION_MS) as cluster:
            for index in range(3):
                await set_up(cluster, index, COLLECTS_AT_ONCE)
            async with (
                open_zookeeper_store(cluster.zookeeper_hosts) as store,
                open_ledger_client(store, dial_tcp, ClientConfig(), root=LEDGERS_ROOT) as client,
                trio.open_nursery() as nursery,
            ):
                ledgers = await write_ledgers(client)
                await cluster.start(bookie_count=5)
                for index in (3, 4):  # what a killed run left there is deleted, and comes again
                    await set_up(cluster, index, COLLECTS_AT_ONCE)
                old = {bookie_id(each) for each in cluster.state.bookies[:3]}
                new = {bookie_id(each) for each in cluster.state.bookies[3:]}
                reader, balances = Reader(client, ledgers), Balances(cluster)
                nursery.start_soon(reader.run)
                await reader.wait_rounds(1)

                code, out, told = await balances.run("--dry-run")
                planned = json.loads(out)
                assert (code, planned["moves_done"]) == (0, 0), told
                assert await replicas_on(client, new) == 0

                # A kill in the middle: every ledger is whole, and the next run continues.
                await balances.run_killed(client, new)
                await check_replicas(client, ledgers)

                # A bookie is lost in the middle.
                lost = len(cluster.state.bookies) - 1
                before = await replicas(client)
                async with trio.open_nursery() as losing:

                    async def lose() -> None:
                        while await replicas(client) == before:  # noqa: ASYNC110
                            await trio.sleep(0.05)
                        cluster.kill(lost)

                    losing.start_soon(lose)
                    code, out, told = await balances.run("--rate", str(RATE))
                assert (code, out) == (6, ""), told
                assert "run the command again" in told
                await cluster.restart(lost)
                await check_replicas(client, ledgers)

                code, out, told = await balances.run()
                assert code == 0, told
                result = json.loads(out)
                assert result["left"] == []
                assert 0 < result["moves_done"] < len(planned["moves"])
                sizes = [each["bytes_after"] for each in result["bookies"]]
                assert max(sizes) - min(sizes) <= 0.1 * max(sizes)
                counts = await replicas(client)
                assert max(counts.values()) - min(counts.values()) <= 0.1 * max(counts.values())
                await check_replicas(client, ledgers)

                # The old bookies delete what has left them, and the reader is served by the new ones.
                for bookie in old:
                    left = [one for one in ledgers if bookie not in await members(client, one)]
                    assert left
                    for ledger_id in left:
                        while await has(client, bookie, ledger_id):  # noqa: ASYNC110
                            await trio.sleep(0.1)
                await reader.wait_rounds(2)
                cluster.kill(3)
                await cluster.restart(3)
                await check_replicas(client, ledgers)
                code, out, told = await balances.run()
                assert (code, json.loads(out)["moves"]) == (0, []), told
                nursery.cancel_scope.cancel()


async def members(client: LedgerClient, ledger_id: int) -> tuple[str, ...]:
    return (await client.metadata(ledger_id)).last_ensemble.bookies


async def has(client: LedgerClient, bookie: str, ledger_id: int) -> bool:
    reply = await client.context.transport.call(bookie, ReadRequest(ledger_id, 0))
    return reply.code is Code.OK


async def used_share(client: LedgerClient, bookie: str) -> float:
    """As the bookie reports it."""
    space = await client.bookie_space(bookie)
    return 1 - space.free_bytes / space.total_bytes


@pytest.mark.mounts
async def test_three_disks_at_80_percent_and_two_new_ones_end_equally_full(tmp_path: Path) -> None:
    paths = LocalCluster(tmp_path).paths
    with trio.fail_after(TEST_TIMEOUT_S), contextlib.ExitStack() as mounts:
        for number in range(1, 6):
            disk = paths.home(f"bookie-{number}") / "ledgers"
            disk.mkdir(parents=True)
            mount_memory(disk, DISK_BYTES)
            mounts.callback(unmount, disk)
        async with open_local_cluster(
            tmp_path, bookie_count=3, session_timeout_ms=SESSION_MS, has_page=True
        ) as cluster:
            for index in range(3):
                await set_up(cluster, index, SMALL)
            async with (
                open_zookeeper_store(cluster.zookeeper_hosts) as store,
                open_ledger_client(store, dial_tcp, ClientConfig(), root=LEDGERS_ROOT) as client,
            ):
                bookies = [bookie_id(each) for each in cluster.state.bookies]
                payload = os.urandom(100_000)
                while min([await used_share(client, one) for one in bookies]) < 0.8:
                    async with await client.create() as writer:
                        await writer.append_many([payload] * 20)
                    await trio.sleep(0.02)
                await cluster.start(bookie_count=5, has_page=True)
                for index in (3, 4):
                    await set_up(cluster, index, SMALL)
                code, _, told = await Balances(cluster).run()
                assert code == 0, told
                for member in cluster.state.bookies[:3]:
                    await force_compaction(cluster, member)
                bookies = [bookie_id(each) for each in cluster.state.bookies]
                shares = [1.0, 0.0]
                while max(shares) - min(shares) > 0.1 * max(shares):
                    await trio.sleep(0.5)
                    shares = [await used_share(client, one) for one in bookies]
                assert max(shares) < 0.6


async def force_compaction(cluster: LocalCluster, member: Member) -> None:
    url = f"http://127.0.0.1:{member.http_port}"
    command = [sys.executable, "-m", "dlog.cli.main", "bookie", "gc", "--url", url]
    command += ["--token-file", str(cluster.paths.token), "--force-major", "--wait"]
    await trio.run_process(command, stdout=DEVNULL, stderr=DEVNULL)
