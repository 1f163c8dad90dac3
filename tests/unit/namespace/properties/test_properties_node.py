"""The properties of a log: set, removed, conditional, and what does not parse."""

# covers: namespace/node_reads.py
# covers: namespace/properties/node.py
# covers: namespace/properties/values.py

from __future__ import annotations

import pytest

from dlog.errors import ConfigError, LogMetadataError, LogNotFoundError
from ledger.metadata_store.memory import MemoryTree, open_memory_store
from namespace import logs
from namespace.log_nodes import LogNodes
from namespace.properties.node import change_properties, read_properties
from namespace.properties.values import STORED_BYTES_MAX, LogProperties, PropertiesConflictError

NS = "/shop"
NODE = f"{NS}/log/<default>/dlog-properties"


async def test_properties_are_set_and_removed_one_by_one() -> None:
    async with open_memory_store(MemoryTree()) as store:
        await store.create(NS)
        with pytest.raises(LogNotFoundError):
            await change_properties(LogNodes(store, NS, "log"), {"a": "1"}, None)
        with pytest.raises(LogNotFoundError):
            await read_properties(LogNodes(store, NS, "log"))
        await logs.create_log(LogNodes(store, NS, "log"))
        assert await read_properties(LogNodes(store, NS, "log")) == LogProperties({}, None)
        first = await change_properties(LogNodes(store, NS, "log"), {"b": "ü", "a": "1"}, None)
        assert (
            first
            == await read_properties(LogNodes(store, NS, "log"))
            == LogProperties({"a": "1", "b": "ü"}, 0)
        )
        second = await change_properties(LogNodes(store, NS, "log"), {"a": None, "none": None, "c": ""}, None)
        assert (
            second
            == await read_properties(LogNodes(store, NS, "log"))
            == LogProperties({"b": "ü", "c": ""}, 1)
        )
        await logs.delete_log_nodes(LogNodes(store, NS, "log"))
        assert (await store.children(NS)).names == ()


async def test_a_change_of_what_was_read_before_is_refused_after_another_change() -> None:
    async with open_memory_store(MemoryTree()) as store:
        await store.create(NS)
        await logs.create_log(LogNodes(store, NS, "log"))
        empty = await read_properties(LogNodes(store, NS, "log"))
        one = await change_properties(LogNodes(store, NS, "log"), {"a": "1"}, empty)
        with pytest.raises(PropertiesConflictError, match="a=1") as caught:
            await change_properties(LogNodes(store, NS, "log"), {"a": "2"}, empty)
        assert (caught.value.expected, caught.value.actual) == ({}, {"a": "1"})
        # The first reply was lost: the change is in the node, at the next version.
        assert await change_properties(LogNodes(store, NS, "log"), {"a": "1"}, empty) == one
        two = await change_properties(LogNodes(store, NS, "log"), {"a": "2"}, one)
        assert await change_properties(LogNodes(store, NS, "log"), {"a": "2"}, one) == two
        await change_properties(LogNodes(store, NS, "log"), {"a": "1"}, two)
        with pytest.raises(PropertiesConflictError):  # the same map, but it was another one in between
            await change_properties(LogNodes(store, NS, "log"), {"b": "1"}, one)


async def test_of_two_changes_at_once_none_is_lost() -> None:
    tree = MemoryTree()
    async with open_memory_store(tree) as store, open_memory_store(tree) as other:
        await store.create(NS)
        await logs.create_log(LogNodes(store, NS, "log"))
        raced: list[str] = []
        read = store.get

        async def get(path: str, **options: object) -> object:
            node = await read(path, **options)  # type: ignore[arg-type]
            if not raced:
                raced.append(path)
                await change_properties(LogNodes(other, NS, "log"), {"theirs": "1"}, None)
            return node

        await change_properties(LogNodes(store, NS, "log"), {"ours": "0"}, None)
        store.get = get  # type: ignore[method-assign, assignment]
        found = await change_properties(LogNodes(store, NS, "log"), {"ours": "1"}, None)
        assert raced == [NODE]
        assert found.values == {"ours": "1", "theirs": "1"}


async def test_bad_maps_are_refused_and_nothing_is_stored() -> None:
    async with open_memory_store(MemoryTree()) as store:
        await store.create(NS)
        await logs.create_log(LogNodes(store, NS, "log"))
        for key in ("", "a=b", "a\n", "x" * 129):
            with pytest.raises(ConfigError, match="a key has"):
                await change_properties(LogNodes(store, NS, "log"), {key: "1"}, None)
        with pytest.raises(ConfigError, match="at most 65536"):
            await change_properties(LogNodes(store, NS, "log"), {"a": "x" * STORED_BYTES_MAX}, None)
        with pytest.raises(ConfigError, match="no valid text"):
            await change_properties(LogNodes(store, NS, "log"), {"a": "\ud800"}, None)
        assert await read_properties(LogNodes(store, NS, "log")) == LogProperties({}, None)
        for damaged in (
            b"",
            b"[]",
            b'{"version": 2, "properties": {}}',
            b'{"version": 1, "properties": {"a": 1}}',
        ):
            if await store.exists(NODE) is None:
                await store.create(NODE)
            await store.put(NODE, damaged)
            with pytest.raises(LogMetadataError, match="nothing was changed"):
                await change_properties(LogNodes(store, NS, "log"), {"a": "1"}, None)
            assert (await store.get(NODE)).value == damaged
