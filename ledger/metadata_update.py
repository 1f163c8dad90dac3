"""Changing a ledger's metadata by compare-and-set, until the change is made or found unneeded.

Inside: the loop, with what a lost connection to the store means. Not inside: which changes are legal.
Always: when it returns, the metadata it returns is what the store held at that version; when it raises, the
last write may or may not have been applied.

Source: MetadataUpdateLoop.java; bookkeeper-metadata reference sections 11.3 and 15.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from ledger.catalog import LedgerCatalog, Versioned
from ledger.metadata import LedgerMetadata
from namespace.errors import BadVersionError, ConnectionLostError

RETRY_PAUSE_S = 0.2


async def update_metadata(
    catalog: LedgerCatalog,
    current: Versioned,
    change: Callable[[LedgerMetadata], LedgerMetadata | None],
    *,
    patience_s: float,
) -> Versioned:
    """Apply ``change`` to the newest metadata; return what the store holds afterwards.

    If cancelled, the change may or may not be made.

    Args:
        current: What the caller knows; read again only when it proves old.
        change: The new value, or None if nothing is needed (any more). It is asked again after each
            conflict, so it must recognise its own earlier success. What it raises ends the loop with
            nothing of that round written.
        patience_s: How long an unreachable store is waited for.

    Raises:
        NoSuchLedgerError: The ledger was deleted.
        namespace.errors.ConnectionLostError: The store stayed out of reach; the outcome is unknown.
        namespace.errors.SessionExpiredError: The session ended; the outcome may be unknown.
    """
    deadline = trio.current_time() + patience_s
    is_stale = False
    while True:
        try:
            if is_stale:
                current = await catalog.get(current.ledger_id)
                is_stale = False
            new = change(current.metadata)
            if new is None:
                return current
            return await catalog.put(current.ledger_id, new, expected=current.version)
        except BadVersionError:
            is_stale = True
        except ConnectionLostError:
            # The write may have been applied although its answer was lost. Only reading tells; `change`
            # then says that nothing is needed any more.
            is_stale = True
            if trio.current_time() >= deadline:
                raise
            await trio.sleep(RETRY_PAUSE_S)
