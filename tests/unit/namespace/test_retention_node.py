"""The node that says how long the records of a log are kept."""

from __future__ import annotations

import pytest

from dlog.errors import LogMetadataError, LogNotFoundError
from ledger.metadata_store.memory import MemoryTree, open_memory_store
from namespace import logs
from namespace.log_nodes import LogNodes
from namespace.retention_node import read_retention, write_retention
from namespace.segments.retention import Retention

NS = "/shop"


async def test_the_rule_of_a_log_is_replaced_and_removed() -> None:
    async with open_memory_store(MemoryTree()) as store:
        await store.create(NS)
        with pytest.raises(LogNotFoundError):
            await write_retention(LogNodes(store, NS, "log"), Retention(age_s=1))
        await logs.create_log(LogNodes(store, NS, "log"))
        assert await read_retention(LogNodes(store, NS, "log")) is None
        await write_retention(LogNodes(store, NS, "log"), None)
        for rule in (Retention(age_s=1), Retention(size_bytes=1)):
            await write_retention(LogNodes(store, NS, "log"), rule)
            assert await read_retention(LogNodes(store, NS, "log")) == rule
        await store.put(f"{NS}/log/<default>/dlog-retention", b"{")
        with pytest.raises(LogMetadataError, match="dlog log retention"):
            await read_retention(LogNodes(store, NS, "log"))
        await write_retention(LogNodes(store, NS, "log"), None)
        assert await read_retention(LogNodes(store, NS, "log")) is None
        await write_retention(LogNodes(store, NS, "log"), Retention(age_s=1))
        await logs.delete_log_nodes(LogNodes(store, NS, "log"))
        assert (await store.children(NS)).names == ()
