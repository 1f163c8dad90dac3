"""The node of a shared log's owner: its data, any other data, and a watch that misses nothing."""

from __future__ import annotations

from collections.abc import Awaitable

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from ledger.metadata_store.memory import MemoryTree, open_memory_store
from namespace.log_nodes import LogNodes
from namespace.owner_node import LogOwner, decode_owner, encode_owner, read_owner


def test_an_owner_has_these_bytes_and_comes_back_from_them() -> None:
    owner = LogOwner("log-1.sock", 3)
    assert encode_owner(owner) == b'{"version": 1, "address": "log-1.sock", "forwarders": 3}'
    assert decode_owner(encode_owner(owner)) == owner


def test_no_repr_has_the_key_of_an_owner() -> None:
    assert repr(LogOwner(f"127.0.0.1:1#{'ab' * 16}", 0)) == "LogOwner(address='127.0.0.1:1', forwarders=0)"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"log-1.sock",
        b"[]",
        b"[" * 100_000,
        b'{"version": 2, "address": "a", "forwarders": 1}',
        b'{"version": 1, "address": 7, "forwarders": 1}',
        b'{"version": 1, "address": "a", "forwarders": true}',
        b'{"version": 1, "address": "a"}',
    ],
)
def test_data_that_no_owner_wrote_are_no_owner(data: bytes) -> None:
    assert decode_owner(data) is None


@given(st.binary())
def test_any_data_are_an_owner_or_none(data: bytes) -> None:
    assert decode_owner(data) is None


async def test_a_watch_fires_when_an_owner_comes_changes_and_goes() -> None:
    async with open_memory_store(MemoryTree()) as store:
        log = LogNodes(store, "/ns", "log")
        await store.create(log.root_path, b"", parents=True)
        owners: list[LogOwner | None] = []

        async def seen_after(step: Awaitable[object]) -> None:
            changed = trio.Event()
            owners.append(await read_owner(log, changed))
            assert not changed.is_set()
            await step
            await changed.wait()

        await seen_after(store.create(log.owner_path, encode_owner(LogOwner("a", 0)), ephemeral=True))
        await seen_after(store.put(log.owner_path, encode_owner(LogOwner("a", 1))))
        await seen_after(store.delete(log.owner_path))
        assert [*owners, await read_owner(log)] == [None, LogOwner("a", 0), LogOwner("a", 1), None]
