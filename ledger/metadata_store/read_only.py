"""A metadata store that refuses each change.

Inside: the refusal, and a store that passes reads on to another one. Not inside: reading a file without a
session (``sqlite_store``).
Always: a change is refused before the store behind sees it, so no session creates a node by mistake.

Source: our own.
"""

from __future__ import annotations

from collections.abc import Sequence

from ledger.metadata_store.errors import ReadOnlyStoreError
from ledger.metadata_store.forwarding import ForwardingStore
from ledger.metadata_store.store import ANY_VERSION, MetadataStore, Operation, Stat


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


class ReadOnlyStore(RefusingStore, ForwardingStore):
    """The reads of another store. Closing it closes that store."""

    def current_session(self) -> MetadataStore:
        return ReadOnlyStore(self._store.current_session())
