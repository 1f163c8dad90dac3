"""Putting in limbo all ledgers of which this bookie may have lost entries, before it serves.

Inside: the rule for one ledger (``affected_ledger``), reading the metadata of all ledgers. Not inside: when
that is necessary (``startup_check``), the effect of limbo on replies (``requests``), the end of limbo
(``integrity``).
Always: if the listing fails, the bookie does not start, because a part of the list does not suffice. A ledger
whose metadata cannot be read counts as affected.

The metadata of a ledger names a bookie before the writer sends it the first entry. So an up-to-date listing
that begins after the bookie's last process has ended contains each ledger of which the bookie acknowledged an
entry.

A fence may be lost as well. A recovery writes IN_RECOVERY before it fences a bookie, so a ledger in state
OPEN was never fenced. If an open ledger names this bookie only before its last ensemble, it is not fenced
here: its writer may continue, and may choose this bookie again. The bookie still denies none of its entries.
If the last ensemble names this bookie, the ledger is fenced: the repair must find the last entry, and for
that the writer must have stopped. A closed ledger is fenced too, because its old writer may not know that it
is closed (apache/bookkeeper#4812).

Source: DataIntegrityCheckImpl.java (runPreBootCheck); docs/storage-format.md 11.2; docs/known-bugs.md 1, 2.
"""

from __future__ import annotations

import math

import attrs
import trio

from bookie.errors import LedgerListingError
from bookie.ledger_record import UNKNOWN_KEY
from bookie.storage.storage import Storage
from ledger.catalog.catalog import LedgerCatalog
from ledger.catalog.connection_retry import retry_lost_connection
from ledger.catalog.paths import Layout
from ledger.digest import master_key
from ledger.errors import MetadataFormatError, NoSuchLedgerError
from ledger.metadata import LedgerMetadata, LedgerState
from ledger.metadata_store.errors import MetadataError
from ledger.metadata_store.store import MetadataStore
from ledger.runtime.log_lines import get_logger
from ledger.runtime.tasks.task_errors import for_each

READS_AT_ONCE = 32  # of ledger metadata
RETRY_TIMEOUT_S = 30.0  # while the metadata store is unreachable
PROGRESS_S = 10.0
_FLUSH_COUNT = 20_000  # ledgers put into limbo between two flushes

log = get_logger(__name__)


@attrs.frozen
class AffectedLedger:
    """A ledger of which entries may be missing, and how to put it in limbo."""

    ledger_id: int
    # UNKNOWN_KEY: the first client's key is accepted
    master_key: bytes = attrs.field(repr=False)
    fence: bool


def affected_ledger(ledger_id: int, metadata: LedgerMetadata, bookie_id: str) -> AffectedLedger | None:
    """How a bookie that may have lost entries puts a ledger in limbo; None if it never stored any of it."""
    if not any(bookie_id in ensemble.bookies for ensemble in metadata.ensembles):
        return None
    # Without a password, the key that Java's client sends depends on its release.
    key = master_key(metadata.password) if metadata.password else UNKNOWN_KEY
    fence = metadata.state is not LedgerState.OPEN or bookie_id in metadata.last_ensemble.bookies
    return AffectedLedger(ledger_id, key, fence)


async def put_in_limbo(
    storage: Storage, store: MetadataStore, root: str, layout: Layout, bookie_id: str
) -> int:
    """Put all ledgers that name this bookie in limbo, durably on return; return how many.

    Call it before the bookie serves. If cancelled, some may be in limbo.

    Raises:
        LedgerListingError: The metadata store failed before all ledgers were listed.
        StorageFailedError: The disk failed.
    """
    listing = _LedgerListing(LedgerCatalog(store, root, layout), bookie_id)
    try:
        await retry_lost_connection(lambda: store.sync(root), timeout_s=RETRY_TIMEOUT_S)
        return await listing.put_in_limbo(storage)
    except MetadataError as exc:
        raise LedgerListingError(
            f"bookie {bookie_id} may have lost entries, so it must know which ledgers name it before it"
            f" serves; but after {listing.seen} ledgers the metadata store failed: {exc}. Start it again when"
            " the store is reachable"
        ) from exc


class _LedgerListing:
    def __init__(self, catalog: LedgerCatalog, bookie_id: str) -> None:
        self.seen = 0
        self._catalog, self._bookie_id = catalog, bookie_id
        self._found: list[AffectedLedger] = []
        self._logged_at = -math.inf

    async def put_in_limbo(self, storage: Storage) -> int:
        count = 0
        ids = await retry_lost_connection(self._catalog.ledger_ids, timeout_s=RETRY_TIMEOUT_S)
        for start in range(0, len(ids), _FLUSH_COUNT):
            await self._check_all(ids[start : start + _FLUSH_COUNT])
            for one in self._found:
                storage.enter_limbo(one.ledger_id, one.master_key, fenced=one.fence)
            count += len(self._found)
            if self._found:
                await storage.flush()
            self._found.clear()
        return count

    async def _check_all(self, ids: list[int]) -> None:
        remaining = iter(ids)

        async def check_remaining(_worker: int) -> None:
            for ledger_id in remaining:
                await self._check(ledger_id)

        await for_each(check_remaining, range(min(READS_AT_ONCE, len(ids))))

    async def _check(self, ledger_id: int) -> None:
        found: AffectedLedger | None
        try:
            versioned = await retry_lost_connection(
                lambda: self._catalog.get(ledger_id), timeout_s=RETRY_TIMEOUT_S
            )
        except NoSuchLedgerError:
            found = None  # deleted since it was listed
        except MetadataFormatError as exc:
            log.error("ledger %d: its metadata cannot be read (%s); it may name this bookie", ledger_id, exc)
            found = AffectedLedger(ledger_id, UNKNOWN_KEY, fence=True)
        else:
            found = affected_ledger(ledger_id, versioned.metadata, self._bookie_id)
        if found is not None:
            self._found.append(found)
        self.seen += 1
        if trio.current_time() >= self._logged_at + PROGRESS_S:
            if self._logged_at > -math.inf:
                log.info("the metadata of %d ledgers was read", self.seen)
            self._logged_at = trio.current_time()
