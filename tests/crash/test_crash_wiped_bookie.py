"""A bookie with erased or outdated directories and its old name: recovery cuts nothing off, repair restores
all.

The tests use processes and a ZooKeeper. Source: docs/known-bugs.md 2; apache/bookkeeper#2612.
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
from ledger.catalog.paths import cookie_path
from ledger.client import LedgerClient, open_ledger_client
from ledger.codes import Code
from ledger.config import ClientConfig
from ledger.errors import LedgerRecoveryError
from ledger.metadata_store.zookeeper import open_zookeeper_store
from ledger.transport.dial import dial_tcp
from ledger.wire.messages import ReadReply, ReadRequest

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper, pytest.mark.slow]
TEST_TIMEOUT_S = 240
PAYLOADS = [b"%d" % number * 50 for number in range(40)]
CONFIG = ClientConfig(unavailable_timeout_s=5)


@asynccontextmanager
async def open_client(cluster: LocalCluster) -> AsyncIterator[LedgerClient]:
    async with (
        open_zookeeper_store(cluster.zookeeper_hosts) as store,
        open_ledger_client(store, dial_tcp, CONFIG, root=LEDGERS_ROOT) as client,
    ):
        yield client


async def written_by_two(cluster: LocalCluster, *, before: int) -> tuple[int, list[str]]:
    """Write an open ledger; only the first two bookies acknowledge the entries from ``before`` on."""
    async with open_client(cluster) as client:
        writer = await client.create()
        await writer.append_many(PAYLOADS[:before])
        await cluster.terminate(2)
        await writer.append_many(PAYLOADS[before:])
        writer.abandon()
    return writer.ledger_id, [bookie_id(member) for member in cluster.state.bookies]


async def reply_code(client: LedgerClient, bookie: str, ledger_id: int, entry_id: int) -> Code:
    reply = await client._context.transport.call(bookie, ReadRequest(ledger_id, entry_id))
    assert isinstance(reply, ReadReply)
    return reply.code


async def check_recovery_fails_then_succeeds(cluster: LocalCluster, ledger_id: int, lost: str) -> None:
    """Check that recovery fails while one bookie has lost entries, one lacks them and one is down.

    When the third bookie runs again, recovery finds all entries and the first bookie is repaired.
    """
    async with open_client(cluster) as client:
        with pytest.raises(LedgerRecoveryError):
            await client.open(ledger_id)
        assert not (await client.metadata(ledger_id)).is_closed
        await cluster.restart(1)
        while True:  # the bookie may be recovering the ledger itself
            try:
                reader = await client.open(ledger_id)
                break
            except LedgerRecoveryError:
                await trio.sleep(0.5)
        assert reader.last_confirmed >= len(PAYLOADS) - 1
        assert [entry.payload for entry in await reader.read(0, len(PAYLOADS) - 1)] == PAYLOADS
        # A bookie in limbo does not reply NO_ENTRY. So this reply shows that the repair is complete.
        while await reply_code(client, lost, ledger_id, 1_000_000) is not Code.NO_ENTRY:  # noqa: ASYNC110
            await trio.sleep(0.2)
        for entry_id in range(len(PAYLOADS)):
            assert await reply_code(client, lost, ledger_id, entry_id) is Code.OK


async def test_recovery_with_an_erased_bookie_cuts_nothing_off(tmp_path: Path) -> None:
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
            await check_recovery_fails_then_succeeds(cluster, ledger_id, names[0])
            await cluster.terminate(0)
            log = cluster.paths.log(cluster.state.bookies[0].name).read_text()
            assert "1 ledgers are in limbo (the bookie is new" in log
            assert "has all its entries again: 1 ledgers repaired" in log


async def test_recovery_with_an_old_copy_cuts_nothing_off(tmp_path: Path) -> None:
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
            await check_recovery_fails_then_succeeds(cluster, ledger_id, names[0])
            log = cluster.paths.log(cluster.state.bookies[0].name).read_text()
            assert "is an old copy" in log
