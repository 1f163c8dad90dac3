"""Closing a ledger by its own writer.

Inside: the change of the metadata, and the cases in which another client has changed them before.
Not inside: waiting for pending entries (``write.handle``), closing by a recovery (``opening``).
Always: a writer closes at its own last confirmed entry or not at all.

Source: LedgerHandle.java (doAsyncCloseInternal); docs/protocol.md 5.9; docs/known-bugs.md 22.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ledger.catalog.catalog import LedgerCatalog, Versioned
from ledger.catalog.metadata_update import update_metadata
from ledger.errors import LedgerError, LedgerFencedError, LedgerWriteError
from ledger.metadata import LedgerMetadata, LedgerState
from ledger.metadata_store.errors import MetadataError
from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger

logger = get_logger(__name__)


async def close_at(
    catalog: LedgerCatalog, current: Versioned, lac: int, length_bytes: int, *, retry_timeout_s: float
) -> Versioned:
    """Write the ledger's end; return its closed metadata.

    If cancelled, the ledger is closed at this entry or not at all.

    Raises:
        LedgerFencedError: Another client closed the ledger at another entry, or is recovering it.
        LedgerWriteError: The metadata store failed. Whether the ledger is closed is unknown.
        NoSuchLedgerError: The ledger was deleted.
        MetadataFormatError: The stored metadata do not parse; they are left as they are.
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
                # Java closes here. The recovery may have shown readers entries beyond this writer's LAC: the
                # entries that it writes again carry its own LAC. To close before them would take them back.
                raise LedgerFencedError(ledger_id, "its metadata says that it is in recovery")

    try:
        return await update_metadata(catalog, current, change, retry_timeout_s=retry_timeout_s)
    except MetadataError as exc:
        raise LedgerWriteError(
            ledger_id,
            f"whether it is closed at entry {lac} is unknown: {exc}; open it with recovery to decide",
        ) from None


async def close_or_leave(ledger_id: int, close: Callable[[], Awaitable[object]]) -> None:
    """Close a ledger whose writer has failed; if that fails too, leave it to a recovery."""
    try:
        await close()
    except LedgerError as exc:
        logger.warning(
            "ledger %d is left to a recovery: %s",
            ledger_id,
            exc,
            extra=event("ledger.left_open", ledger=ledger_id, error=exc),
        )
