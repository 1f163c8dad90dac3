# covers: ledger/catalog/ledger_ids.py
# covers: ledger/catalog/metadata_update.py

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import trio

from ledger.catalog.catalog import LedgerCatalog, LedgerRange, open_catalog
from ledger.catalog.ledger_ids import LedgerIds
from ledger.catalog.metadata_codec import encode_metadata
from ledger.catalog.metadata_update import update_metadata
from ledger.catalog.paths import LEDGER_ID_MAX, Layout, ledger_path
from ledger.errors import (
    LedgerExistsError,
    LedgerIdOverflowError,
    MetadataFormatError,
    NoSuchLedgerError,
)
from ledger.metadata import Ensemble, LedgerMetadata
from ledger.metadata_store.errors import BadVersionError, ConnectionLostError, NodeExistsError, StoreError
from ledger.metadata_store.memory import MemoryStore, MemoryTree, open_memory_store
from ledger.metadata_store.store import Create

METADATA = LedgerMetadata(
    ensemble_size=1, write_quorum=1, ack_quorum=1, ensembles=(Ensemble(0, ("b1:1",)),), ctime_ms=1
)


async def test_the_layout_is_written_once_and_read_from_then_on() -> None:
    async with open_memory_store(MemoryTree()) as store:
        assert (
            await open_catalog(store, "/ledgers", Layout.LONG_HIERARCHICAL)
        ).layout is Layout.LONG_HIERARCHICAL
        assert (await open_catalog(store, "/ledgers")).layout is Layout.LONG_HIERARCHICAL
        with pytest.raises(MetadataFormatError, match="names the layout LONG_HIERARCHICAL, but FLAT"):
            await open_catalog(store, "/ledgers", Layout.FLAT)
        await store.put("/ledgers/LAYOUT", b"nonsense")
        with pytest.raises(MetadataFormatError):
            await open_catalog(store, "/ledgers")


@pytest.mark.parametrize("layout", list(Layout))
async def test_a_created_ledger_is_read_listed_and_deleted(layout: Layout) -> None:
    async with open_memory_store(MemoryTree()) as store:
        catalog = await open_catalog(store, "/deep/ledgers", layout)
        made = [(await catalog.create(METADATA)).ledger_id for _ in range(5)]
        assert len(set(made)) == 5
        own = (await catalog.create(METADATA, 123_456)).ledger_id
        found = await catalog.get(own)
        assert (found.version, found.metadata.ensembles) == (0, METADATA.ensembles)
        assert await catalog.ledger_ids() == sorted([*made, own])
        for ledger_id in [*made, own]:
            await catalog.delete(ledger_id)
        await catalog.delete(own)
        assert await catalog.ledger_ids() == []
        with pytest.raises(NoSuchLedgerError):
            await catalog.get(own)
        if layout in (Layout.HIERARCHICAL, Layout.LONG_HIERARCHICAL):
            assert set((await store.children("/deep/ledgers")).names) <= {"LAYOUT", "idgen"}


async def test_ranges_cover_every_id_even_where_there_is_no_ledger() -> None:
    async with open_memory_store(MemoryTree()) as store:
        catalog = await open_catalog(store, "/ledgers")
        for ledger_id in (3, 7, 20_001, 2**31 - 1, 2**40):
            await catalog.create(METADATA, ledger_id)
        ranges = [each async for each in catalog.ledger_ranges()]
        assert ranges[0] == LedgerRange(0, 7, (3, 7))
        assert [ledger_id for each in ranges for ledger_id in each.ledger_ids] == [
            3,
            7,
            20_001,
            2**31 - 1,
            2**40,
        ]
        assert all(a.last + 1 == b.first for a, b in itertools.pairwise(ranges))
        assert ranges[-1].last == LEDGER_ID_MAX


