"""Which ledgers count as deleted: ids that no layout can hold, a changed layout, an odd instance id."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bookie.identity.cookie_check import read_instance_id
from bookie.ledger_metadata.cluster_nodes import ClusterNodes
from bookie.ledger_metadata.live_ledgers import ClusterChangedError, LiveLedgers, node_of
from ledger.catalog.paths import Layout, ledger_path
from ledger.metadata_store.memory import MemoryStore, MemoryTree, open_memory_store

LIMITED = [Layout.FLAT, Layout.LEGACY_HIERARCHICAL]
HUGE = 10**10
MOST = 2**63 - 1


@asynccontextmanager
async def cluster(
    layout: Layout, instance_id: bytes = b"one"
) -> AsyncIterator[tuple[MemoryStore, LiveLedgers]]:
    async with open_memory_store(MemoryTree()) as store:
        await store.create("/ledgers/LAYOUT", layout.text, parents=True)
        await store.create("/ledgers/INSTANCEID", instance_id)
        await store.create("/ledgers/cookies/b", parents=True)
        await store.create(ledger_path("/ledgers", layout, 7), parents=True)
        nodes = ClusterNodes(lambda: store, "/ledgers", layout)
        yield store, LiveLedgers(nodes, "b", "one", requests_per_s=1e6)


@pytest.mark.parametrize("layout", LIMITED)
async def test_an_id_that_the_layout_cannot_hold_stops_no_listing(layout: Layout) -> None:
    async with cluster(layout) as (_, live):
        assert await live([7, 8, HUGE, MOST]) == {7}
        assert await live.find([7, 8, HUGE, MOST]) == {7}
        await live.wait_change([HUGE])


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("ledger_id", [-1, 0, HUGE - 1, HUGE, MOST])
def test_only_an_id_without_a_path_cannot_exist(layout: Layout, ledger_id: int) -> None:
    has_path = ledger_id >= 0 and (ledger_id < HUGE or layout not in LIMITED)
    assert (node_of("/ledgers", layout, ledger_id) is not None) is has_path


@pytest.mark.parametrize("data", [b"", b"\xff", Layout.LONG_HIERARCHICAL.text])
async def test_nothing_counts_as_deleted_under_another_layout(data: bytes) -> None:
    """Under it an id may have a path that this bookie does not know."""
    async with cluster(Layout.FLAT) as (store, live):
        await store.put("/ledgers/LAYOUT", data)
        with pytest.raises(ClusterChangedError, match="LAYOUT was FLAT"):
            await live([HUGE])
        with pytest.raises(ClusterChangedError, match="LAYOUT was FLAT"):
            await live.find([HUGE])


async def test_an_instance_id_that_is_not_utf_8_is_another_clusters() -> None:
    async with cluster(Layout.HIERARCHICAL, b"\xff\xfe") as (store, live):
        assert await read_instance_id(store, "/ledgers") == "\\xff\\xfe"
        with pytest.raises(ClusterChangedError, match="instance id"):
            await live([7])
        with pytest.raises(ClusterChangedError, match="instance id"):
            await live.find([7])
