"""The ledger client with real bookies of this project: journals, indexes and fences on disk."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from bookie.bookie import open_bookie
from bookie.disk.real_disk import RealDisk
from bookie.storage.config import StorageConfig
from ledger.catalog.paths import available_path
from ledger.client import LedgerClient, open_ledger_client
from ledger.config import ClientConfig
from ledger.errors import LedgerClosedError, LedgerFencedError
from ledger.metadata_store.memory import MemoryStore, MemoryTree, open_memory_store
from ledger.transport.dial import Address
from ledger.transport.pipe import PipeStream, stream_pair
from ledger.transport.transport import TransportConfig


class RealCluster:
    """Bookies with their own directories and cancel scopes, reached through pipes."""

    def __init__(self, path: Path, registrar: MemoryStore, nursery: trio.Nursery) -> None:
        self._path, self._registrar, self._nursery = path, registrar, nursery
        self._up: dict[str, Any] = {}
        self._scopes: dict[str, trio.CancelScope] = {}
        self._gone: dict[str, trio.Event] = {}

    async def start(self, name: str) -> None:
        self._scopes[name], self._gone[name] = trio.CancelScope(), trio.Event()
        await self._nursery.start(self._run, name)
        await self._registrar.create(available_path("/ledgers", name), ephemeral=True, parents=True)

    async def _run(self, name: str, *, task_status: trio.TaskStatus[None]) -> None:
        directory = self._path / name.partition(":")[0]
        for part in ("journal", "ledgers"):
            (directory / part).mkdir(parents=True, exist_ok=True)
        config = StorageConfig(
            journal_directories=(directory / "journal",), ledger_directories=(directory / "ledgers",)
        )
        try:
            with self._scopes[name]:
                async with open_bookie(config, disk=RealDisk()) as bookie, trio.open_nursery() as nursery:
                    self._up[name] = (bookie, nursery)
                    task_status.started()
                    await trio.sleep_forever()
        finally:
            self._up.pop(name, None)
            self._gone[name].set()

    async def stop(self, name: str) -> None:
        self._scopes[name].cancel()
        await self._gone[name].wait()
        await self._registrar.delete(available_path("/ledgers", name))

    async def dial(self, address: Address) -> PipeStream:
        await trio.lowlevel.checkpoint()
        if str(address) not in self._up:
            raise OSError(f"{address} refuses connections")
        bookie, nursery = self._up[str(address)]
        ours, theirs = stream_pair()
        nursery.start_soon(functools.partial(bookie.serve_stream, theirs))
        return ours


@asynccontextmanager
async def open_cluster(
    path: Path, names: list[str], config: ClientConfig | None = None
) -> AsyncIterator[tuple[RealCluster, LedgerClient, LedgerClient]]:
    tree = MemoryTree()
    async with open_memory_store(tree) as registrar, trio.open_nursery() as nursery:
        cluster = RealCluster(path, registrar, nursery)
        for name in names:
            await cluster.start(name)
        async with (
            open_memory_store(tree) as store,
            open_memory_store(tree) as other_store,
            open_ledger_client(store, cluster.dial, config) as client,
            open_ledger_client(other_store, cluster.dial, config) as other,
        ):
            yield cluster, client, other
        nursery.cancel_scope.cancel()


@pytest.mark.slow
@pytest.mark.parametrize("version", [2, 3])
async def test_entries_survive_the_restart_of_every_bookie(tmp_path: Path, version: Any) -> None:
    config = ClientConfig(transport=TransportConfig(add_version=version))
    async with open_cluster(tmp_path, ["b1:1", "b2:1", "b3:1"], config) as (cluster, client, _):
        payloads = [b"%d" % number * (number % 300) for number in range(1000)]
        writer = await client.create()
        assert await writer.append_many(payloads) == range(1000)
        await writer.close()
        for name in ("b1:1", "b2:1", "b3:1"):
            await cluster.stop(name)
            await cluster.start(name)
        async with await client.open(writer.ledger_id) as reader:
            assert [entry.payload for entry in await reader.read(0, 999)] == payloads
            read: list[bytes] = []
            while len(read) < 1000:
                read += await reader.read_payloads(len(read), 999, size_bytes_max=20_000)
            assert read == payloads


@pytest.mark.slow
async def test_no_entry_is_lost_if_bookies_restart_under_a_writer(tmp_path: Path) -> None:
    async with open_cluster(tmp_path, ["b1:1", "b2:1", "b3:1"]) as (cluster, client, other):
        writer = await client.create()
        await writer.append_many([b"%d" % number for number in range(200)])
        await cluster.stop("b2:1")
        await writer.append_many([b"%d" % number for number in range(200, 400)])
        await cluster.start("b2:1")
        await cluster.stop("b3:1")
        await writer.append_many([b"%d" % number for number in range(400, 600)])
        await cluster.start("b3:1")
        async with await other.open(writer.ledger_id) as reader:
            assert [int(entry.payload) for entry in await reader.read(0, 599)] == list(range(600))
            assert reader.last_confirmed >= writer.lac
        with pytest.raises((LedgerFencedError, LedgerClosedError)):
            await writer.append(b"late")


@pytest.mark.slow
async def test_a_replaced_bookie_and_a_recovered_tail(tmp_path: Path) -> None:
    async with open_cluster(tmp_path, ["b1:1", "b2:1", "b3:1", "b4:1"]) as (cluster, client, other):
        writer = await client.create(write_quorum=2, ack_quorum=2)
        await writer.append_many([b"%d" % number for number in range(100)])
        await cluster.stop(writer.metadata.last_ensemble.bookies[0])
        await writer.append_many([b"%d" % number for number in range(100, 200)])
        assert len(writer.metadata.ensembles) == 2
        writer.abandon()
        async with await other.open(writer.ledger_id) as reader:
            assert reader.last_confirmed == 199
            assert reader.length_bytes == sum(len(b"%d" % number) for number in range(200))
            assert [int(entry.payload) for entry in await reader.read(100, 199)] == list(range(100, 200))


@pytest.mark.slow
async def test_a_tailing_reader_reads_every_entry_once_and_in_order(tmp_path: Path) -> None:
    async with open_cluster(tmp_path, ["b1:1", "b2:1", "b3:1"]) as (_, client, other):
        writer = await client.create()
        await writer.append(b"0")
        seen: list[int] = []

        async def tail() -> None:
            async with await other.open(writer.ledger_id, recover=False) as reader:
                while not (reader.is_closed and len(seen) > reader.last_confirmed):
                    last = await reader.wait_last_confirmed_beyond(len(seen) - 1, timeout_s=5)
                    if last >= len(seen):
                        seen.extend(int(payload) for payload in await reader.read_payloads(len(seen), last))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(tail)
            for number in range(1, 300):
                writer.submit(b"%d" % number)
                if number % 50 == 0:
                    await writer.wait_confirmed(number)
                    await writer.write_explicit_lac()
            await writer.close()
        assert seen == list(range(300))


@pytest.mark.slow
@pytest.mark.parametrize("version", [2, 3])
async def test_deferred_sync_and_chosen_ids_survive_the_restart_of_every_bookie(
    tmp_path: Path, version: Any
) -> None:
    config = ClientConfig(transport=TransportConfig(add_version=version))
    async with open_cluster(tmp_path, ["b1:1", "b2:1", "b3:1"], config) as (cluster, client, other):
        deferred = await client.create(deferred_sync=True)
        await deferred.append_many([b"%d" % number for number in range(100)])
        assert deferred.lac == -1
        await deferred.force()
        assert deferred.lac == 99
        chosen = await client.create_adv()
        for entry_id in reversed(range(50)):
            chosen.submit(entry_id, b"%d" % entry_id)
        await chosen.wait_confirmed(49)
        for name in ("b1:1", "b2:1", "b3:1"):
            await cluster.stop(name)
            await cluster.start(name)
        for ledger_id, last in ((deferred.ledger_id, 99), (chosen.ledger_id, 49)):
            async with await other.open(ledger_id) as reader:
                assert reader.last_confirmed == last
                entries = await reader.read(0, last)
                assert [int(entry.payload) for entry in entries] == list(range(last + 1))


@pytest.mark.slow
async def test_a_reader_gets_a_lone_entry_without_another_one_behind_it(tmp_path: Path) -> None:
    async with open_cluster(tmp_path, ["b1:1", "b2:1", "b3:1"]) as (_, client, other):
        writer = await client.create()
        await writer.append(b"0")
        async with await other.open(writer.ledger_id, recover=False) as reader:
            for number in range(5):
                with trio.fail_after(60):
                    assert await reader.wait_last_confirmed_beyond(number - 1, timeout_s=100) == number
                assert await reader.read_payloads(number, number) == [b"%d" % number]
                await writer.append(b"%d" % (number + 1))
        async with await other.open(writer.ledger_id, recover=False) as late:
            with trio.fail_after(60):
                assert await late.wait_last_confirmed_beyond(4, timeout_s=100) == 5
