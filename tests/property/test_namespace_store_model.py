"""The SQLite store against the reference: any calls give the same results and the same tree."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.metadata_store.errors import StoreError
from ledger.metadata_store.memory import MemoryTree, open_memory_store
from ledger.metadata_store.sqlite_store.store import open_sqlite_store
from ledger.metadata_store.store import Check, Create, Delete, MetadataStore, Operation, Put
from tests.effort import examples

PATHS = st.sampled_from(["/a", "/a/x", "/a/x/1", "/a/y", "/b", "/b/x"])
VERSIONS = st.integers(-1, 2)
VALUES = st.binary(max_size=3)
OPERATIONS: st.SearchStrategy[Operation] = st.one_of(
    st.builds(Create, PATHS, VALUES),
    st.builds(Put, PATHS, VALUES, VERSIONS),
    st.builds(Delete, PATHS, VERSIONS),
    st.builds(Check, PATHS, VERSIONS),
)
CREATIONS = st.tuples(st.just("create"), PATHS, VALUES, st.booleans(), st.booleans(), st.booleans())
CALLS = st.one_of(
    CREATIONS,
    st.tuples(st.just("put"), PATHS, VALUES, VERSIONS),
    st.tuples(st.just("delete"), PATHS, VERSIONS),
    st.tuples(st.just("commit"), st.lists(OPERATIONS, max_size=4)),
)


Call = tuple[Any, ...]  # a method's name and its arguments


async def result_of(store: MetadataStore, call: Call) -> object:
    try:
        match call:
            case ("create", path, value, ephemeral, sequential, parents):
                return await store.create(
                    path, value, ephemeral=ephemeral, sequential=sequential, parents=parents
                )
            case ("put", path, value, expected):
                return (await store.put(path, value, expected=expected)).version
            case ("delete", path, expected):
                await store.delete(path, expected=expected)
                return None
            case ("commit", operations):
                await store.commit(operations)
                return None
    except StoreError as exc:
        return type(exc), exc.path
    raise AssertionError(call)


async def tree(store: MetadataStore, path: str = "/") -> dict[str, object]:
    node, children = await store.get(path), await store.children(path)
    stat = node.stat
    nodes: dict[str, object] = {
        path: (node.value, stat.version, stat.child_version, stat.ephemeral_owner != 0, children)
    }
    for name in children.names:
        nodes |= await tree(store, f"{path.rstrip('/')}/{name}")
    return nodes


@settings(max_examples=examples(40))
@given(st.lists(CALLS, max_size=25))
def test_sqlite_returns_what_the_reference_returns(calls: list[Call]) -> None:
    async def main() -> None:
        with tempfile.TemporaryDirectory() as directory:
            async with (
                open_memory_store(MemoryTree()) as reference,
                open_sqlite_store(Path(directory) / "metadata.db") as store,
            ):
                for call in calls:
                    assert await result_of(store, call) == await result_of(reference, call)
                assert await tree(store) == await tree(reference)

    trio.run(main)
