"""Taking a bookie out of a cluster: its entries move to others, and then its cookie may go.

Inside: the session, the restorer, the cookie. Not inside: one ledger (``evacuation``), who asks for it.
Always: a cookie is deleted only when no ledger names the bookie any more, and, for a bookie that is
decommissioned, only while it is not registered.

Source: BookKeeperAdmin.java (recoverBookieData, decommissionBookie); docs/autorecovery.md.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Collection

from ledger.catalog.paths import check_bookie_id, cookie_path
from ledger.context import ClientContext
from ledger.errors import LedgerError
from ledger.replication.config import ReplicationConfig
from ledger.replication.evacuation import Evacuated, evacuate_bookies
from ledger.replication.ledger_restorer import LedgerRestorer
from ledger.replication.marks import UnderReplicatedLedgers
from ledger.replication.registered import read_registered
from namespace.errors import NoNodeError
from namespace.store import MetadataStore


class BookieRunsError(LedgerError):
    """The bookie is registered, so it may get new ledgers while it is taken out."""


async def check_stopped(session: MetadataStore, root: str, bookie: str) -> None:
    """Check that a bookie is not registered.

    Raises:
        BookieRunsError: It is.
    """
    if bookie in (await read_registered(session, root)).all:
        raise BookieRunsError(
            f"bookie {bookie} is registered; stop it before it is decommissioned, so that it gets no new"
            " ledgers"
        )


async def recover_bookies(
    context: ClientContext,
    session: MetadataStore,
    bookies: Collection[str],
    *,
    delete_cookies: bool = False,
    must_be_stopped: bool = False,
    close_open: bool = True,
    config: ReplicationConfig | None = None,
) -> AsyncGenerator[Evacuated, None]:
    """Copy the entries of these bookies to others, ledger by ledger; yield the result of each.

    If a ledger was left, call it again. If cancelled, the ledgers so far are done.

    Args:
        session: The session of ``context``, which gets the locks.
        delete_cookies: At the end, if no ledger was left.
        must_be_stopped: Refuse bookies that are registered.
        close_open: Fence and close a ledger that is written to one of the bookies; its writer fails then.

    Raises:
        BookieRunsError: With ``must_be_stopped``: nothing was copied, or, at the end, no cookie was deleted.
        LedgerMetadataError: A name cannot be a bookie's id.
        namespace.errors.NamespaceError: The metadata store failed.
    """
    root = context.catalog.root
    for bookie in bookies:
        check_bookie_id(bookie)
        if must_be_stopped:
            await check_stopped(session, root, bookie)
    marks = UnderReplicatedLedgers(session, root, host_name=socket.getfqdn())
    await marks.prepare()
    restorer = LedgerRestorer(context, session, config or ReplicationConfig(), lock_path=marks.lock_path)
    is_all_done = True
    async for one in evacuate_bookies(context, marks, restorer, bookies, close_open=close_open):
        is_all_done &= one.is_done
        yield one
    if not (delete_cookies and is_all_done):
        return
    for bookie in bookies:
        if must_be_stopped:
            await check_stopped(session, root, bookie)
        try:
            await session.delete(cookie_path(root, bookie))
        except NoNodeError:
            pass  # deleted already
