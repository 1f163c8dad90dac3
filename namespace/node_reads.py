"""Concurrent reads of several nodes.

Inside: at most ``READS_AT_ONCE`` reads at a time; a missing node is a value, not an error.
Not inside: which nodes to read (``logs``, ``segment_nodes``).
"""

from __future__ import annotations

from collections.abc import Sequence

from ledger.metadata_store.errors import NoNodeError
from ledger.metadata_store.store import MetadataStore, Node
from ledger.runtime.tasks.task_errors import for_each

READS_AT_ONCE = 64


async def read_nodes(store: MetadataStore, paths: Sequence[str]) -> dict[str, Node | None]:
    """Each path with its node; None for a node that does not exist."""
    nodes: dict[str, Node | None] = {}
    for start in range(0, len(paths), READS_AT_ONCE):
        nodes |= await store.get_many(paths[start : start + READS_AT_ONCE])
    return nodes


async def read_children(store: MetadataStore, parents: Sequence[str]) -> list[tuple[str, ...]]:
    """For each parent the names of its children; none for a parent that does not exist."""
    names: dict[str, tuple[str, ...]] = {}

    async def read(path: str) -> None:
        try:
            names[path] = (await store.children(path)).names
        except NoNodeError:
            names[path] = ()

    for start in range(0, len(parents), READS_AT_ONCE):
        await for_each(read, parents[start : start + READS_AT_ONCE])
    return [names[path] for path in parents]
