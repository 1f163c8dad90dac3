"""Ledgers that a bookie stores although no ensemble of theirs names it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from bookie.ledger_metadata.cluster_nodes import ClusterNodes
from bookie.ledger_metadata.over_replicated import OverReplicated, is_over_replicated
from ledger.catalog.catalog import LedgerCatalog
from ledger.catalog.paths import Layout, underreplicated_lock_path
from ledger.metadata import Ensemble, LedgerMetadata
from ledger.metadata_store.errors import ConnectionLostError
from ledger.metadata_store.memory import MemoryStore, MemoryTree, open_memory_store
from ledger.metadata_store.store import Node

ROOT, LAYOUT, ME = "/ledgers", Layout.HIERARCHICAL, "me:3181"


def metadata(*ensembles: tuple[str, ...], closed: bool = True) -> LedgerMetadata:
    made = LedgerMetadata(
        ensemble_size=2,
        write_quorum=2,
        ack_quorum=1,
        ensembles=tuple(Ensemble(number * 10, bookies) for number, bookies in enumerate(ensembles)),
        ctime_ms=1,
    )
    return made.closed(99, 1000) if closed else made


THEIRS = metadata(("a:1", "b:1"), ("a:1", "c:1"))


def test_only_a_closed_ledger_without_us_in_any_ensemble_is_over_replicated() -> None:
    assert is_over_replicated(THEIRS, ME)
    assert not is_over_replicated(metadata(("a:1", "b:1"), ("a:1", ME)), ME)
    assert not is_over_replicated(metadata((ME, "b:1"), ("a:1", "b:1")), ME)
    assert not is_over_replicated(metadata(("a:1", "b:1"), closed=False), ME)


async def cluster(store: MemoryStore) -> LedgerCatalog:
    await store.create(ROOT, b"")
    catalog = LedgerCatalog(store, ROOT, LAYOUT)
    for ledger_id, one in (
        (1, THEIRS),
        (2, metadata(("a:1", ME))),
        (3, metadata(("a:1", "b:1"), closed=False)),
        (4, THEIRS),
    ):
        await catalog.create(one, ledger_id)
    return catalog


def over_replicated(store: MemoryStore) -> OverReplicated:
    return OverReplicated(ClusterNodes(lambda: store, ROOT, LAYOUT), ME, "host.example")


def recording(gone: list[int]) -> Callable[[int], Awaitable[None]]:
    async def delete(ledger_id: int) -> None:
        gone.append(ledger_id)

    return delete


async def test_over_replicated_ledgers_are_deleted_under_the_lock_which_is_released() -> None:
    async with open_memory_store(MemoryTree()) as store:
        await cluster(store)
        gone: list[int] = []

        async def delete(ledger_id: int) -> None:
            lock = await store.get(underreplicated_lock_path(ROOT, ledger_id))
            assert lock.value == b'bookieId: "host.example"\n'
            assert lock.stat.ephemeral_owner == store.session_id
            gone.append(ledger_id)

        assert await over_replicated(store)([1, 2, 3, 4, 5], delete) == [1, 4]
        assert gone == [1, 4]
        assert (await store.children(f"{ROOT}/underreplication/locks")).names == ()


async def test_a_ledger_that_is_being_copied_is_kept() -> None:
    tree = MemoryTree()
    async with open_memory_store(tree) as store, open_memory_store(tree) as other:
        await cluster(store)
        await other.create(underreplicated_lock_path(ROOT, 1), b"", ephemeral=True, parents=True)
        gone: list[int] = []
        assert await over_replicated(store)([1, 4], recording(gone)) == [4]
        assert gone == [4]
        assert await store.exists(underreplicated_lock_path(ROOT, 1)) is not None, (
            "the lock belongs to the other session"
        )


async def test_a_change_of_metadata_before_the_lock_was_taken_counts() -> None:
    tree = MemoryTree()
    async with open_memory_store(tree) as store:
        catalog = await cluster(store)

        class Behind(MemoryStore):
            """Another process finishes a copy to this bookie just before we get the lock."""

            async def create(self, path: str, value: bytes = b"", **more: bool) -> str:
                if path == underreplicated_lock_path(ROOT, 1):
                    seen = await catalog.get(1)
                    ours = seen.metadata.with_replicas(0, (ME, "b:1"))
                    await catalog.put(1, ours, expected=seen.version)
                return await super().create(path, value, **more)

        gone: list[int] = []
        assert await over_replicated(Behind(tree))([1], recording(gone)) == []
        assert gone == []


async def test_an_unreadable_store_deletes_nothing() -> None:
    tree = MemoryTree()
    async with open_memory_store(tree) as store:
        await cluster(store)

        class Lost(MemoryStore):
            async def get(self, path: str, **more: object) -> Node:
                raise ConnectionLostError(path)

        gone: list[int] = []
        with pytest.raises(ConnectionLostError):
            await over_replicated(Lost(tree))([1], recording(gone))
        assert gone == []
