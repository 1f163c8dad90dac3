"""Closing a ledger by its own writer.

Inside: the change of the metadata and what else may be found there. Not inside: waiting for pending entries
(``write_handle``), closing by recovery (``opening``).
Always: a writer closes at its own last confirmed entry or not at all.

Source: LedgerHandle.java (doAsyncCloseInternal); reference section 5.9; lessons row 22.
"""

from __future__ import annotations

from ledger.catalog import LedgerCatalog, Versioned
from ledger.errors import LedgerFencedError, LedgerWriteError
from ledger.metadata import LedgerMetadata, LedgerState
from ledger.metadata_update import update_metadata
from namespace.errors import NamespaceError


async def close_at(
    catalog: LedgerCatalog, current: Versioned, lac: int, length_bytes: int, *, patience_s: float
) -> Versioned:
    """Write the ledger's end; its metadata, closed. If cancelled, it is closed there or not at all.

    Raises:
        LedgerFencedError: Somebody else closed it elsewhere, or is recovering it.
        LedgerWriteError: Whether it is closed is unknown: the metadata store failed.
        NoSuchLedgerError: It was deleted.
        MetadataFormatError: Somebody wrote metadata that do not parse; nothing is written over them.
    """
    ledger_id = current.ledger_id

    def change(metadata: LedgerMetadata) -> LedgerMetadata | None:
        match metadata.state:
            case LedgerState.OPEN:
                return metadata.closed(lac, length_bytes)
            case LedgerState.CLOSED:
                if (metadata.last_entry_id, metadata.length_bytes) == (lac, length_bytes):
                    return None
                raise LedgerFencedError(
                    ledger_id,
                    f"it was closed at entry {metadata.last_entry_id} with {metadata.length_bytes} bytes,"
                    f" this writer's last confirmed entry is {lac} with {length_bytes} bytes",
                )
            case LedgerState.IN_RECOVERY:
                # Java closes here. The recovery may have shown entries beyond our LAC to readers already
                # (its re-written entries carry its own LAC), and closing below them would take them back.
                raise LedgerFencedError(ledger_id, "its metadata says that it is in recovery")

    try:
        return await update_metadata(catalog, current, change, patience_s=patience_s)
    except NamespaceError as exc:
        raise LedgerWriteError(
            ledger_id,
            f"whether it is closed at entry {lac} is unknown: {exc}; open it with recovery to decide",
        ) from exc
