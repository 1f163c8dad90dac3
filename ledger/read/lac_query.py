"""Reading the last add confirmed of an open ledger from its bookies.

Inside: the requests, to all bookies at once, until enough have replied.
Not inside: how many are enough (``replica_rules``).

Source: ReadLastConfirmedOp.java; docs/protocol.md 6.4, 7.3.
"""

from __future__ import annotations

import trio

from ledger.catalog.catalog import Versioned
from ledger.context import ClientContext
from ledger.digest import EntryCodec
from ledger.errors import BookieError, CorruptEntryError
from ledger.read.replica_rules import LacQuery
from ledger.transport.bookie_requests import read_lac


async def query_lac(context: ClientContext, current: Versioned, codec: EntryCodec) -> int:
    """The LAC of an open ledger: at least the one that any acknowledged entry carries.

    A cancelled query changes nothing.

    Raises:
        LedgerReadError: Too few bookies replied; the message has the reasons of the others.
    """
    metadata = current.metadata
    bookies = metadata.last_ensemble.bookies
    query = LacQuery(
        current.ledger_id, bookies, write_quorum=metadata.write_quorum, ack_quorum=metadata.ack_quorum
    )

    async def read(bookie: str, scope: trio.CancelScope) -> None:
        try:
            query.on_lac(bookie, await read_lac(context.transport, bookie, current.ledger_id, codec))
        except (BookieError, CorruptEntryError) as exc:
            query.on_failure(bookie, exc)
        if query.is_covered:
            scope.cancel()

    async with trio.open_nursery() as nursery:
        for bookie in bookies:
            nursery.start_soon(read, bookie, nursery.cancel_scope)
    if not query.is_covered:
        raise query.error()
    return max(query.lac, metadata.last_ensemble.first_entry_id - 1)
