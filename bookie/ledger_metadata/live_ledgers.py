"""The ledgers that exist, for the garbage collection, which deletes all others.

Inside: reading them from the metadata store, and the storage as the garbage collection sees it. Not inside:
the rounds of the collection (``gc``).
Always: a ledger counts as deleted only if a complete listing lacks it, its own node does not exist, and the
store still belongs to the cluster that this bookie joined. A store that was wiped, or another cluster's
store, has none of the ledgers either, and the bookie must keep its data. A store that was restored from a
backup (``RESTORED``) lacks the ledgers created after the backup, and no ledger counts as deleted.

Source: ScanAndCompareGarbageCollector.java (``verifyMetadataOnGC``); nats-io/nats-server#6888 for the lesson.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import attrs
import trio

from bookie.disk.disk import Disk
from bookie.disk.token_bucket import TokenBucket
from bookie.errors import BookieServerError, ClusterRestoredError, DirectoryError
from bookie.gc.log_collector import LogCollector
from bookie.gc.tombstones import Tombstones
from bookie.identity.cookie_check import read_instance_id
from bookie.ledger_metadata.cluster_nodes import ClusterNodes
from bookie.requests.session import BookieService
from bookie.storage.config import CURRENT
from ledger.catalog.catalog import LedgerCatalog
from ledger.catalog.paths import COOKIES, LAYOUT, RESTORED, Layout, decode_layout, ledger_path
from ledger.errors import LedgerMetadataError, MetadataFormatError
from ledger.metadata_store.errors import NoNodeError
from ledger.metadata_store.store import MetadataStore
from ledger.runtime.clock import wall_ms
from ledger.runtime.tasks.task_errors import for_each

LOOK_UPS_AT_ONCE = 16


class ClusterChangedError(BookieServerError):
    """The metadata store does not hold the cluster that this bookie joined, so no ledger may be deleted."""


def node_of(root: str, layout: Layout, ledger_id: int) -> str | None:
    """The path of a ledger's node; None if the layout cannot hold the id: then no such ledger can exist.

    A peer can send any id. Only the check of the cluster's layout makes the answer None trustworthy.
    """
    try:
        return ledger_path(root, layout, ledger_id)
    except LedgerMetadataError:
        return None


async def named_ledgers(
    store: MetadataStore,
    root: str,
    layout: Layout,
    local: Iterable[int],
    requests_per_s: float = 1000,
) -> set[int]:
    """The ledgers that exist: all of a complete listing, and each of ``local`` that has a node of its own.

    Raises:
        MetadataError: The store cannot be read.
    """
    named = set(await LedgerCatalog(store, root, layout).ledger_ids())
    bucket = TokenBucket(requests_per_s)
    for ledger_id in local:
        if ledger_id in named:
            continue
        path = node_of(root, layout, ledger_id)
        if path is None:
            continue
        await trio.sleep(bucket.take(1, trio.current_time()))
        if await store.exists(path):
            named.add(ledger_id)
    return named


@attrs.frozen
class LiveLedgers:
    """Implements ``gc.LiveLedgers`` with the metadata store of the current session."""

    nodes: ClusterNodes
    bookie_id: str
    instance_id: str | None
    requests_per_s: float = 1000  # limits the reads of single nodes

    async def __call__(self, local: Sequence[int]) -> Collection[int]:
        """The ledgers that exist; each local ledger that is not among them was deleted.

        Raises:
            ClusterChangedError, MetadataError: The store cannot be read, or cannot be trusted.
            ClusterRestoredError: A backup was restored, and ledgers created after it may be missing.
        """
        store = self.nodes.session()
        await self._check_cluster(store)
        live = await named_ledgers(store, self.nodes.root, self.nodes.layout, local, self.requests_per_s)
        await self._check_cluster(store)
        if await self._is_restored(store):
            raise ClusterRestoredError(self.nodes.root)
        return live

    async def find(self, ledger_ids: Iterable[int]) -> Collection[int]:
        """Those of the ledgers that exist, by a look-up of each one's own node.

        In a restored cluster all of them may exist.

        Raises:
            ClusterChangedError, MetadataError: The store cannot be read, or cannot be trusted.
        """
        store = self.nodes.session()
        await self._check_cluster(store)  # reads after it see every change made before it
        found: set[int] = set()
        bucket = TokenBucket(self.requests_per_s)
        asked = list(ledger_ids)
        remaining = iter(asked)

        async def look_up(_worker: int) -> None:
            for ledger_id in remaining:
                path = node_of(self.nodes.root, self.nodes.layout, ledger_id)
                if path is None:
                    continue
                await trio.sleep(bucket.take(1, trio.current_time()))
                if await store.exists(path):
                    found.add(ledger_id)

        await for_each(look_up, range(LOOK_UPS_AT_ONCE))
        await self._check_cluster(store)
        return set(asked) if await self._is_restored(store) else found

    async def _is_restored(self, store: MetadataStore) -> bool:
        """Read after the look-ups: a store without a ledger has the marker by then, if it was restored."""
        return await store.exists(f"{self.nodes.root}/{RESTORED}") is not None

    async def wait_change(self, ledger_ids: Iterable[int]) -> None:
        """Return when one of the ledgers may have been changed or deleted since the call.

        Raises:
            MetadataError: The store cannot be read.
        """
        store, changed = self.nodes.session(), trio.Event()
        for ledger_id in ledger_ids:
            path = node_of(self.nodes.root, self.nodes.layout, ledger_id)
            if path is None or await store.exists(path, watch=changed) is None:
                return
        await changed.wait()

    async def _check_cluster(self, store: MetadataStore) -> None:
        root, layout = self.nodes.root, self.nodes.layout
        await store.sync(root)
        try:
            found = (await store.get(f"{root}/{LAYOUT}")).value
            await store.get(f"{root}/{COOKIES}/{self.bookie_id}")
        except NoNodeError as exc:
            raise ClusterChangedError(
                f"{exc.path} is gone: the metadata store was wiped, or it is another cluster's; no ledger is"
                " deleted"
            ) from exc
        try:
            is_same = decode_layout(found) is layout
        except MetadataFormatError:
            is_same = False
        if not is_same:
            raise ClusterChangedError(
                f"{root}/{LAYOUT} was {layout.name} and is {found[:120]!r}: the metadata store is"
                " damaged or another cluster's; no ledger is deleted"
            )
        instance_id = await read_instance_id(store, root)
        if instance_id != self.instance_id:
            raise ClusterChangedError(
                f"the instance id under {root} was {self.instance_id} and is {instance_id}: the cluster was"
                " formatted, or the store is another cluster's; no ledger is deleted"
            )


@attrs.frozen
class ServedLedgers:
    """Implements ``gc.GarbageStore`` with the storage; reports each deletion to the service."""

    service: BookieService
    tombstones: Tombstones | None = None
    """None: the service remembers the fences of deleted ledgers until the next start only."""

    def ledger_ids(self) -> list[int]:
        return self.service.storage.ledger_ids()

    async def delete_ledger(self, ledger_id: int) -> None:
        """Delete a ledger that does not exist any more. If it is fenced, that is remembered."""
        ledger = self.service.storage.ledger(ledger_id)
        if ledger is not None and ledger.fenced and self.tombstones is not None:
            await self.tombstones.add(ledger_id, is_confirmed=self.service.is_confirmed(ledger_id))
        await self.delete_local_copy(ledger_id)

    async def delete_ledgers(self, ledger_ids: Sequence[int]) -> None:
        """As ``delete_ledger`` for each, with few syncs for all."""
        storage, service = self.service.storage, self.service
        remembered: set[int] = set()
        while True:
            known = [ledger for one in ledger_ids if (ledger := storage.ledger(one)) is not None]
            # In each round the fences that came while the last ones were written.
            fenced = [one.ledger_id for one in known if one.fenced and one.ledger_id not in remembered]
            if not fenced or self.tombstones is None:
                break
            for is_confirmed in (True, False):
                if group := [one for one in fenced if service.is_confirmed(one) is is_confirmed]:
                    await self.tombstones.add(*group, is_confirmed=is_confirmed)
            remembered.update(fenced)
        for ledger in known:
            service.ledger_deleted(ledger.ledger_id, fenced=ledger.fenced)
        await storage.delete_ledgers(ledger_ids)

    async def delete_local_copy(self, ledger_id: int) -> None:
        """Delete a ledger that exists, but not on this bookie."""
        storage = self.service.storage
        ledger = storage.ledger(ledger_id)
        if ledger is not None:
            # Before the storage deletes it: afterwards an add of an old writer would create it again.
            self.service.ledger_deleted(ledger_id, fenced=ledger.fenced)
        await storage.delete_ledger(ledger_id)

    @property
    def collectors(self) -> Sequence[LogCollector]:
        return self.service.storage.collectors


async def load_tombstones(service: BookieService, ledger_directory: Path, disk: Disk) -> Tombstones:
    """Load the fenced ledgers that earlier processes deleted, and report them to the service.

    Raises:
        DirectoryError: They cannot be read.
    """
    directory = ledger_directory / CURRENT
    tombstones = Tombstones.in_directory(disk, directory, wall_ms)
    for file, is_confirmed in ((tombstones.unconfirmed, False), (tombstones.confirmed, True)):
        try:
            deleted = await disk.run(file.read)
        except OSError as exc:
            raise DirectoryError(
                f"the tombstones in {directory} cannot be read: {exc.strerror or exc}"
            ) from exc
        for ledger_id in deleted:
            if service.storage.ledger(ledger_id) is None:
                service.deleted_fences.add(ledger_id, is_confirmed=is_confirmed)
    return tombstones
