"""The nodes of a cluster: created by an operator, or by the first bookie."""

from __future__ import annotations

import pytest

from bookie.cluster.cluster_root import create_cluster, prepare_cluster_root
from bookie.errors import BookieConfigError
from bookie.identity.cookie_check import read_instance_id
from ledger.catalog.paths import Layout
from ledger.metadata_store.errors import NodeExistsError
from ledger.metadata_store.memory import MemoryTree, open_memory_store

ID = "6f1cbd0e-6a0e-4f6a-9a4e-2f7f6c4b7c55"


async def test_a_created_cluster_has_its_instance_id_and_layout_and_bookies_take_it() -> None:
    async with open_memory_store(MemoryTree()) as store:
        await create_cluster(store, "/deep/ledgers", Layout.LONG_HIERARCHICAL, ID)
        assert await read_instance_id(store, "/deep/ledgers") == ID
        assert set((await store.children("/deep/ledgers")).names) == {"INSTANCEID", "LAYOUT", "available"}
        assert (await store.children("/deep/ledgers/available")).names == ("readonly",)
        assert await prepare_cluster_root(store, "/deep/ledgers", None) is Layout.LONG_HIERARCHICAL
        with pytest.raises(BookieConfigError, match="longhierarchical"):
            await prepare_cluster_root(store, "/deep/ledgers", Layout.FLAT)


async def test_creating_a_cluster_over_another_changes_nothing() -> None:
    async with open_memory_store(MemoryTree()) as store:
        assert await prepare_cluster_root(store, "/ledgers", None) is Layout.HIERARCHICAL
        assert await read_instance_id(store, "/ledgers") is None
        with pytest.raises(NodeExistsError):
            await create_cluster(store, "/ledgers", Layout.FLAT, ID)
        assert await read_instance_id(store, "/ledgers") is None
        assert await prepare_cluster_root(store, "/ledgers", None) is Layout.HIERARCHICAL
