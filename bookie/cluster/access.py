"""A bookie's access to its cluster, for work that is not about its own entries.

Inside: the nodes through the bookie's own session, and a client with a session of its own. Not inside: the
work (``integrity``, ``bookie.http``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import attrs

from bookie.cluster.registration import OpenStore
from bookie.ledger_metadata.cluster_nodes import ClusterNodes
from ledger.catalog.catalog import LedgerCatalog
from ledger.catalog.paths import Layout
from ledger.client import LedgerClient, open_ledger_client
from ledger.config import ClientConfig
from ledger.metadata_store.store import MetadataStore
from ledger.replication.marks import UnderReplicatedLedgers
from ledger.transport.dial import dial_tcp
from ledger.transport.transport import Dial


@attrs.frozen
class ClusterAccess:
    """The cluster that one bookie belongs to."""

    nodes: ClusterNodes
    open_store: OpenStore
    client_config: Callable[[], ClientConfig]  # certificates may be new at each call
    dial: Dial = dial_tcp

    @property
    def root(self) -> str:
        return self.nodes.root

    @property
    def layout(self) -> Layout:
        return self.nodes.layout

    def session(self) -> MetadataStore:
        """The bookie's present session."""
        return self.nodes.session()

    @property
    def catalog(self) -> LedgerCatalog:
        """The ledgers, through the bookie's present session."""
        return self.nodes.catalog

    @property
    def marks(self) -> UnderReplicatedLedgers:
        """The nodes of auto-recovery, through the bookie's present session; for no locks."""
        return UnderReplicatedLedgers(self.session(), self.root)

    @asynccontextmanager
    async def open_session(self) -> AsyncIterator[tuple[MetadataStore, LedgerClient]]:
        """A client of all bookies and its session. Leaving the block ends both.

        Raises:
            MetadataError: The metadata store cannot be reached.
        """
        async with (
            self.open_store() as store,
            open_ledger_client(
                store, self.dial, self.client_config(), root=self.root, layout=self.layout
            ) as client,
        ):
            yield store, client

    @asynccontextmanager
    async def open_client(self) -> AsyncIterator[LedgerClient]:
        """As ``open_session``, for work that needs no nodes of its own."""
        async with self.open_session() as (_, client):
            yield client
