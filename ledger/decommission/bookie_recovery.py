"""Taking a bookie out of a cluster: its entries move to others, and then its cookie may go.

Inside: the session, the restorer, the cookie. Not inside: one ledger (``evacuation``), the
operator's request.
Always: a cookie is deleted only as ``removal.remove_cookie`` does it.

Source: BookKeeperAdmin.java (recoverBookieData, decommissionBookie); docs/autorecovery.md.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncGenerator, Collection

import attrs

from ledger.catalog.paths import check_bookie_id
from ledger.context import ClientContext
from ledger.decommission.evacuation import Evacuated, evacuate_bookies
from ledger.decommission.removal import check_not_registered, remove_cookie
from ledger.metadata_store.store import MetadataStore
from ledger.replication.config import ReplicationConfig
from ledger.replication.ledger_restorer import LedgerRestorer, RestorerStats
from ledger.replication.marks import UnderReplicatedLedgers


@attrs.frozen(kw_only=True)
class Evacuation:
    """The choices of a recovery of bookies: which ledgers it moves, and whether it deletes cookies."""

    delete_cookies: bool = False  # at the end, if no ledger was left
    must_be_stopped: bool = False  # refuse bookies that are registered
    close_open: bool = True  # fence and close a ledger that is written to one of them; its writer fails then
    ledger_id: int | None = None  # only this ledger, without cookies; None: all


async def recover_bookies(
    context: ClientContext,
    session: MetadataStore,
    bookies: Collection[str],
    wanted: Evacuation,
    *,
    config: ReplicationConfig | None = None,
    stats: RestorerStats | None = None,
) -> AsyncGenerator[Evacuated, None]:
    """Copy the entries of these bookies to others, ledger by ledger; yield the result of each.

    If a ledger was left, call it again. If cancelled, the ledgers so far are done.

    Args:
        session: The session of ``context``, which gets the locks.
        stats: Counts the work.

    Raises:
        BookieInUseError: With ``must_be_stopped``: nothing was copied. With ``delete_cookies``: at the end,
            the bookie is registered or a ledger names it, and its cookie was not deleted.
        NoSuchLedgerError: The ledger ``ledger_id`` does not exist.
        LedgerMetadataError: A name cannot be a bookie's id.
        ledger.metadata_store.errors.MetadataError: The metadata store failed.
    """
    root = context.catalog.root
    for bookie in bookies:
        check_bookie_id(bookie)
        if wanted.must_be_stopped:
            await check_not_registered(session, root, bookie)
    marks = UnderReplicatedLedgers(session, root, host_name=socket.getfqdn())
    await marks.prepare()
    restorer = LedgerRestorer(
        context, session, config or ReplicationConfig(), lock_path=marks.lock_path, stats=stats
    )
    is_all_done = True
    evacuating = evacuate_bookies(
        context, marks, restorer, bookies, close_open=wanted.close_open, ledger_id=wanted.ledger_id
    )
    async with contextlib.aclosing(evacuating):
        async for one in evacuating:
            is_all_done &= one.is_done
            yield one
    if wanted.delete_cookies and is_all_done and wanted.ledger_id is None:
        for bookie in bookies:
            await remove_cookie(context, session, bookie)
