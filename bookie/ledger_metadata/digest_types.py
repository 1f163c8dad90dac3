"""The digest type of a ledger, from its metadata.

A bookie needs it only for a repeated add whose held bytes match no checksum (``requests.repeated_adds``). So
it is read each time, and only a few reads run at once.

Inside: the read, its limits. Not inside: the consequences of the type.
Always: if the store does not reply in time, the type is not known.
"""

from __future__ import annotations

import attrs
import trio

from bookie.ledger_metadata.cluster_nodes import ClusterNodes
from ledger.digest import DigestType
from ledger.errors import LedgerError
from ledger.metadata_store.errors import MetadataError

READS_AT_ONCE = 4
TIMEOUT_S = 5.0


@attrs.frozen
class DigestTypes:
    """Implements ``DigestTypeOf`` with the metadata store of the current session."""

    nodes: ClusterNodes
    _limiter: trio.CapacityLimiter = attrs.field(
        factory=lambda: trio.CapacityLimiter(READS_AT_ONCE), init=False
    )

    async def __call__(self, ledger_id: int) -> DigestType | None:
        """The type; None if it is not stored, the ledger does not exist, or its metadata cannot be read."""
        with trio.move_on_after(TIMEOUT_S):
            async with self._limiter:
                try:
                    metadata = (await self.nodes.catalog.get(ledger_id)).metadata
                except (MetadataError, LedgerError):
                    return None
                # Metadata of format version 1 may store no type. Then the field has Java's default.
                return None if metadata.password is None else metadata.digest_type
        return None
