"""Removing a bookie from its cluster: its ledgers move to other bookies, then its cookie is deleted.

Inside: Apache's ``decommissionbookie``: the marks for the workers, the wait for them, the cookie. Not inside:
copying (``worker``, ``evacuation``), the text of a cookie, commands.
Always: the cookie is deleted only if no ledger names the bookie any more, by metadata read after the last
change, and only if the bookie is not registered at that moment; a ledger whose metadata cannot be read counts
as one that names the bookie.

Source: BookKeeperAdmin.java (decommissionBookie), DecommissionCommand.java; docs/autorecovery.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import attrs
import trio

from ledger.catalog.catalog import LedgerCatalog
from ledger.catalog.paths import READONLY, available_path, cookie_path, readonly_path
from ledger.context import ClientContext
from ledger.decommission.evacuation import evacuate_bookies
from ledger.errors import BookieInUseError, NoAutoRecoveryError, NoSuchLedgerError
from ledger.fragments.fragments import fragments_of
from ledger.fragments.registered import read_registered
from ledger.metadata import LedgerMetadata
from ledger.metadata_store.errors import BadVersionError, NodeExistsError, NoNodeError
from ledger.metadata_store.store import Create, Delete, MetadataStore
from ledger.replication.config import ReplicationConfig
from ledger.replication.election import current_auditor
from ledger.replication.ledger_restorer import LedgerRestorer
from ledger.replication.marks import UnderReplicatedLedgers

POLL_S = 3.0
_LEDGERS_SHOWN = 8  # in one message


@attrs.frozen
class RemovalProgress:
    """The state of a removal at one moment."""

    ledgers: int  # that named the bookie at the beginning
    ledgers_left: int


@attrs.frozen
class Removed:
    """A bookie left the cluster, or only its ledgers did."""

    ledgers: int  # that named it and were moved
    is_cookie_deleted: bool


async def decommission_bookie(
    context: ClientContext,
    session: MetadataStore,
    bookie: str,
    *,
    delete_cookie: bool = True,
    poll_s: float = POLL_S,
    on_progress: Callable[[RemovalProgress], object] = lambda _: None,
) -> Removed:
    """Let the workers of auto-recovery move all ledgers off a stopped bookie; then delete its cookie.

    The call marks each ledger that names the bookie and waits for the workers, without a limit. Fragments
    in which the bookie holds no entry are changed by this call, because workers leave them. If cancelled,
    the marks stay and the workers continue; call it again to wait for them and to delete the cookie.

    Args:
        session: One session, as ``MetadataStore.current_session`` returns it.
        poll_s: Seconds between two looks at the ledgers that are left.
        on_progress: Called after each look.

    Raises:
        BookieInUseError: The bookie is registered. Nothing was changed, or, if it came back later, the
            ledgers so far were moved.
        NoAutoRecoveryError: No process would move the ledgers.
        MetadataFormatError: The metadata of a ledger do not parse, so they may name the bookie.
        ledger.metadata_store.errors.MetadataError: The metadata store failed.
    """
    root = context.catalog.root
    marks = UnderReplicatedLedgers(session, root)
    catalog = LedgerCatalog(session, root, context.catalog.layout)
    await check_not_registered(session, root, bookie)
    left = dict.fromkeys(await _named(catalog, bookie))
    moved = set(left)
    await marks.prepare()
    while True:
        for ledger_id in list(left):
            if not await _needs_worker(catalog, ledger_id, bookie):
                del left[ledger_id]
        if left:
            on_progress(RemovalProgress(len(moved), len(left)))
            await check_not_registered(session, root, bookie)
            await _check_auto_recovery(marks, session, root)
            for ledger_id in left:
                # It writes nothing if the mark is there. A worker may have removed it too early.
                await marks.mark(ledger_id, [bookie])
            await trio.sleep(poll_s)
            continue
        await check_not_registered(session, root, bookie)
        restorer = LedgerRestorer(context, session, ReplicationConfig(), lock_path=marks.lock_path)
        evacuating = evacuate_bookies(context, marks, restorer, [bookie], close_open=True)
        async with contextlib.aclosing(evacuating):
            async for _ in evacuating:
                pass
        left = dict.fromkeys(await _named(catalog, bookie))
        moved.update(left)
        if not left:
            break
        on_progress(RemovalProgress(len(moved), len(left)))
        await trio.sleep(poll_s)
    on_progress(RemovalProgress(len(moved), 0))
    is_deleted = delete_cookie and await remove_cookie(context, session, bookie)
    return Removed(len(moved), is_deleted)


async def remove_cookie(context: ClientContext, session: MetadataStore, bookie: str) -> bool:
    """Delete the cookie of a bookie that no ledger names; False if it has none.

    After it, the bookie cannot start on its old directories, and the auditor forgets it. If cancelled, the
    cookie may be deleted.

    Raises:
        BookieInUseError: The bookie is registered, or a ledger names it, or another process changed the
            cookie meanwhile. Nothing was changed.
        MetadataFormatError, ledger.metadata_store.errors.MetadataError: As ``decommission_bookie``.
    """
    root = context.catalog.root
    await check_not_registered(session, root, bookie)
    path = cookie_path(root, bookie)
    await session.sync(root)
    stat = await session.exists(path)
    named = await _named(LedgerCatalog(session, root, context.catalog.layout), bookie)
    if named:
        raise BookieInUseError(
            bookie,
            f"{len(named)} ledgers name it: {_shown(named)}. `dlog bookie decommission {bookie}` or"
            f" `dlog bookie recover {bookie}` moves them to other bookies. If it only lost its disk, keep the"
            " cookie: `dlog bookie replace-disk --config FILE` copies its entries to an empty one",
        )
    if stat is None:
        return False
    nodes = (available_path(root, bookie), readonly_path(root, bookie))
    try:
        await session.create(f"{root}/{READONLY}", parents=True)
    except NodeExistsError:
        pass
    try:
        # Creating and deleting the nodes of a registration fails if the bookie has registered meanwhile.
        await session.commit(
            [*map(Create, nodes), *(Delete(node) for node in nodes), Delete(path, stat.version)]
        )
    except NodeExistsError as exc:
        raise _registered(bookie) from exc
    except (BadVersionError, NoNodeError) as exc:
        if await session.exists(path) is None:
            return False
        raise BookieInUseError(bookie, "another process changed its cookie meanwhile; try again") from exc
    return True


async def check_not_registered(session: MetadataStore, root: str, bookie: str) -> None:
    """Return if the bookie is neither writable nor read-only.

    Raises:
        BookieInUseError: It is registered.
    """
    if bookie in (await read_registered(session, root)).all:
        raise _registered(bookie)


def holds_entries(metadata: LedgerMetadata, bookie: str) -> bool:
    """True if the bookie has a replica of an entry, or may get one as a member of an open end."""
    if not metadata.is_closed and bookie in metadata.last_ensemble.bookies:
        return True
    return any(
        member == bookie and fragment.ends_at(index) is not None
        for fragment in fragments_of(metadata, -1)
        for index, member in enumerate(fragment.bookies)
    )


async def _named(catalog: LedgerCatalog, bookie: str) -> list[int]:
    """The ledgers whose metadata name the bookie, in any ensemble."""
    found = []
    for ledger_id in await catalog.ledger_ids():
        try:
            metadata = (await catalog.get_newest(ledger_id)).metadata
        except NoSuchLedgerError:
            continue
        if any(bookie in ensemble.bookies for ensemble in metadata.ensembles):
            found.append(ledger_id)
    return found


async def _needs_worker(catalog: LedgerCatalog, ledger_id: int, bookie: str) -> bool:
    try:
        metadata = (await catalog.get_newest(ledger_id)).metadata
    except NoSuchLedgerError:
        return False
    return holds_entries(metadata, bookie)


def _registered(bookie: str) -> BookieInUseError:
    return BookieInUseError(
        bookie, "it is registered. Stop it first, or wait until its session with the metadata store ends"
    )


async def _check_auto_recovery(marks: UnderReplicatedLedgers, session: MetadataStore, root: str) -> None:
    if not await marks.is_enabled():
        raise NoAutoRecoveryError(
            "auto-recovery is switched off, so no worker moves ledgers; `dlog autorecovery enable` switches"
            " it on, and `dlog bookie recover` works without it"
        )
    if await current_auditor(session, root) is None:
        raise NoAutoRecoveryError(
            "no process of auto-recovery runs, so no worker moves ledgers; start `dlog autorecovery`, or"
            " use `dlog bookie recover`, which works without it"
        )


def _shown(ledger_ids: list[int]) -> str:
    more = len(ledger_ids) - _LEDGERS_SHOWN
    return ", ".join(map(str, ledger_ids[:_LEDGERS_SHOWN])) + (f" and {more} more" if more > 0 else "")
