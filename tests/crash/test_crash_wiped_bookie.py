"""A wiped bookie under its old name, real processes and a real ZooKeeper: nothing is cut off, all comes back.

Lessons 1.1 row 2; apache/bookkeeper#2612. Also an old copy of a bookie's directories, put back.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from dlog.cluster import LocalCluster, open_local_cluster
from dlog.cluster.layout import LEDGERS_ROOT, bookie_id
from ledger.client import LedgerClient, open_ledger_client
from ledger.config import ClientConfig
from ledger.dial import dial_tcp
from ledger.errors import LedgerRecoveryError
from ledger.paths import cookie_path
from ledger.wire.codes import Code
from ledger.wire.messages import ReadReply, ReadRequest
from namespace.zookeeper import open_zookeeper_store

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper, pytest.mark.slow]
TEST_TIMEOUT_S = 240
PAYLOADS = [b"%d" % number * 50 for number in range(40)]
CONFIG = ClientConfig(unavailable_patience_s=5)


@asynccontextmanager
async def open_client(cluster: LocalCluster) -> AsyncIterator[LedgerClient]:
    async with (
        open_zookeeper_store(cluster.zookeeper_hosts) as store,
        open_ledger_client(store, dial_tcp, CONFIG, root=LEDGERS_ROOT) as client,
    ):
        yield client


async def written_by_two(cluster: LocalCluster, *, before: int) -> tuple[int, list[str]]:
    """An open ledger whose entries from ``before`` on were acknowledged by the first two bookies alone."""
    async with open_client(cluster) as client:
        writer = await client.create()
        await writer.append_many(PAYLOADS[:before])
        await cluster.terminate(2)
        await writer.append_many(PAYLOADS[before:])
        writer.abandon()
    return writer.ledger_id, [bookie_id(member) for member in cluster.state.bookies]


async def answer(client: LedgerClient, bookie: str, ledger_id: int, entry_id: int) -> Code:
    reply = await client._cluster.transport.call(bookie, ReadRequest(ledger_id, entry_id))
    assert isinstance(reply, ReadReply)
    return reply.code


async def check_refusal_then_return(cluster: LocalCluster, ledger_id: int, lost: str) -> None:
    """One bookie lost entries, one denies them, one is down: no recovery. When it is back, all of it."""
    async with open_client(cluster) as client:
        with pytest.raises(LedgerRecoveryError):
            await client.open(ledger_id)
        assert not (await client.metadata(ledger_id)).is_closed
        await cluster.restart(1)
        while True:  # the bookie may be at it itself
            try:
                reader = await client.open(ledger_id)
                break
            except LedgerRecoveryError:
                await trio.sleep(0.5)
        assert reader.last_confirmed >= len(PAYLOADS) - 1
        assert [entry.payload for entry in await reader.read(0, len(PAYLOADS) - 1)] == PAYLOADS
        # In limbo it denies nothing.
        while await answer(client, lost, ledger_id, 1_000_000) is not Code.NO_ENTRY:  # noqa: ASYNC110
            await trio.sleep(0.2)
        for entry_id in range(len(PAYLOADS)):
            assert await answer(client, lost, ledger_id, entry_id) is Code.OK


async def test_a_wiped_bookie_makes_no_recovery_cut_anything_off(tmp_path: Path) -> None:
    with trio.fail_after(TEST_TIMEOUT_S):
        async with open_local_cluster(tmp_path / "cluster", session_timeout_ms=3000) as cluster:
            ledger_id, names = await written_by_two(cluster, before=0)
            cluster.kill(1)
            cluster.kill(0)
            home = cluster.paths.home(cluster.state.bookies[0].name)
            for directory in ("journal", "ledgers"):
                shutil.rmtree(home / directory)
            async with open_zookeeper_store(cluster.zookeeper_hosts) as store:
                await store.delete(cookie_path(LEDGERS_ROOT, names[0]))
            await cluster.restart(0)
            await cluster.restart(2)
            await check_refusal_then_return(cluster, ledger_id, names[0])
            await cluster.terminate(0)
            log = cluster.paths.log(cluster.state.bookies[0].name).read_text()
            assert "1 ledgers are in limbo (the bookie is new" in log
            assert "has everything it should have: 1 ledgers repaired" in log


async def test_an_old_copy_put_back_makes_no_recovery_cut_anything_off(tmp_path: Path) -> None:
    with trio.fail_after(TEST_TIMEOUT_S):
        async with open_local_cluster(tmp_path / "cluster", session_timeout_ms=3000) as cluster:
            home = cluster.paths.home(cluster.state.bookies[0].name)
            await cluster.terminate(0)
            shutil.copytree(home, tmp_path / "copy")
            await cluster.restart(0)
            ledger_id, names = await written_by_two(cluster, before=10)
            cluster.kill(1)
            cluster.kill(0)
            for directory in ("journal", "ledgers"):
                shutil.rmtree(home / directory)
                shutil.copytree(tmp_path / "copy" / directory, home / directory)
            await cluster.restart(0)
            await cluster.restart(2)
            await check_refusal_then_return(cluster, ledger_id, names[0])
            log = cluster.paths.log(cluster.state.bookies[0].name).read_text()
            assert "is an old copy" in log
