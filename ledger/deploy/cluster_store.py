"""The metadata store of a cluster: a session with ZooKeeper that is replaced when it expires.

Not inside: the session (``ledger.metadata_store.zookeeper``), its replacement
(``ledger.metadata_store.sessions``).
Always: the caller gets the error of the first session; later ones are tried until the block ends.

Source: our own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from ledger.metadata_store.sessions.renewing_store import RenewingStore
from ledger.metadata_store.store import MetadataStore
from ledger.metadata_store.zookeeper import open_zookeeper_store
from ledger.metadata_store.zookeeper_security import ZooKeeperSecurity
from ledger.runtime.tasks.background import open_background


@asynccontextmanager
async def open_cluster_store(
    hosts: str,
    *,
    session_timeout_ms: int,
    connect_timeout_s: float,
    security: ZooKeeperSecurity | None,
) -> AsyncIterator[RenewingStore]:
    """Open a store that outlives its sessions. Leaving the block ends the session that is open then.

    Arguments and errors are those of ``open_zookeeper_store``.
    """

    def open_session() -> AbstractAsyncContextManager[MetadataStore]:
        return open_zookeeper_store(
            hosts,
            session_timeout_ms=session_timeout_ms,
            connect_timeout_s=connect_timeout_s,
            security=security,
        )

    async with open_session() as first, open_background() as tasks:
        store = RenewingStore(first, open_session)
        tasks.start_soon(store.keep)
        yield store
