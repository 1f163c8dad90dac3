"""Opening a ledger that somebody else wrote: recover its end or ask for its LAC.

Inside: the steps of both in the metadata and in the questions to bookies. Not inside: the end of a recovery
(``recovery``) and how it is found (``recovery_run``).
Always: a recovery that fails has closed nothing; run it again.

Source: LedgerOpenOp.java, LedgerRecoveryOp.java; reference sections 6.8 and 7.1.
"""

from __future__ import annotations

import logging

import trio

from ledger.catalog import Versioned
from ledger.cluster import Cluster
from ledger.digest import EntryCodec
from ledger.errors import BookieError, CorruptEntryError
from ledger.metadata import LedgerMetadata, LedgerState
from ledger.metadata_update import update_metadata
from ledger.questions import read_lac
from ledger.reader import LacQuery
from ledger.recovery_run import RecoveryRun

logger = logging.getLogger(__name__)


async def query_lac(cluster: Cluster, current: Versioned, codec: EntryCodec) -> int:
    """The LAC of an open ledger, from so many bookies that no confirmed LAC told to others is missed.

    Raises:
        LedgerReadError: Too many bookies gave no answer; the reasons are in it.
    """
    metadata = current.metadata
    bookies = metadata.last_ensemble.bookies
    query = LacQuery(
        current.ledger_id, bookies, write_quorum=metadata.write_quorum, ack_quorum=metadata.ack_quorum
    )

    async def ask(bookie: str, scope: trio.CancelScope) -> None:
        try:
            query.told(bookie, await read_lac(cluster.transport, bookie, current.ledger_id, codec))
        except (BookieError, CorruptEntryError) as exc:
            query.failed(bookie, exc)
        if query.is_covered:
            scope.cancel()

    async with trio.open_nursery() as nursery:
        for bookie in bookies:
            nursery.start_soon(ask, bookie, nursery.cancel_scope)
    if not query.is_covered:
        raise query.error()
    return max(query.lac, metadata.last_ensemble.first_entry_id - 1)


async def recover_ledger(cluster: Cluster, current: Versioned, codec: EntryCodec) -> Versioned:
    """Fence the ledger, find its end and close it there; its metadata, closed.

    Every entry that was ever acknowledged is kept, and entries in flight may be. If cancelled, the ledger may
    be fenced and in recovery; nothing is lost, recover it again.

    Raises:
        LedgerRecoveryError: Too few bookies answered, or could be written to.
        WrongPasswordError: A bookie holds the ledger under another key.
        NoSuchLedgerError: The ledger was deleted meanwhile.
        namespace.errors.NamespaceError: The metadata store failed.
    """

    def mark(metadata: LedgerMetadata) -> LedgerMetadata | None:
        return metadata.in_recovery() if metadata.state is LedgerState.OPEN else None

    patience_s = cluster.config.unavailable_patience_s
    current = await update_metadata(cluster.catalog, current, mark, patience_s=patience_s)
    if current.metadata.is_closed:
        return current
    logger.info("ledger %d: recovering it", current.ledger_id)
    decision = await RecoveryRun(cluster, current, codec).play()
    closed = await update_metadata(cluster.catalog, current, decision.apply, patience_s=patience_s)
    logger.info(
        "ledger %d: closed at entry %d, %d bytes",
        current.ledger_id,
        closed.metadata.last_entry_id,
        closed.metadata.length_bytes,
    )
    return closed
