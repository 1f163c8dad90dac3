"""Waiting until a bookie that was restarted has all its entries again, before the next one is restarted.

Inside: the look at the ledgers that name the bookie. Not inside: stopping and starting (``local``), copying
what it missed (auto-recovery).
Always: nothing is changed. A ledger that cannot be looked at counts as one that lacks entries.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from ledger.client import LedgerClient
from ledger.errors import LedgerError, NoSuchLedgerError
from ledger.fragments.ledger_check import LedgerCheck, last_entry_of
from ledger.fragments.registered import read_registered

POLL_S = 0.5


async def wait_replicated(
    client: LedgerClient,
    bookie: str,
    *,
    poll_s: float = POLL_S,
    on_progress: Callable[[int], object] = lambda left: None,
) -> None:
    """Wait without a limit until a bookie has every confirmed entry that it shall hold.

    Args:
        on_progress: Gets the number of ledgers that lack entries on it, after each look.

    Raises:
        ledger.metadata_store.errors.MetadataError: The metadata store failed.
    """
    left = await client.ledger_ids()
    while True:
        left = [one for one in left if not await _is_whole(client, one, bookie)]
        on_progress(len(left))
        if not left:
            return
        await trio.sleep(poll_s)


async def _is_whole(client: LedgerClient, ledger_id: int, bookie: str) -> bool:
    context = client.context
    try:
        current = await context.catalog.get_newest(ledger_id)
        if not any(bookie in ensemble.bookies for ensemble in current.metadata.ensembles):
            return True
        registered = await read_registered(context.catalog.store.current_session(), context.catalog.root)
        check = LedgerCheck(context, asks_lists=True, members=[bookie])
        return (await check.find(current, await last_entry_of(context, current), registered)).is_sound
    except NoSuchLedgerError:
        return True
    except LedgerError:
        return False