class Flaky:
    """A store that loses its connection once, before or after it executes a call."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.fail_on: str | None = None
        self.applies = True
        self.failures_left = 1

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._store, name)

        async def call(path: str, *args: Any, **kwargs: Any) -> Any:
            if name != self.fail_on or self.failures_left == 0:
                return await real(path, *args, **kwargs)
            self.failures_left -= 1
            if self.applies:
                await real(path, *args, **kwargs)
            raise ConnectionLostError(path)

        return call


async def flaky_catalog(store: MemoryStore) -> tuple[LedgerCatalog, Any]:
    catalog = await open_catalog(store, "/ledgers")
    flaky: Any = Flaky(store)
    return LedgerCatalog(flaky, "/ledgers", catalog.layout, rng=random.Random(1)), flaky


@pytest.mark.parametrize("applies", [True, False])
async def test_a_creation_whose_reply_was_lost_is_recognised(applies: bool) -> None:
    async with open_memory_store(MemoryTree()) as store:
        catalog, flaky = await flaky_catalog(store)
        flaky.fail_on, flaky.applies = "create", applies
        made = await catalog.create(METADATA, 5)
        assert (await catalog.get(5)).metadata == made.metadata
        assert made.metadata.creator_token != 0
        flaky.failures_left = 0
        with pytest.raises(LedgerExistsError):
            await catalog.create(METADATA, 5)


async def test_another_clients_ledger_is_never_taken_for_our_own() -> None:
    async with open_memory_store(MemoryTree()) as store:
        catalog, flaky = await flaky_catalog(store)
        await store.create(catalog.path(5), encode_metadata(METADATA), parents=True)
        flaky.fail_on, flaky.applies = "create", False
        with pytest.raises(LedgerExistsError):
            await catalog.create(METADATA, 5)


@pytest.mark.parametrize("is_ours", [True, False])
async def test_a_node_that_appears_between_two_attempts_is_recognised_by_its_token(is_ours: bool) -> None:
    """The node is another client's, or that of our own first attempt, which was applied late."""
    async with open_memory_store(MemoryTree()) as store:
        catalog, flaky = await flaky_catalog(store)
        flaky.fail_on, flaky.applies = "create", False
        late: list[bytes] = []

        async def create(path: str, value: bytes, **kwargs: Any) -> Any:
            late.append(value)
            return await Flaky.__getattr__(flaky, "create")(path, value, **kwargs)

        async def exists(path: str) -> Any:
            found = await store.exists(path)
            await store.create(path, late[0] if is_ours else encode_metadata(METADATA), parents=True)
            return found

        flaky.create, flaky.exists = create, exists
        if is_ours:
            assert (await catalog.create(METADATA, 5)).metadata == (await catalog.get(5)).metadata
        else:
            with pytest.raises(LedgerExistsError):
                await catalog.create(METADATA, 5)


async def test_metadata_is_written_only_over_the_version_it_came_from() -> None:
    async with open_memory_store(MemoryTree()) as store:
        catalog = await open_catalog(store, "/ledgers")
        made = await catalog.create(METADATA, 5)
        written = await catalog.put(5, made.metadata.in_recovery(), expected=made.version)
        assert (written.version, written.metadata.creator_token) == (1, 0)
        with pytest.raises(BadVersionError):
            await catalog.put(5, made.metadata, expected=made.version)
        with pytest.raises(NoSuchLedgerError):
            await catalog.put(6, made.metadata, expected=0)


@pytest.mark.parametrize("applies", [True, False])
async def test_an_update_whose_reply_was_lost_is_applied_once(applies: bool, autojump_clock: Any) -> None:
    async with open_memory_store(MemoryTree()) as store:
        catalog, flaky = await flaky_catalog(store)
        made = await catalog.create(METADATA, 5)
        flaky.fail_on, flaky.applies = "put", applies

        def close(metadata: LedgerMetadata) -> LedgerMetadata | None:
            return None if metadata.is_closed else metadata.closed(3, 10)

        closed = await update_metadata(catalog, made, close, retry_timeout_s=5)
        assert closed.version == 1
        assert closed.metadata.last_entry_id == 3
        assert await catalog.get(5) == closed


async def test_an_update_fails_after_the_retry_timeout(autojump_clock: Any) -> None:
    async with open_memory_store(MemoryTree()) as store:
        catalog, flaky = await flaky_catalog(store)
        made = await catalog.create(METADATA, 5)
        flaky.fail_on, flaky.applies, flaky.failures_left = "put", False, 1000
        started = trio.current_time()
        with pytest.raises(ConnectionLostError):
            await update_metadata(catalog, made, LedgerMetadata.in_recovery, retry_timeout_s=5)
        assert 5 <= trio.current_time() - started < 6


