"""Deleting ledgers that were deleted while they were in limbo, without waiting for the garbage collection.

The repair of a ledger in limbo finds no metadata if the ledger was deleted. Until the ledger is deleted here
too, it stays in limbo, and the repair tries it again and again.

Inside: the look-up that confirms a deletion, watching ledgers. Not inside: the repair (``integrity``), the
garbage collection (``gc``).
Always: a ledger is deleted here only if its node does not exist, and the store still belongs to the cluster
that this bookie joined, as for the garbage collection.

Source: none; Apache's bookie waits for its garbage collection.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from bookie.ledger_metadata.live_ledgers import LiveLedgers, ServedLedgers

WATCHED_MAX = 1000  # ledgers; the deletion of another one is found by the next attempt to repair it


@attrs.frozen
class GoneLedgers:
    """The deletions that one bookie's repair has to know."""

    live: LiveLedgers
    served: ServedLedgers

    async def delete(self, ledger_ids: Sequence[int]) -> list[int]:
        """Delete those of the ledgers that do not exist any more, with what they stored here; return them.

        If it raises, none was deleted. If cancelled, some may be.

        Raises:
            ClusterChangedError, MetadataError: The store cannot be read, or cannot be trusted.
            StorageFailedError: The disk failed.
        """
        found = await self.live.find(ledger_ids)
        gone = [one for one in ledger_ids if one not in found]
        if gone:
            await self.served.delete_ledgers(gone)
        return gone

    async def wait_change(self, ledger_ids: Sequence[int]) -> None:
        """Return when one of the first ledgers may have been changed or deleted.

        Raises:
            MetadataError: The store cannot be read.
        """
        await self.live.wait_change(ledger_ids[:WATCHED_MAX])
