"""Recoveries while bookies die or other clients recover and close; reads of old or damaged replicas."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from ledger.catalog.catalog import LedgerCatalog, open_catalog
from ledger.errors import (
    LedgerRecoveryError,
)
from ledger.metadata import LedgerState
from ledger.metadata_store.memory import open_memory_store
from tests.fakes.dict_bookies import DictCluster


async def test_recovery_finds_entries_that_the_writer_left_in_flight(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    async with cluster.client() as client:
        writer = await client.create()
        await writer.append_many([b"%d" % number for number in range(30)])
        await trio.testing.wait_all_tasks_blocked()
        for name in ("b2:1", "b3:1"):
            cluster.bookies[name].is_silent = True
        writer.submit(b"30")
        await trio.testing.wait_all_tasks_blocked()
        assert writer.lac == 29
        # Two bookies have the entry, though the writer knows of one: no recovery may leave it out.
        held = [bookie.ledgers[writer.ledger_id].entries for bookie in cluster.bookies.values()]
        held[1][30] = held[0][30]
        for name in ("b2:1", "b3:1"):
            cluster.bookies[name].is_silent = False
        async with cluster.client() as other, await other.open(writer.ledger_id) as reader:
            entries = await reader.read(0, reader.last_confirmed)
            assert [int(entry.payload) for entry in entries] == list(range(31))
            assert reader.length_bytes == sum(len(entry.payload) for entry in entries)
        holders = [b for b in cluster.bookies.values() if 30 in b.ledgers[writer.ledger_id].entries]
        assert len(holders) >= 2


async def test_recovery_works_with_one_bookie_of_three_dead(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    async with cluster.client() as client:
        writer = await client.create()
        await writer.append_many([b"%d" % number for number in range(10)])
        writer.abandon()
        await cluster.stop("b1:1")
        async with await client.open(writer.ledger_id) as reader:
            assert [int(entry.payload) for entry in await reader.read(0, 9)] == list(range(10))


async def test_recovery_without_an_ack_quorum_decides_nothing(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    async with cluster.client() as client:
        writer = await client.create()
        await writer.append_many([b"x"] * 10)
        writer.abandon()
        await cluster.stop("b1:1")
        await cluster.stop("b2:1")
        with pytest.raises(LedgerRecoveryError, match="too few bookies"):
            await client.open(writer.ledger_id)
        assert (await client.metadata(writer.ledger_id)).state is LedgerState.IN_RECOVERY
        await cluster.start("b1:1")
        async with await client.open(writer.ledger_id) as reader:
            assert reader.last_confirmed == 9


async def test_two_concurrent_recoveries_find_the_same_end(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    async with cluster.client() as client, cluster.client() as one, cluster.client() as two:
        writer = await client.create()
        await writer.append_many([b"x"] * 5)
        for number in range(20):
            writer.submit(b"%d" % number)
        ends: list[tuple[int, int]] = []

        async def recover(client: Any) -> None:
            metadata = (await client.open(writer.ledger_id)).metadata
            ends.append((metadata.last_entry_id, metadata.length_bytes))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(recover, one)
            nursery.start_soon(recover, two)
        assert ends[0] == ends[1]
        assert ends[0][0] >= writer.lac


@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.IN_RECOVERY])
async def test_a_recovery_adopts_the_end_that_another_client_wrote_first(
    cluster: DictCluster, monkeypatch: pytest.MonkeyPatch, state: LedgerState
) -> None:
    """Before it has marked the ledger, and after it has decided on another end."""
    real = LedgerCatalog.put
    async with cluster.client() as client, open_memory_store(cluster.tree) as store:
        catalog = await open_catalog(store, "/ledgers")
        writer = await client.create()
        await writer.append_many([b"x"] * 3)
        writer.abandon()

        async def put(self: LedgerCatalog, ledger_id: int, *arguments: Any, **keywords: Any) -> Any:
            found = await catalog.get(ledger_id)
            if found.metadata.state is state:
                closed = found.metadata.closed(7, 8)  # not the end that this recovery would find
                await real(catalog, ledger_id, closed, expected=found.version)
            return await real(self, ledger_id, *arguments, **keywords)

        monkeypatch.setattr(LedgerCatalog, "put", put)
        async with await client.open(writer.ledger_id) as reader:
            assert reader.is_closed
            assert (reader.last_confirmed, reader.length_bytes) == (7, 8)
        assert (await client.metadata(writer.ledger_id)).last_entry_id == 7


async def test_an_open_ledger_whose_last_segment_is_empty_is_confirmed_up_to_it(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    """The bookies of the empty segment hold no entry, and so no LAC."""
    async with cluster.client() as client, open_memory_store(cluster.tree) as store:
        catalog = await open_catalog(store, "/ledgers")
        writer = await client.create()
        await writer.append_many([b"x"] * 3)
        for name in ("b4:1", "b5:1", "b6:1"):
            await cluster.start(name)
        found = await catalog.get(writer.ledger_id)
        changed = found.metadata.with_ensemble(3, ("b4:1", "b5:1", "b6:1"))
        await catalog.put(writer.ledger_id, changed, expected=found.version)
        async with await client.open(writer.ledger_id, recover=False) as reader:
            assert reader.last_confirmed == 2
            assert await reader.read_last_confirmed() == 2


async def test_bookies_without_batch_reads_are_read_entry_by_entry(cluster: DictCluster) -> None:
    async with cluster.client() as client:
        async with await client.create() as writer:
            await writer.append_many([b"%d" % number for number in range(100)])
        for bookie in cluster.bookies.values():
            bookie.has_batch_reads = False
        async with await client.open(writer.ledger_id) as reader:
            read: list[bytes] = []
            while len(read) < 100:
                read += await reader.read_payloads(len(read), 99)
            assert [int(payload) for payload in read] == list(range(100))


async def test_a_damaged_entry_is_read_from_another_replica(cluster: DictCluster) -> None:
    async with cluster.client() as client:
        async with await client.create() as writer:
            await writer.append_many([b"%d" % number for number in range(50)])
        await trio.testing.wait_all_tasks_blocked()
        for number, bookie in enumerate(cluster.bookies.values()):
            entries = bookie.ledgers[writer.ledger_id].entries
            for entry_id in range(number, 50, 3):
                entries[entry_id] = entries[entry_id][:-1] + b"!"
        async with await client.open(writer.ledger_id) as reader:
            assert [int(entry.payload) for entry in await reader.read(0, 49)] == list(range(50))
