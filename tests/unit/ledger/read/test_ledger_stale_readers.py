"""Readers with old metadata, while entries are moved to other bookies."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from ledger.catalog.catalog import LedgerCatalog
from ledger.config import ClientConfig
from ledger.errors import LedgerReadError, NoSuchEntryError
from ledger.metadata import Ensemble
from ledger.metadata_store.errors import ConnectionLostError
from ledger.read.handle import ReadHandle
from tests.fakes.dict_bookies import DictCluster


@pytest.fixture(autouse=True)
def readers_without_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers that do not notice when their metadata changes."""
    monkeypatch.setattr(ReadHandle, "start", lambda self: None)


@pytest.mark.parametrize("old_ones_are_back", [True, False])
@pytest.mark.parametrize(("ensemble_size", "write_quorum"), [(3, 2), (2, 2)])
async def test_entries_are_read_from_new_bookies_if_all_known_replicas_were_replaced(
    cluster: DictCluster,
    autojump_clock: MockClock,
    ensemble_size: int,
    write_quorum: int,
    old_ones_are_back: bool,
) -> None:
    for number in (4, 5, 6):
        await cluster.start(f"b{number}:1")
    async with cluster.client() as client, cluster.client() as other:
        writer = await client.create(ensemble_size=ensemble_size, write_quorum=write_quorum, ack_quorum=2)
        await writer.append_many([b"0", b"1"])
        reader = await other.open(writer.ledger_id, recover=False)
        replaced = writer.metadata.last_ensemble.bookies[:2]
        for name in replaced:
            await cluster.stop(name)
        for number in range(2, 8):
            await writer.append(b"%d" % number)
        assert not set(replaced) & set(writer.metadata.last_ensemble.bookies)
        if old_ones_are_back:
            for name in replaced:
                await cluster.start(name)
        reader._raise_lac(writer.lac)
        read = [
            payload for entry_id in range(2, 8) for payload in await reader.read_payloads(entry_id, entry_id)
        ]
        assert read == [b"%d" % number for number in range(2, 8)]
        assert reader.metadata == writer.metadata


async def test_entries_of_a_closed_ledger_are_read_from_new_bookies_after_re_replication(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    for number in (4, 5, 6):
        await cluster.start(f"b{number}:1")
    async with cluster.client(ClientConfig(speculative_read_s=None)) as client:
        async with await client.create() as writer:
            await writer.append_many([b"0", b"1", b"2"])
        reader = await client.open(writer.ledger_id)
        catalog = client._context.catalog
        current = await catalog.get(writer.ledger_id)
        old = current.metadata.last_ensemble.bookies
        new = tuple(sorted(set(cluster.bookies) - set(old)))
        for before, after in zip(old, new, strict=True):
            cluster.bookies[after].ledgers = cluster.bookies[before].ledgers
            await cluster.stop(before)
        moved = attrs.evolve(current.metadata, ensembles=(Ensemble(0, new),))
        await catalog.put(writer.ledger_id, moved, expected=current.version)
        assert [entry.payload for entry in await reader.read(0, 2)] == [b"0", b"1", b"2"]


@pytest.mark.parametrize("store", ["returns", "fails", "is silent", "has none"])
async def test_a_lost_entry_raises_whether_or_not_the_store_can_be_read(
    cluster: DictCluster, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    looks: list[int] = []
    real = LedgerCatalog.get_newest

    async def look(self: LedgerCatalog, ledger_id: int) -> Any:
        looks.append(ledger_id)
        if store == "fails":
            raise ConnectionLostError(self.path(ledger_id))
        if store == "is silent":
            await trio.sleep_forever()
        return await real(self, ledger_id)

    async with cluster.client() as client:
        async with await client.create() as writer:
            await writer.append_many([b"0", b"1", b"2"])
        reader = await client.open(writer.ledger_id)
        monkeypatch.setattr(LedgerCatalog, "get_newest", look)
        if store == "has none":
            await client.delete(writer.ledger_id)
        assert [entry.payload for entry in await reader.read(0, 2)] == [b"0", b"1", b"2"]
        assert looks == []
        for bookie in cluster.bookies.values():
            bookie.ledgers.clear()
        with pytest.raises(NoSuchEntryError):
            await reader.read(0, 2)
        assert looks == [writer.ledger_id]
        for name in cluster.bookies:
            await cluster.stop(name)
        with pytest.raises(LedgerReadError):
            await reader.read_payloads(0, 2)
