"""Ledgers this bookie holds and is not asked to: left behind when it was replaced and came back.

Inside: finding them, deleting them. Not inside: ledgers that do not exist any more (``gc``).
Always: only a closed ledger, no ensemble of which has this bookie, twice so: once when looked for, and once
more, with everything that was written before, under the lock that whoever copies a ledger holds. An open
ledger may still get this bookie into its ensemble.

Source: ScanAndCompareGarbageCollector.java (removeOverReplicatedLedgers); reference on metadata 12.3.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

import attrs
import trio

from bookie.token_bucket import TokenBucket
from ledger.catalog import LedgerCatalog
from ledger.errors import LedgerError, NoSuchLedgerError
from ledger.metadata import LedgerMetadata
from ledger.paths import Layout, underreplicated_lock_path
from namespace.errors import NodeExistsError, NoNodeError
from namespace.store import MetadataStore

log = logging.getLogger(__name__)


def is_surplus(metadata: LedgerMetadata, bookie_id: str) -> bool:
    """Whether a bookie that holds the ledger need not."""
    return metadata.is_closed and all(bookie_id not in ensemble.bookies for ensemble in metadata.ensembles)


@attrs.frozen
class OverReplicated:
    """Answers ``gc.Surplus`` from the metadata store of the session that lives now."""

    store: Callable[[], MetadataStore]
    root: str
    layout: Layout
    bookie_id: str
    host_name: str  # written into the lock, for people to read
    requests_per_s: float = 1000

    async def __call__(self, local: Sequence[int], delete: Callable[[int], Awaitable[None]]) -> Sequence[int]:
        """Delete the local ledgers that are surplus; their ids. A ledger that is locked waits for next time.

        Raises:
            NamespaceError: The store cannot be asked. Some may be deleted.
        """
        bucket = TokenBucket(self.requests_per_s)
        deleted = []
        for ledger_id in local:
            await trio.sleep(bucket.take(1, trio.current_time()))
            catalog = LedgerCatalog(self.store(), self.root, self.layout)
            try:
                metadata = (await catalog.get(ledger_id)).metadata
            except NoSuchLedgerError:
                continue  # the next round's: it has to be sure of that
            except LedgerError as exc:
                log.warning("ledger %d is kept: %s", ledger_id, exc)
                continue
            if is_surplus(metadata, self.bookie_id) and await self._delete_locked(ledger_id, delete):
                deleted.append(ledger_id)
        if deleted:
            log.info("%d ledgers deleted, in whose ensembles this bookie is not", len(deleted))
        return deleted

    async def _delete_locked(self, ledger_id: int, delete: Callable[[int], Awaitable[None]]) -> bool:
        store = self.store()
        lock = underreplicated_lock_path(self.root, ledger_id)
        if not await self._lock(store, lock):
            return False
        try:
            catalog = LedgerCatalog(store, self.root, self.layout)
            try:
                metadata = (await catalog.get_newest(ledger_id)).metadata
            except LedgerError:
                return False
            if not is_surplus(metadata, self.bookie_id):
                return False
            await delete(ledger_id)
            return True
        finally:
            with trio.CancelScope(shield=True), trio.move_on_after(2):
                await self._unlock(store, lock)

    async def _lock(self, store: MetadataStore, lock: str) -> bool:
        content = f'bookieId: "{self.host_name}"\n'.encode()
        try:
            # With its parents: it may be that nobody has repaired anything in this cluster yet.
            await store.create(lock, content, ephemeral=True, parents=True)
        except NodeExistsError:
            return False
        return True

    async def _unlock(self, store: MetadataStore, lock: str) -> None:
        try:
            await store.delete(lock)
        except NoNodeError:
            pass
        except Exception as exc:  # it goes with the session
            log.warning("%s cannot be released: %s", lock, exc)
