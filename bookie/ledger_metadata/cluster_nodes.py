"""Where the nodes of one cluster are.

Inside: the session that a bookie has now, the root of its cluster, the layout of the ledgers' nodes. Not
inside: what reads them.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from ledger.catalog.catalog import LedgerCatalog
from ledger.catalog.paths import Layout
from ledger.metadata_store.store import MetadataStore


@attrs.frozen
class ClusterNodes:
    """The nodes of the cluster that one bookie belongs to."""

    session: Callable[[], MetadataStore]  # the bookie's own, which another one replaces when it expires
    root: str
    layout: Layout

    @property
    def catalog(self) -> LedgerCatalog:
        """The ledgers, through the present session."""
        return LedgerCatalog(self.session(), self.root, self.layout)
