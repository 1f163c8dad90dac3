"""Which ledgers a bookie may have lost something of, and putting them in limbo before it serves.

Inside: the rule for one ledger (``suspicion``), asking the metadata store about all of them. Not inside: when
that is necessary (``admission``), what limbo means for answers (``ledgers``), the way out (``integrity``).
Always: a listing that fails stops the start: nobody is served on the word of half a listing; whatever is
unclear counts as lost.

A ledger names a bookie in its metadata before the first entry is sent there. So a listing that begins after
the bookie's last life has ended, and is up to date, misses none of which it ever acknowledged an entry.

Whose fence may be lost: recovery writes IN_RECOVERY before it fences anybody. A ledger that is OPEN has never
been fenced, so one that names this bookie only in front of its last ensemble keeps its writer, who may take
the bookie in again; what the bookie had of it is denied to nobody all the same. In the last ensemble it is
fenced: its repair must find the ledger's end, and for that the writer must be finished. A closed ledger is
fenced as well: its old writer may not know that it is closed (apache/bookkeeper#4812).

Source: DataIntegrityCheckImpl.java (runPreBootCheck); reference on bookie storage 6.3; lessons 1.1 rows 1, 2.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

import attrs
import trio

from bookie.errors import LedgerListingError
from bookie.ledgers import UNKNOWN_KEY
from bookie.storage import Storage
from ledger.catalog import LedgerCatalog
from ledger.digest import master_key
from ledger.errors import MetadataFormatError, NoSuchLedgerError
from ledger.metadata import LedgerMetadata, LedgerState
from ledger.paths import Layout
from namespace.errors import ConnectionLostError, NamespaceError
from namespace.store import MetadataStore, SessionState

READERS = 32  # ledgers whose metadata are being read at once
PATIENCE_S = 30.0  # for a metadata store out of reach
PROGRESS_S = 10.0
_FLUSH_COUNT = 20_000  # ledgers put into limbo between two flushes

T = TypeVar("T")
log = logging.getLogger(__name__)


@attrs.frozen
class Suspicion:
    """A ledger of which entries may be missing, and what to do about it."""

    ledger_id: int
    master_key: bytes  # UNKNOWN_KEY: the first one offered is right
    fence: bool


def suspicion(ledger_id: int, metadata: LedgerMetadata, bookie_id: str) -> Suspicion | None:
    """What a bookie that may have lost anything must think of a ledger; None if it never had any of it."""
    if not any(bookie_id in ensemble.bookies for ensemble in metadata.ensembles):
        return None
    # Without a password Java's clients of some releases send another key than the others.
    key = master_key(metadata.password) if metadata.password else UNKNOWN_KEY
    fence = metadata.state is not LedgerState.OPEN or bookie_id in metadata.last_ensemble.bookies
    return Suspicion(ledger_id, key, fence)


async def put_in_limbo(
    storage: Storage, store: MetadataStore, root: str, layout: Layout, bookie_id: str
) -> int:
    """Ask about all ledgers, and put those that name this bookie in limbo, durably on return; how many.

    Before anybody is served, and after the bookie's last life. If cancelled, some may be in limbo.

    Raises:
        LedgerListingError: The metadata store did not answer to the end.
        StorageFailedError: The disk failed.
    """
    listing = _Listing(store, LedgerCatalog(store, root, layout), bookie_id)
    try:
        await listing.patiently(lambda: store.sync(root))
        return await listing.run(storage)
    except NamespaceError as exc:
        raise LedgerListingError(
            f"bookie {bookie_id} may have lost entries, so it must know which ledgers name it before it"
            f" serves; but after {listing.seen} ledgers the metadata store failed: {exc}. Start it again when"
            " the store answers"
        ) from exc


class _Listing:
    def __init__(self, store: MetadataStore, catalog: LedgerCatalog, bookie_id: str) -> None:
        self.seen = 0
        self._store, self._catalog, self._bookie_id = store, catalog, bookie_id
        self._found: list[Suspicion] = []
        self._told_at = -math.inf

    async def run(self, storage: Storage) -> int:
        count = 0
        ids = await self.patiently(self._catalog.ledger_ids)
        for start in range(0, len(ids), _FLUSH_COUNT):
            await self._ask_all(ids[start : start + _FLUSH_COUNT])
            for one in self._found:
                storage.enter_limbo(one.ledger_id, one.master_key, fenced=one.fence)
            count += len(self._found)
            if self._found:
                await storage.flush()
            self._found.clear()
        return count

    async def _ask_all(self, ids: list[int]) -> None:
        left = iter(ids)
        failure: list[NamespaceError] = []

        async def ask(scope: trio.CancelScope) -> None:
            for ledger_id in left:
                try:
                    await self._ask(ledger_id)
                except NamespaceError as exc:  # raised below: a nursery would wrap it into a group
                    failure.append(exc)
                    scope.cancel()
                    return

        async with trio.open_nursery() as nursery:
            for _ in range(min(READERS, len(ids))):
                nursery.start_soon(ask, nursery.cancel_scope)
        if failure:
            raise failure[0]

    async def _ask(self, ledger_id: int) -> None:
        found: Suspicion | None
        try:
            metadata = (await self.patiently(lambda: self._catalog.get(ledger_id))).metadata
        except NoSuchLedgerError:
            found = None  # deleted since it was listed
        except MetadataFormatError as exc:
            log.error("ledger %d: its metadata cannot be read (%s); it may name this bookie", ledger_id, exc)
            found = Suspicion(ledger_id, UNKNOWN_KEY, fence=True)
        else:
            found = suspicion(ledger_id, metadata, self._bookie_id)
        if found is not None:
            self._found.append(found)
        self.seen += 1
        if trio.current_time() >= self._told_at + PROGRESS_S:
            if self._told_at > -math.inf:
                log.info("%d ledgers have been asked about", self.seen)
            self._told_at = trio.current_time()

    async def patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask again if the connection is lost: a long listing must get through, reading is free."""
        deadline = trio.current_time() + PATIENCE_S
        while True:
            try:
                return await ask()
            except ConnectionLostError:
                if trio.current_time() >= deadline:
                    raise
            with trio.move_on_at(deadline):
                while (state := self._store.state) is SessionState.SUSPENDED:
                    await self._store.wait_state_change(state)
            await trio.sleep(0.1)
