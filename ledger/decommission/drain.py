"""Draining a bookie: it is read-only, and the wait until no writer has it in the ensemble it writes to.

Inside: the check that the bookie is read-only, the ledgers that are still written to it, the wait. Not
inside: making it read-only (``bookie.disk_watch``), moving its entries (``bookie_recovery``), commands.
Always: it only reads. A ledger whose metadata do not parse counts as one that is written to the bookie.

A read-only bookie refuses adds. A writer replaces it with its next append, if enough other bookies are
writable; a writer that appends nothing keeps it in its ensemble.

Source: BookieStateReadOnlyService.java; docs/running.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import trio

from ledger.catalog.catalog import LedgerCatalog
from ledger.context import ClientContext
from ledger.errors import BookieNotReadOnlyError, LedgerError, NoSuchLedgerError
from ledger.fragments.registered import RegisteredBookies, read_registered
from ledger.metadata_store.store import MetadataStore

POLL_S = 1.0
REGISTRATION_S = 10.0  # until the bookie's change to read-only is in the store


@attrs.frozen
class OpenEnd:
    """A ledger that is open, with the bookie in its last ensemble."""

    ledger_id: int
    reason: str  # why it may still name the bookie


async def drain_bookie(
    context: ClientContext,
    session: MetadataStore,
    bookie: str,
    *,
    poll_s: float = POLL_S,
    on_progress: Callable[[Sequence[OpenEnd]], object] = lambda _: None,
) -> None:
    """Wait without a limit until no open ledger is written to a read-only bookie.

    It changes nothing, so it can be cancelled and called again. After it, no writer notices when the bookie
    stops. Its entries stay, and readers use them until then.

    Args:
        session: One session, as ``MetadataStore.current_session`` returns it.
        poll_s: Seconds between two looks at the ledgers that are left.
        on_progress: Gets the ledgers that are left, after each look; nothing at the end.

    Raises:
        BookieNotReadOnlyError: The bookie is writable or not registered, or became so meanwhile.
        ledger.metadata_store.errors.MetadataError: The metadata store failed.
    """
    root = context.catalog.root
    catalog = LedgerCatalog(session, root, context.catalog.layout)
    await _wait_read_only(session, root, bookie, poll_s)
    while True:
        # A client with an old list of bookies may create a ledger after this list was read. It has no entry
        # on the bookie, which refuses the first one.
        left = await _open_ends(catalog, await catalog.ledger_ids(), bookie, session, root)
        on_progress(left)
        if not left:
            return
        while left:
            await trio.sleep(poll_s)
            left = await _open_ends(catalog, [one.ledger_id for one in left], bookie, session, root)
            if left:
                on_progress(left)


async def _wait_read_only(session: MetadataStore, root: str, bookie: str, poll_s: float) -> None:
    registered = await read_registered(session, root)
    with trio.move_on_after(REGISTRATION_S):
        while bookie not in registered.readonly:
            await trio.sleep(poll_s)
            registered = await read_registered(session, root)
    _check_read_only(registered, bookie)


def _check_read_only(registered: RegisteredBookies, bookie: str) -> None:
    if bookie in registered.readonly:
        return
    is_writable = bookie in registered.writable
    raise BookieNotReadOnlyError(
        bookie,
        "it is registered as writable, so new ledgers go to it. Make it read-only with `dlog bookie readonly"
        " on`; if that was done, its address belongs to another bookie, or the bookie has started again"
        if is_writable
        else "it is not registered, so it does not run, or has another id. `dlog bookies list` shows the ids",
    )


async def _open_ends(
    catalog: LedgerCatalog, ledger_ids: Sequence[int], bookie: str, session: MetadataStore, root: str
) -> list[OpenEnd]:
    """The ledgers of the list that are written to the bookie, with every change made before the call."""
    registered = await read_registered(session, root)  # it syncs, for the reads below too
    _check_read_only(registered, bookie)
    found = []
    for ledger_id in ledger_ids:
        try:
            metadata = (await catalog.get(ledger_id)).metadata
        except NoSuchLedgerError:
            continue
        except LedgerError as exc:
            found.append(OpenEnd(ledger_id, str(exc)))
            continue
        members = metadata.last_ensemble.bookies
        if metadata.is_closed or bookie not in members:
            continue
        spares = len(registered.writable.difference(members))
        found.append(
            OpenEnd(
                ledger_id,
                f"its writer has appended nothing since, or is gone; other writable bookies: {spares}"
                if spares
                else f"no other bookie is writable, and its ensemble has {len(members)}",
            )
        )
    return found
