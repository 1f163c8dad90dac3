"""One change of the ensemble of a ledger being written: the new metadata, and a check of the stored metadata.

Inside: the metadata with the change, computed again from the stored ones after a conflict; whether another
client took the ledger over. Not inside: the loop of compare-and-set (``metadata_update``), choosing bookies
(``placer``), sending entries afterwards (``writer``), one change at a time (``ensemble_state``).
Always: only an open ledger is changed; the change begins after the last confirmed entry; applying it twice
has the effect of applying it once; if another client changed the ensemble meanwhile, the stored ensemble
counts.

Source: EnsembleUtils.java, LedgerHandle.java (ensembleChangeLoop); docs/protocol.md 5.6, 5.7.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from ledger.errors import LedgerMetadataError
from ledger.metadata import LedgerMetadata, LedgerState


@attrs.frozen
class EnsembleChange:
    """From ``first_entry_id`` on, other bookies replace failing ones."""

    first_entry_id: int
    replacements: Mapping[str, str] = attrs.field(hash=False)  # failing bookie to the new one

    def apply(self, metadata: LedgerMetadata) -> LedgerMetadata | None:
        """The metadata with the change; None if there is nothing to write.

        There is nothing to write in three cases. The ledger is no longer open. The change is stored already,
        because the reply to an earlier attempt was lost. Or another client has put one of the new bookies
        into the ensemble: a bookie cannot hold two places, so others have to be chosen.
        """
        if metadata.state is not LedgerState.OPEN:
            return None
        ensemble = metadata.last_ensemble.bookies
        replaced = [bookie for bookie in ensemble if bookie in self.replacements]
        if not replaced or any(self.replacements[bookie] in ensemble for bookie in replaced):
            return None
        return metadata.with_ensemble(
            self.first_entry_id, tuple(self.replacements.get(bookie, bookie) for bookie in ensemble)
        )

    def check_found(self, metadata: LedgerMetadata) -> None:
        """Raise unless the writer can continue with these metadata of an open ledger.

        Raises:
            LedgerMetadataError: They hold what no client writes. They are left as they are.
        """
        found = metadata.last_ensemble
        if found.first_entry_id > self.first_entry_id:
            raise LedgerMetadataError(
                f"its last ensemble begins at entry {found.first_entry_id}, but the first entry that is not"
                f" confirmed is {self.first_entry_id}"
            )


def taken_over(metadata: LedgerMetadata) -> str | None:
    """The evidence in the metadata that another client took the ledger over; None if there is none."""
    match metadata.state:
        case LedgerState.OPEN:
            return None
        case LedgerState.IN_RECOVERY:
            return "its metadata says that it is in recovery"
        case LedgerState.CLOSED:
            # Not LedgerClosedError: the ledger's end may differ from this writer's LAC.
            return f"another client closed it at entry {metadata.last_entry_id}"
