"""Over-replicated ledgers: ledgers that this bookie stores although no ensemble of theirs names it.

They remain when a bookie was replaced in an ensemble and came back later.

Inside: finding and deleting them. Not inside: ledgers that do not exist any more (``gc``).
Always: only a closed ledger is deleted, because an open one may still choose this bookie. Its metadata are
checked twice: first without a lock, then up to date under the lock that a process holds while it
re-replicates a ledger.

Source: ScanAndCompareGarbageCollector.java (removeOverReplicatedLedgers); docs/metadata.md 12.3;
docs/storage-format.md 9.3.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import attrs
import trio

from bookie.disk.token_bucket import TokenBucket
from bookie.errors import BookieServerError
from bookie.ledger_metadata.cluster_nodes import ClusterNodes
from ledger.catalog.catalog import LedgerCatalog
from ledger.catalog.paths import underreplicated_lock_path
from ledger.errors import LedgerError, NoSuchLedgerError
from ledger.metadata import LedgerMetadata
from ledger.metadata_store.errors import MetadataError, NodeExistsError, NoNodeError
from ledger.metadata_store.store import MetadataStore
from ledger.runtime.log_lines import get_logger
from ledger.runtime.tasks.failure_domain import report_contained

log = get_logger(__name__)


def is_over_replicated(metadata: LedgerMetadata, bookie_id: str) -> bool:
    """Whether a ledger may be deleted from this bookie."""
    return metadata.is_closed and all(bookie_id not in ensemble.bookies for ensemble in metadata.ensembles)


@attrs.frozen
class OverReplicated:
    """Implements ``gc.DeleteOverReplicated`` with the metadata store of the current session."""

    nodes: ClusterNodes
    bookie_id: str
    host_name: str  # written into the lock, for operators
    requests_per_s: float = 1000

    async def __call__(self, local: Sequence[int], delete: Callable[[int], Awaitable[None]]) -> Sequence[int]:
        """Delete the local over-replicated ledgers; return their ids. Locked ones wait for the next call.

        Raises:
            MetadataError: The store cannot be read. Some may be deleted.
        """
        bucket = TokenBucket(self.requests_per_s)
        deleted = []
        for ledger_id in local:
            await trio.sleep(bucket.take(1, trio.current_time()))
            try:
                if await self._delete_if_over_replicated(ledger_id, delete):
                    deleted.append(ledger_id)
            except (MetadataError, BookieServerError):
                raise
            except LedgerError as exc:
                log.warning("ledger %d is kept: %s", ledger_id, exc)
            except Exception as exc:
                report_contained("over-replicated ledger", exc, ledger_id=ledger_id)
        if deleted:
            log.info("%d ledgers deleted: no ensemble of theirs names this bookie", len(deleted))
        return deleted

    async def _delete_if_over_replicated(
        self, ledger_id: int, delete: Callable[[int], Awaitable[None]]
    ) -> bool:
        try:
            found = await self.nodes.catalog.get(ledger_id)
        except NoSuchLedgerError:
            return False  # the next round of the garbage collection checks that and deletes it
        return is_over_replicated(found.metadata, self.bookie_id) and await self._delete_locked(
            ledger_id, delete
        )

    async def _delete_locked(self, ledger_id: int, delete: Callable[[int], Awaitable[None]]) -> bool:
        store = self.nodes.session()
        lock = underreplicated_lock_path(self.nodes.root, ledger_id)
        if not await self._lock(store, lock):
            return False
        try:
            catalog = LedgerCatalog(store, self.nodes.root, self.nodes.layout)
            try:
                metadata = (await catalog.get_newest(ledger_id)).metadata
            except LedgerError:
                return False
            if not is_over_replicated(metadata, self.bookie_id):
                return False
            await delete(ledger_id)
            return True
        finally:
            with trio.CancelScope(shield=True), trio.move_on_after(2):
                await self._unlock(store, lock)

    async def _lock(self, store: MetadataStore, lock: str) -> bool:
        content = f'bookieId: "{self.host_name}"\n'.encode()
        try:
            # With its parents: they do not exist before the first re-replication in the cluster.
            await store.create(lock, content, ephemeral=True, parents=True)
        except NodeExistsError:
            return False
        return True

    async def _unlock(self, store: MetadataStore, lock: str) -> None:
        try:
            await store.delete(lock)
        except NoNodeError:
            pass
        except MetadataError as exc:  # the lock ends with the session
            log.warning("%s cannot be released: %s", lock, exc)
