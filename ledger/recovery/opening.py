"""Recovering a ledger: fence it, find its end, close it there.

Inside: the steps in the metadata.
Not inside: deciding the end (``recovery``), performing the requests for it (``recovery.driver``).
Always: a recovery that fails has not closed the ledger; it can be repeated.

Source: LedgerOpenOp.java, LedgerRecoveryOp.java; docs/protocol.md 6.7, 7.1.
"""

from __future__ import annotations

from ledger.catalog.catalog import Versioned
from ledger.catalog.metadata_update import update_metadata
from ledger.context import ClientContext
from ledger.digest import EntryCodec
from ledger.metadata import LedgerMetadata, LedgerState
from ledger.recovery.driver import RecoveryDriver
from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger
from ledger.runtime.statistics.names import LEDGER_RECOVER, LEDGERS_RECOVERED

logger = get_logger(__name__)


async def recover_ledger(context: ClientContext, current: Versioned, codec: EntryCodec) -> Versioned:
    """Fence the ledger, find its end and close it there; return the closed metadata.

    All acknowledged entries are kept; entries in flight may be kept. If cancelled, the ledger may be fenced
    and in recovery. No entry is lost; recover it again.

    Raises:
        LedgerRecoveryError: Too few bookies replied, or accepted adds.
        AccessDeniedError: A bookie refuses this client, or has the ledger under another key.
        NoSuchLedgerError: The ledger was deleted in the meantime.
        ledger.metadata_store.errors.MetadataError: The metadata store failed.
    """

    def mark(metadata: LedgerMetadata) -> LedgerMetadata | None:
        return metadata.in_recovery() if metadata.state is LedgerState.OPEN else None

    retry_timeout_s = context.config.unavailable_timeout_s
    current = await update_metadata(context.catalog, current, mark, retry_timeout_s=retry_timeout_s)
    if current.metadata.is_closed:
        return current
    logger.info(
        "ledger %d: recovery begins",
        current.ledger_id,
        extra=event("ledger.recovery_begun", ledger=current.ledger_id),
    )
    with context.recorder.operation(LEDGER_RECOVER, "recover ledger", ledger=current.ledger_id):
        decision = await RecoveryDriver(context, current, codec).find_end()
        closed = await update_metadata(
            context.catalog, current, decision.apply, retry_timeout_s=retry_timeout_s
        )
    context.recorder.counts[LEDGERS_RECOVERED] += 1
    logger.info(
        "ledger %d: closed at entry %d, %d bytes",
        current.ledger_id,
        closed.metadata.last_entry_id,
        closed.metadata.length_bytes,
        extra=event(
            "ledger.recovered",
            ledger=current.ledger_id,
            last_entry=closed.metadata.last_entry_id,
            bytes=closed.metadata.length_bytes,
        ),
    )
    return closed
