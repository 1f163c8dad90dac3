"""Sessions with a metadata store in memory that a test ends, and a store that replaces them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio

from ledger.metadata_store.errors import StoreUnreachableError
from ledger.metadata_store.memory import MemoryStore, MemoryTree
from ledger.metadata_store.sessions.renewing_store import RenewingStore
from ledger.metadata_store.store import MetadataStore


class NotedSession(MemoryStore):
    """Notes whether it was synced."""

    is_synced = False

    async def sync(self, path: str) -> None:
        await super().sync(path)
        self.is_synced = True


@attrs.define
class Sessions:
    """A tree, and the sessions that a store opened with it."""

    tree: MemoryTree = attrs.Factory(MemoryTree)
    opened: list[NotedSession] = attrs.Factory(list)
    failures: int = 0  # of the next attempts to open a session

    @asynccontextmanager
    async def open_session(self) -> AsyncIterator[MetadataStore]:
        await trio.lowlevel.checkpoint()
        if self.failures:
            self.failures -= 1
            raise StoreUnreachableError("no server answers")
        session = NotedSession(self.tree)
        self.opened.append(session)
        try:
            yield session
        finally:
            with trio.CancelScope(shield=True):
                await session.aclose()

    @asynccontextmanager
    async def open_store(self) -> AsyncIterator[RenewingStore]:
        async with self.open_session() as first, trio.open_nursery() as nursery:
            store = RenewingStore(first, self.open_session)
            nursery.start_soon(store.keep)
            yield store
            nursery.cancel_scope.cancel()

    def expire(self) -> None:
        """End the present session."""
        self.opened[-1].expire()
