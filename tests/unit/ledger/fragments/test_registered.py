"""The lists of bookies: a bookie that changes its state while they are read is never missed."""

from __future__ import annotations

import pytest

from ledger.catalog.paths import available_path, readonly_path
from ledger.fragments.registered import RegisteredBookies, read_registered, read_registrations
from ledger.metadata_store.memory import MemoryTree
from tests.fakes.dict_namespace import WatchedStore


async def test_a_bookie_with_both_nodes_counts_as_read_only() -> None:
    store = WatchedStore(MemoryTree())
    assert (await read_registered(store, "/ledgers")).all == frozenset()
    for path in (
        available_path("/ledgers", "a"),
        available_path("/ledgers", "b"),
        readonly_path("/ledgers", "b"),
    ):
        await store.create(path, parents=True)
    assert await read_registered(store, "/ledgers") == RegisteredBookies(frozenset("a"), frozenset("b"))
    await store.aclose()


@pytest.mark.parametrize("becomes_writable", [True, False])
@pytest.mark.parametrize("read", [1, 2, 3])
async def test_a_bookie_that_changes_its_state_is_seen(becomes_writable: bool, read: int) -> None:
    store = WatchedStore(MemoryTree())
    paths = [readonly_path("/ledgers", "b"), available_path("/ledgers", "b")]
    old, new = paths if becomes_writable else reversed(paths)
    await store.create(available_path("/ledgers", "a"), parents=True)
    await store.create(readonly_path("/ledgers", "z"), parents=True)
    await store.create(old)
    reads = 0

    async def change(kind: str, _path: str) -> None:
        nonlocal reads
        if kind == "children":
            reads += 1
            if reads == read:
                await store.create(new)
                await store.delete(old)

    store.before = change
    assert "b" in (await read_registered(store, "/ledgers")).all
    await store.aclose()


async def test_a_registration_names_its_session() -> None:
    tree = MemoryTree()
    store, other = WatchedStore(tree), WatchedStore(tree)
    await store.create(available_path("/ledgers", "gone"), parents=True)
    await store.delete(available_path("/ledgers", "gone"))
    await store.create(readonly_path("/ledgers", "r"), parents=True, ephemeral=True)
    await other.create(available_path("/ledgers", "w"), ephemeral=True)
    owners = {
        bookie: stat.ephemeral_owner for bookie, stat in (await read_registrations(store, "/ledgers")).items()
    }
    assert owners == {"r": store.session_id, "w": other.session_id}
    await other.aclose()
    await store.aclose()
