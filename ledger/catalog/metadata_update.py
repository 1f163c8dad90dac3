"""Changing a ledger's metadata by compare-and-set, until the change is made or found unneeded.

Inside: the loop over conflicts. Not inside: lost connections (``connection_retry``), which changes are legal.
Always: the metadata returned is the store's at that version; after an error the last write may or may
not have been applied.

Source: MetadataUpdateLoop.java; docs/protocol.md 5.7; docs/metadata.md 15.
"""

from __future__ import annotations

from collections.abc import Callable

from ledger.catalog.catalog import LedgerCatalog, Versioned
from ledger.catalog.connection_retry import retry_lost_connection
from ledger.metadata import LedgerMetadata
from ledger.metadata_store.errors import BadVersionError


async def update_metadata(
    catalog: LedgerCatalog,
    current: Versioned,
    change: Callable[[LedgerMetadata], LedgerMetadata | None],
    *,
    retry_timeout_s: float,
    lock: str | None = None,
) -> Versioned:
    """Apply ``change`` to the newest metadata; return what the store holds afterwards.

    If cancelled, the change may or may not be made.

    Args:
        current: The metadata that the caller knows; read again only if it proves to be old.
        change: Returns the new metadata, or None if no change is needed (any more). It is called again after
            each conflict, so it must recognise its own earlier success. An error that it raises ends the
            loop, and that round writes nothing.
        retry_timeout_s: How long the loop waits for an unreachable store.
        lock: See ``LedgerCatalog.put``.

    Raises:
        NoSuchLedgerError: The ledger was deleted.
        ledger.metadata_store.errors.NoNodeError: The lock is gone; the last change was not made.
        ledger.metadata_store.errors.ConnectionLostError: The store stayed out of reach; the outcome is
            unknown.
        ledger.metadata_store.errors.SessionExpiredError: The session ended; the outcome may be unknown.
    """
    is_stale = False

    async def read_and_write() -> Versioned:
        nonlocal current, is_stale
        while True:
            if is_stale:
                current = await catalog.get(current.ledger_id)
            # After a conflict, or after a write whose reply was lost and which may have been applied.
            is_stale = True
            new = change(current.metadata)
            if new is None:
                return current
            try:
                return await catalog.put(current.ledger_id, new, expected=current.version, lock=lock)
            except BadVersionError:
                continue

    return await retry_lost_connection(read_and_write, timeout_s=retry_timeout_s)
