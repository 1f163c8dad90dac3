"""The metadata store of a directory: a session with its file that is replaced when it expires.

The session of a living process expires only if its lock file is removed
(``ledger.metadata_store.sqlite_store.session``): by a program that cleans up, or by an operator. A process
that stands still, however long, keeps its session.

Not inside: the session (``ledger.metadata_store.sqlite_store.store``), its replacement
(``ledger.metadata_store.sessions``).
Always: the next session is one with the same file. Another file of the same name, as after the directory was
deleted and made again or restored from a copy, holds other logs: positions and locks mean nothing there.

Source: our own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from ledger.metadata_store.errors import StoreReplacedError
from ledger.metadata_store.sessions.renewing_store import RenewingStore
from ledger.metadata_store.sqlite_store.store import SqliteStore, open_sqlite_store
from ledger.metadata_store.store import MetadataStore
from ledger.runtime.tasks.background import open_background


class DirectoryStore(RenewingStore):
    """The store of a directory, which ends when the directory is lost."""

    def lose(self, reason: str) -> None:
        """End the session, and open no other one: the directory is not at its path any more."""
        replaced = StoreReplacedError(reason)
        self.end(replaced)
        if isinstance(self._session, SqliteStore):
            self._session.expire(replaced)


@asynccontextmanager
async def open_directory_store(database: Path, *, must_exist: bool = False) -> AsyncIterator[DirectoryStore]:
    """Open a store that outlives its sessions. Leaving the block ends the session that is open then.

    Errors are those of ``open_sqlite_store``.
    """
    async with open_sqlite_store(database, must_exist=must_exist) as first, open_background() as tasks:

        def open_session() -> AbstractAsyncContextManager[MetadataStore]:
            return open_sqlite_store(database, identity=first.identity)

        store = DirectoryStore(first, open_session)
        tasks.start_soon(store.keep)
        yield store
