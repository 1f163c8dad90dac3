"""Which ledgers exist, for the garbage collection, which deletes all others.

Inside: asking the metadata store so that no doubt becomes a deletion. Not inside: deleting (``gc``).
Always: a ledger counts as gone only if it was in no complete listing, its own node was looked for and is not
there, and the cluster is still the one this bookie joined: a metadata store that was wiped, or mistaken for
another, has no ledgers either, and must not cost a bookie its data.

Source: ScanAndCompareGarbageCollector.java (``verifyMetadataOnGC``); nats-io/nats-server#6888 for the lesson.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

import attrs
import trio

from bookie.cookie_check import read_instance_id
from bookie.disk import Disk
from bookie.errors import BookieServerError, DirectoryError
from bookie.log_collector import LogCollector
from bookie.service import BookieService
from bookie.storage_config import CURRENT
from bookie.token_bucket import TokenBucket
from bookie.tombs import TOMBS, Tombs
from ledger.catalog import LedgerCatalog
from ledger.paths import COOKIES, LAYOUT, Layout, ledger_path
from namespace.errors import NoNodeError
from namespace.store import MetadataStore


class ClusterChangedError(BookieServerError):
    """The metadata store does not hold the cluster this bookie joined. Nothing is deleted on its word."""


async def named_ledgers(
    store: MetadataStore,
    root: str,
    layout: Layout,
    local: Iterable[int],
    requests_per_s: float = 1000,
) -> set[int]:
    """Those the store names: all of a complete listing, and of ``local`` each whose own node is there.

    Raises:
        NamespaceError: It cannot be said.
    """
    named = set(await LedgerCatalog(store, root, layout).ledger_ids())
    bucket = TokenBucket(requests_per_s)
    for ledger_id in local:
        if ledger_id in named:
            continue
        await trio.sleep(bucket.take(1, trio.current_time()))
        if await store.exists(ledger_path(root, layout, ledger_id)):
            named.add(ledger_id)
    return named


@attrs.frozen
class LiveLedgers:
    """Answers ``gc.LiveLedgers`` from the metadata store of the session that lives now."""

    store: Callable[[], MetadataStore]
    root: str
    layout: Layout
    bookie_id: str
    instance_id: str | None
    requests_per_s: float = 1000  # for looking at nodes one by one

    async def __call__(self, local: Sequence[int]) -> Collection[int]:
        """Those of the local ledgers that exist, or may exist.

        Raises:
            ClusterChangedError, NamespaceError: It cannot be said.
        """
        store = self.store()
        await self._check_cluster(store)
        live = await named_ledgers(store, self.root, self.layout, local, self.requests_per_s)
        await self._check_cluster(store)
        return live

    async def _check_cluster(self, store: MetadataStore) -> None:
        await store.sync(self.root)
        try:
            await store.get(f"{self.root}/{LAYOUT}")
            await store.get(f"{self.root}/{COOKIES}/{self.bookie_id}")
        except NoNodeError as exc:
            raise ClusterChangedError(
                f"{exc.path} is gone: the cluster was wiped or is another one; no ledger is deleted"
            ) from exc
        found = await read_instance_id(store, self.root)
        if found != self.instance_id:
            raise ClusterChangedError(
                f"the instance id under {self.root} was {self.instance_id} and is {found}: the cluster was"
                " formatted or is another one; no ledger is deleted"
            )


@attrs.frozen
class ServedLedgers:
    """The storage as ``gc.GarbageStore``, with the service told of each deletion."""

    service: BookieService
    tombs: Tombs | None = None  # None: fences of deleted ledgers are remembered until the next start

    def ledger_ids(self) -> list[int]:
        return self.service.storage.ledger_ids()

    async def delete_ledger(self, ledger_id: int) -> None:
        """One that does not exist any more."""
        ledger = self.service.storage.ledger(ledger_id)
        if ledger is not None and ledger.fenced and self.tombs is not None:
            await self.tombs.bury(ledger_id)
        await self.delete_surplus(ledger_id)

    async def delete_surplus(self, ledger_id: int) -> None:
        """One that exists, but not here."""
        storage = self.service.storage
        ledger = storage.ledger(ledger_id)
        if ledger is not None:
            # Before the storage forgets it: from then on an old writer's add would create it anew.
            self.service.ledger_deleted(ledger_id, fenced=ledger.fenced)
        await storage.delete_ledger(ledger_id)

    @property
    def collectors(self) -> Sequence[LogCollector]:
        return self.service.storage.collectors


async def remember_tombs(service: BookieService, ledger_directory: Path, disk: Disk) -> Tombs:
    """The fenced ledgers that were deleted by earlier lives; the service knows of them now.

    Raises:
        DirectoryError: They cannot be read.
    """
    path = ledger_directory / CURRENT / TOMBS
    tombs = Tombs(disk, path, lambda: time.time_ns() // 1_000_000)
    try:
        buried = await disk.run(tombs.read)
    except OSError as exc:
        raise DirectoryError(f"{path} cannot be read: {exc.strerror or exc}") from exc
    for ledger_id in buried:
        if service.storage.ledger(ledger_id) is None:
            service.ledger_deleted(ledger_id, fenced=True)
    return tombs
