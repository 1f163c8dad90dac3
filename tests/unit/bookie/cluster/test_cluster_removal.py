"""Erasing a cluster: only an idle one, only the right one, and completely."""

from __future__ import annotations

import pytest

from bookie.cluster.cluster_removal import format_cluster, nuke_cluster
from bookie.cluster.cluster_root import create_cluster, prepare_cluster_root
from bookie.errors import BookieConfigError, ClusterInUseError
from bookie.identity.cookie_check import read_instance_id
from ledger.catalog.paths import Layout, available_path, cookie_path, ledger_path, readonly_path
from ledger.metadata_store.errors import ConnectionLostError
from ledger.metadata_store.memory import MemoryStore, MemoryTree, open_memory_store

ID, NEW_ID = "6f1cbd0e-6a0e-4f6a-9a4e-2f7f6c4b7c55", "7f1cbd0e-6a0e-4f6a-9a4e-2f7f6c4b7c56"
ROOT = "/ledgers"
LEDGERS = (3, 2**40)


async def fill(store: MemoryStore) -> None:
    await create_cluster(store, ROOT, Layout.HIERARCHICAL, ID)
    for ledger_id in LEDGERS:
        await store.create(ledger_path(ROOT, Layout.HIERARCHICAL, ledger_id), b"x", parents=True)
    await store.create(cookie_path(ROOT, "b1:1"), b"c", parents=True)
    await store.create(f"{ROOT}/underreplication/ledgers/0000/urL1", parents=True)
    await store.create(f"{ROOT}/idgen/ID-0000000003", parents=True)


async def test_a_formatted_cluster_is_empty_and_has_another_instance_id() -> None:
    async with open_memory_store(MemoryTree()) as store:
        await fill(store)
        await format_cluster(store, ROOT, Layout.LONG_HIERARCHICAL, NEW_ID)
        assert set((await store.children(ROOT)).names) == {"available", "INSTANCEID", "LAYOUT"}
        assert await read_instance_id(store, ROOT) == NEW_ID
        assert await prepare_cluster_root(store, ROOT, None) is Layout.LONG_HIERARCHICAL


async def test_a_nuked_cluster_is_gone_and_its_neighbour_is_not() -> None:
    async with open_memory_store(MemoryTree()) as store:
        await fill(store)
        await store.create("/ledgers2", b"kept")
        await nuke_cluster(store, ROOT, ID)
        assert await store.exists(ROOT) is None
        assert (await store.get("/ledgers2")).value == b"kept"


@pytest.mark.parametrize("path", [available_path(ROOT, "b2:1"), readonly_path(ROOT, "b2:1")])
async def test_a_cluster_with_a_registered_bookie_is_not_touched(path: str) -> None:
    async with open_memory_store(MemoryTree()) as store:
        await fill(store)
        await store.create(path, ephemeral=True)
        for attempt in (
            nuke_cluster(store, ROOT, ID),
            format_cluster(store, ROOT, Layout.HIERARCHICAL, NEW_ID),
        ):
            with pytest.raises(ClusterInUseError, match="b2:1"):
                await attempt
        assert await read_instance_id(store, ROOT) == ID
        assert await store.exists(ledger_path(ROOT, Layout.HIERARCHICAL, 3)) is not None


@pytest.mark.parametrize("wrong", [None, NEW_ID, ID.upper()])
async def test_another_instance_id_deletes_nothing(wrong: str | None) -> None:
    async with open_memory_store(MemoryTree()) as store:
        await fill(store)
        with pytest.raises(BookieConfigError, match="dlog bookies instance-id"):
            await nuke_cluster(store, ROOT, wrong)
        assert await store.exists(ledger_path(ROOT, Layout.HIERARCHICAL, 3)) is not None


async def test_a_root_with_the_nodes_of_another_program_is_not_touched() -> None:
    async with open_memory_store(MemoryTree()) as store:
        await fill(store)
        await store.create(f"{ROOT}/dlog", b"streams")
        with pytest.raises(BookieConfigError, match="/ledgers/dlog"):
            await nuke_cluster(store, ROOT, ID)
        assert await read_instance_id(store, ROOT) == ID
        with pytest.raises(BookieConfigError, match="no cluster"):
            await nuke_cluster(store, "/other", None)


async def test_an_interrupted_erasure_leaves_no_instance_id_and_is_completed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_memory_store(MemoryTree()) as store:
        await fill(store)
        delete, left = store.delete, [2]

        async def failing(path: str, **more: int) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise ConnectionLostError(path)
            await delete(path, **more)

        monkeypatch.setattr(store, "delete", failing)
        with pytest.raises(ConnectionLostError):
            await nuke_cluster(store, ROOT, ID)
        monkeypatch.undo()
        assert await read_instance_id(store, ROOT) is None
        assert await store.exists(cookie_path(ROOT, "b1:1")) is None
        assert await store.exists(ledger_path(ROOT, Layout.HIERARCHICAL, 3)) is not None
        await nuke_cluster(store, ROOT, None)
        assert await store.exists(ROOT) is None
