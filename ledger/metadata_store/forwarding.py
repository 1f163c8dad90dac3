"""A metadata store that passes each call to another one, as the base of stores that change some calls.

Inside: the passing. Not inside: any change.
Always: the session is that of the store behind.

Source: our own.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence

import trio

from ledger.metadata_store.errors import StoreReplacedError
from ledger.metadata_store.store import (
    ANY_VERSION,
    Children,
    MetadataStore,
    Node,
    Operation,
    SessionState,
    Stat,
)


class ForwardingStore(MetadataStore):
    """The calls of another store. Closing it closes that store."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._store!r}>"

    @property
    def inner(self) -> MetadataStore:
        """The other store."""
        return self._store

    @property
    def session_id(self) -> int:
        return self._store.session_id

    @property
    def state(self) -> SessionState:
        return self._store.state

    @property
    def replaced(self) -> StoreReplacedError | None:
        return self._store.replaced

    async def wait_state_change(self, seen: SessionState) -> SessionState:
        return await self._store.wait_state_change(seen)

    @abc.abstractmethod
    def current_session(self) -> MetadataStore:
        """The same change of the present session alone; see ``MetadataStore.current_session``."""

    async def get(self, path: str, *, watch: trio.Event | None = None) -> Node:
        return await self._store.get(path, watch=watch)

    async def read_tree(self, path: str) -> dict[str, Node] | None:
        return await self._store.read_tree(path)

    async def exists(self, path: str, *, watch: trio.Event | None = None) -> Stat | None:
        return await self._store.exists(path, watch=watch)

    async def children(self, path: str, *, watch: trio.Event | None = None) -> Children:
        return await self._store.children(path, watch=watch)

    async def create(
        self,
        path: str,
        value: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        parents: bool = False,
    ) -> str:
        return await self._store.create(
            path, value, ephemeral=ephemeral, sequential=sequential, parents=parents
        )

    async def put(self, path: str, value: bytes, *, expected: int = ANY_VERSION) -> Stat:
        return await self._store.put(path, value, expected=expected)

    async def delete(self, path: str, *, expected: int = ANY_VERSION) -> None:
        await self._store.delete(path, expected=expected)

    async def commit(self, operations: Sequence[Operation]) -> None:
        await self._store.commit(operations)

    async def sync(self, path: str) -> None:
        await self._store.sync(path)

    async def last_change(self) -> int:
        return await self._store.last_change()

    async def aclose(self) -> None:
        await self._store.aclose()
