"""A metadata store that refuses each change.

Inside: the refusal, and a store that passes reads on to another one. Not inside: reading a file without a
session (``sqlite_reader``).
Always: a change is refused before the store behind sees it, so no session creates a node by mistake.

Source: our own.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from namespace.errors import ReadOnlyStoreError
from namespace.store import ANY_VERSION, Children, MetadataStore, Node, Operation, SessionState, Stat


class RefusingStore(MetadataStore):
    """The four calls that change nodes, refused with ``ReadOnlyStoreError``."""

    async def create(
        self,
        path: str,
        value: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        parents: bool = False,
    ) -> str:
        raise ReadOnlyStoreError(path)

    async def put(self, path: str, value: bytes, *, expected: int = ANY_VERSION) -> Stat:
        raise ReadOnlyStoreError(path)

    async def delete(self, path: str, *, expected: int = ANY_VERSION) -> None:
        raise ReadOnlyStoreError(path)

    async def commit(self, operations: Sequence[Operation]) -> None:
        raise ReadOnlyStoreError(operations[0].path if operations else "/")


class ReadOnlyStore(RefusingStore):
    """The reads of another store. Closing it closes that store."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def __repr__(self) -> str:
        return f"<ReadOnlyStore {self._store!r}>"

    @property
    def session_id(self) -> int:
        return self._store.session_id

    @property
    def state(self) -> SessionState:
        return self._store.state

    async def wait_state_change(self, seen: SessionState) -> SessionState:
        return await self._store.wait_state_change(seen)

    async def get(self, path: str, *, watch: trio.Event | None = None) -> Node:
        return await self._store.get(path, watch=watch)

    async def exists(self, path: str, *, watch: trio.Event | None = None) -> Stat | None:
        return await self._store.exists(path, watch=watch)

    async def children(self, path: str, *, watch: trio.Event | None = None) -> Children:
        return await self._store.children(path, watch=watch)

    async def sync(self, path: str) -> None:
        await self._store.sync(path)

    async def aclose(self) -> None:
        await self._store.aclose()
