from __future__ import annotations

from typing import Any

import pytest
import trio

from ledger.catalog.paths import available_path, readonly_path
from ledger.catalog.service_info import RPC_ID, RPC_PROTOCOL, Endpoint, ServiceInfo, encode_service_info
from ledger.errors import BookieUnavailableError
from ledger.metadata_store.memory import MemoryTree, open_memory_store
from ledger.placement.membership import open_membership
from ledger.transport.dial import Address

ROOT = "/ledgers"


async def test_bookies_come_and_go_and_read_only_wins() -> None:
    tree = MemoryTree()
    async with (
        open_memory_store(tree) as bookies,
        open_memory_store(tree) as store,
        open_membership(store, ROOT) as seen,
    ):
        assert (seen.writable, seen.readonly) == (frozenset(), frozenset())
        for name in ("b1:1", "b2:1"):
            await bookies.create(available_path(ROOT, name), ephemeral=True, parents=True)
        await trio.testing.wait_all_tasks_blocked()
        assert seen.writable == {"b1:1", "b2:1"}
        await bookies.create(f"{ROOT}/available/readonly")
        await trio.testing.wait_all_tasks_blocked()
        await bookies.create(readonly_path(ROOT, "b2:1"), ephemeral=True)
        await trio.testing.wait_all_tasks_blocked()
        assert [seen.writable, seen.readonly] == [{"b1:1"}, {"b2:1"}]
        await bookies.delete(readonly_path(ROOT, "b2:1"))
        await trio.testing.wait_all_tasks_blocked()
        assert seen.writable == {"b1:1", "b2:1"}
        bookies.expire()
        await trio.testing.wait_all_tasks_blocked()
        assert seen.writable == frozenset()


async def test_the_lists_survive_a_suspended_session(autojump_clock: Any) -> None:
    tree = MemoryTree()
    async with (
        open_memory_store(tree) as bookies,
        open_memory_store(tree) as store,
        open_membership(store, ROOT) as seen,
    ):
        await bookies.create(available_path(ROOT, "b1:1"), ephemeral=True, parents=True)
        await trio.testing.wait_all_tasks_blocked()
        store.suspend()
        await bookies.create(available_path(ROOT, "b2:1"), ephemeral=True)
        await trio.sleep(1)
        assert seen.writable == {"b1:1"}
        store.resume()
        await trio.sleep(1)
        assert seen.writable == {"b1:1", "b2:1"}


async def test_a_change_wakes_its_waiters() -> None:
    tree = MemoryTree()
    async with (
        open_memory_store(tree) as bookies,
        open_memory_store(tree) as store,
        open_membership(store, ROOT) as seen,
    ):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(seen.wait_change)
            await trio.testing.wait_all_tasks_blocked()
            await bookies.create(available_path(ROOT, "b1:1"), ephemeral=True, parents=True)
        assert seen.writable == {"b1:1"}


async def test_addresses_come_from_service_info_or_else_from_the_id() -> None:
    async with open_memory_store(MemoryTree()) as store, open_membership(store, ROOT) as seen:
        info = ServiceInfo(
            (Endpoint("h", 8080, "9.9.9.9", "http"), Endpoint(RPC_ID, 3181, "10.0.0.1", RPC_PROTOCOL))
        )
        await store.create(available_path(ROOT, "some-uuid"), encode_service_info(info), parents=True)
        await store.create(available_path(ROOT, "10.0.0.2:3181"))
        only_http = ServiceInfo((Endpoint("h", 8080, "9.9.9.9", "http"),))
        await store.create(available_path(ROOT, "web"), encode_service_info(only_http))
        await store.create(available_path(ROOT, "junk"), b"\xff\xff")
        assert await seen.resolve("some-uuid") == Address("10.0.0.1", 3181)
        assert await seen.resolve("10.0.0.2:3181") == Address("10.0.0.2", 3181)
        assert await seen.resolve("10.0.0.3:4000") == Address("10.0.0.3", 4000)  # not registered now
        for bookie in ("web", "junk", "unknown", "host:0", "host:99999"):
            with pytest.raises(BookieUnavailableError):
                await seen.resolve(bookie)


async def test_an_id_that_is_an_address_resolves_without_the_store() -> None:
    async with open_memory_store(MemoryTree()) as store, open_membership(store, ROOT) as seen:
        store.suspend()
        assert await seen.resolve("10.0.0.3:4000") == Address("10.0.0.3", 4000)
        with pytest.raises(BookieUnavailableError, match="cannot be looked up"):
            await seen.resolve("some-uuid")
        store.resume()


async def test_failures_are_forgotten_after_a_minute(autojump_clock: Any) -> None:
    async with open_memory_store(MemoryTree()) as store, open_membership(store, ROOT) as seen:
        seen.report_failure("b1:1")
        assert set(seen.suspects) == {"b1:1"}
        await trio.sleep(61)
        assert set(seen.suspects) == set()