async def test_a_listing_that_fails_raises_instead_of_ending() -> None:
    async with open_memory_store(MemoryTree()) as store:
        catalog, flaky = await flaky_catalog(store)
        for ledger_id in (3, 20_001):
            await catalog.create(METADATA, ledger_id)
        for nth in range(6):
            flaky.fail_on, flaky.failures_left = None, 1
            calls = 0
            real = flaky._store.children

            async def children(path: str, nth: int = nth, real: Any = real, **kwargs: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls == nth + 1:
                    raise ConnectionLostError(path)
                return await real(path, **kwargs)

            flaky.children = children
            if nth < 5:
                with pytest.raises(StoreError):
                    await catalog.ledger_ids()
            else:
                assert await catalog.ledger_ids() == [3, 20_001]


async def test_foreign_nodes_below_the_root_are_no_ledgers() -> None:
    async with open_memory_store(MemoryTree()) as store:
        catalog = await open_catalog(store, "/ledgers")
        await catalog.create(METADATA, 3)
        for path in (
            "cookies",
            "available/readonly",
            "underreplication",
            "00/0000/Lxyz",
            "0x/1",
            "idgen-long",
        ):
            await store.create(f"/ledgers/{path}", parents=True)
        assert await catalog.ledger_ids() == [3]


async def test_when_short_ids_are_used_up_long_ones_follow() -> None:
    async with open_memory_store(MemoryTree()) as store:
        ids = LedgerIds(store, "/ledgers", Layout.HIERARCHICAL)
        assert [await ids.new() for _ in range(3)] == [0, 1, 2]
        assert (await store.children("/ledgers/idgen")).names == ()
        await store.create("/ledgers/idgen-long")
        assert [await ids.new() for _ in range(3)] == [4294967296, 4294967297, 4294967298]
        for number in (2, 3, 4, 5):
            await store.create(f"/ledgers/idgen-long/HOB-{number:010d}")
        assert await ids.new() == 5 << 32
        assert (await store.children("/ledgers/idgen-long")).names == (
            "HOB-0000000003",
            "HOB-0000000004",
            "HOB-0000000005",
        )


async def test_names_that_are_no_series_draw_no_id_and_stop_none() -> None:
    async with open_memory_store(MemoryTree()) as store:
        for name in ("HOB-0000000003", "HOB-9999999999", "HOB-000000000²", "HOB-", "x"):
            await store.create(f"/ledgers/idgen-long/{name}", parents=True)
        assert await LedgerIds(store, "/ledgers", Layout.LONG_HIERARCHICAL).new() == 3 << 32


async def test_an_overflow_starts_the_long_ids_or_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_memory_store(MemoryTree()) as store:
        ids = LedgerIds(store, "/ledgers", Layout.HIERARCHICAL)
        flat = LedgerIds(store, "/flat", Layout.FLAT)
        await ids.new()
        real = store.create

        async def wrapped(path: str, *args: Any, **kwargs: Any) -> str:
            made = await real(path, *args, **kwargs)
            return path + "2147483647" if path.endswith(("idgen/ID-", "flat/ID-")) else made

        monkeypatch.setattr(store, "create", wrapped)
        assert await ids.new() == 4294967296
        with pytest.raises(LedgerIdOverflowError):
            await flat.new()


async def test_a_ledger_is_created_in_a_transaction_of_the_caller() -> None:
    async with open_memory_store(MemoryTree()) as store:
        catalog = await open_catalog(store, "/ledgers")
        asked: list[int] = []

        async def commit(ledger_id: int, ledger: Create) -> None:
            asked.append(ledger_id)
            await store.commit([ledger, Create(f"/mine-{ledger_id}")])

        await store.create(ledger_path("/ledgers", Layout.HIERARCHICAL, 0), b"", parents=True)
        created = await catalog.create(METADATA, commit=commit)
        assert asked == [0, 1], "the first id was taken"
        assert (await catalog.get(created.ledger_id)).version == created.version == 0
        assert await store.exists("/mine-0") is None
        assert await store.exists("/mine-1") is not None
        await store.create("/mine-2")
        with pytest.raises(NodeExistsError, match="/mine-2"):
            await catalog.create(METADATA, commit=commit)
        with pytest.raises(NoSuchLedgerError):
            await catalog.get(2)
