"""`dlog namespace bind`: the nodes it leaves, and what it leaves alone."""

# covers: dlog/cli/operators/namespace.py

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from dlog.cli.main import main
from dlog.cli.operators import namespace
from ledger.metadata_store.memory import MemoryTree, open_memory_store
from ledger.metadata_store.store import MetadataStore
from namespace.bindings import resolve_binding

URI = "distributedlog://zk1:2181/shop"


@pytest.fixture
def tree(monkeypatch: pytest.MonkeyPatch) -> MemoryTree:
    tree = MemoryTree()

    @asynccontextmanager
    async def open_store(uri: str) -> AsyncIterator[MetadataStore]:
        async with open_memory_store(tree) as store:
            yield store

    monkeypatch.setattr(namespace, "open_store", open_store)
    return tree


async def create_ledgers(tree: MemoryTree, root: str = "/ledgers") -> None:
    async with open_memory_store(tree) as store:
        await store.create(root, parents=True)


async def stored(tree: MemoryTree) -> tuple[str, bool, bool]:
    """The ledgers root of the binding, whether it is federated, and whether there is a node for the parts."""
    async with open_memory_store(tree) as store:
        binding = await resolve_binding(store, "/shop")
        parts = await store.exists("/shop/.subnamespaces")
        return binding.ledgers_root, bool(binding.federated), parts is not None


def test_a_namespace_is_bound_once(tree: MemoryTree, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["namespace", "bind", URI]) == 3
    assert "dlog bookies init" in capfd.readouterr().err
    trio.run(create_ledgers, tree)
    assert main(["namespace", "bind", URI]) == 0
    assert main(["namespace", "bind", URI]) == 0
    assert trio.run(stored, tree) == ("/ledgers", False, False)
    assert main(["namespace", "bind", URI, "--federated"]) == 4
    assert trio.run(stored, tree) == ("/ledgers", False, False)


def test_a_federated_namespace_gets_the_node_of_its_parts(
    tree: MemoryTree, capfd: pytest.CaptureFixture[str]
) -> None:
    trio.run(create_ledgers, tree, "/other/ledgers")
    options = ["--federated", "--ledgers", "zk://zk1:2181/other/ledgers", "--json"]
    assert main(["namespace", "bind", URI, *options]) == 0
    assert json.loads(capfd.readouterr().out) == {
        "uri": URI,
        "ledgers": "zk+null://zk1:2181/other/ledgers",
        "federated": True,
    }
    assert trio.run(stored, tree) == ("/other/ledgers", True, True)


def test_a_directory_is_refused() -> None:
    assert main(["namespace", "bind", "file:///var/lib/shop"]) == 2
