"""One change of the ensemble of a ledger being written: what is stored, and what is found stored afterwards.

Inside: the metadata with the change, made anew from whatever was found after a conflict; whose the ledger is
by its metadata. Not inside: the loop of compare-and-set (``metadata_update``), choosing bookies (``placer``),
what is sent to whom afterwards (``writer``), one change at a time (``repair``).
Always: a change is made to an open ledger only, it begins behind the last confirmed entry, and made twice it
is made once; where others changed the ensemble meanwhile, what is stored counts, not what was wished for.

Source: EnsembleUtils.java, LedgerHandle.java (ensembleChangeLoop); reference sections 5.6 and 5.7.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from ledger.errors import LedgerMetadataError
from ledger.metadata import LedgerMetadata, LedgerState


@attrs.frozen
class EnsembleChange:
    """From ``first_entry_id`` on, other bookies in the place of failing ones."""

    first_entry_id: int
    replacements: Mapping[str, str] = attrs.field(hash=False)  # failing bookie to the new one

    def apply(self, metadata: LedgerMetadata) -> LedgerMetadata | None:
        """The metadata with the change; None if there is nothing to write.

        That is so when the ledger is no longer open, when the change is there already (the answer to an
        earlier attempt was lost), and when somebody else has put one of the new bookies into the ensemble: it
        cannot hold two places, and others have to be chosen.
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
        """Raise unless the writer can go on with an open ledger whose metadata is this now.

        Raises:
            LedgerMetadataError: Somebody else wrote what no client writes. Nothing of it is written over.
        """
        found = metadata.last_ensemble
        if found.first_entry_id > self.first_entry_id:
            raise LedgerMetadataError(
                f"its last ensemble begins at entry {found.first_entry_id}, but the first entry that is not"
                f" confirmed is {self.first_entry_id}"
            )
        if len(set(found.bookies)) < len(found.bookies):
            raise LedgerMetadataError(f"its last ensemble has a bookie twice: {', '.join(found.bookies)}")


def taken_over(metadata: LedgerMetadata) -> str | None:
    """How the metadata says that the ledger is no longer its writer's; None if it still is."""
    match metadata.state:
        case LedgerState.OPEN:
            return None
        case LedgerState.IN_RECOVERY:
            return "its metadata says that it is in recovery"
        case LedgerState.CLOSED:
            # Not "closed" as by this writer itself: its end may be another one than the LAC here.
            return f"closed by somebody else at entry {metadata.last_entry_id}"
