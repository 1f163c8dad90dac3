"""Giving a bookie that lost its disks its entries back, on the empty directories that replace them.

    look      the cookie says that the bookie had entries; a directory is empty; no process is registered
    check     the other bookies have each entry that the bookie shall hold, or the replacement is refused
    start     VERSION in the empty directories; all ledgers in limbo; the bookie serves and copies
    read back every entry is read from the bookie; then it stops in an orderly way

Inside: the order of these steps. Not inside: the looks at the ledgers (``ledger.decommission.replacement``),
limbo and the copying (``bookie.healing``), the command (``dlog.cli``).
Always: nothing is changed before all copies were found elsewhere. From the first VERSION file on, each
directory has the mark ``DOUBT`` until all ledgers are in limbo, so a crash at any point denies no entry.

Source: our own; docs/running.md; docs/storage-format.md 11.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import attrs
import trio

from bookie.cluster.access import ClusterAccess
from bookie.cluster.cluster_root import prepare_cluster_root
from bookie.cluster.registration import OpenStore
from bookie.config.classes import BookieConfig
from bookie.disk.disk import Disk
from bookie.disk.real_disk import RealDisk
from bookie.errors import BookieConfigError, CookieError
from bookie.http import OpenRoutes
from bookie.identity.address import Identity, Machine, resolve_identity
from bookie.identity.cookie import Cookie
from bookie.identity.cookie_check import check_cookies, read_instance_id
from bookie.ledger_metadata.cluster_nodes import ClusterNodes
from bookie.main import run_bookie
from bookie.membership import client_config
from ledger.catalog.paths import cookie_path
from ledger.decommission.removal import check_not_registered
from ledger.decommission.replacement import NotReadBack, OtherCopies, Replacement
from ledger.metadata_store.errors import ConnectionLostError, SessionExpiredError
from ledger.metadata_store.store import MetadataStore
from ledger.runtime.log_lines import get_logger
from ledger.runtime.tasks.task_errors import only_error

LOOK_PAUSE_S = 1.0

log = get_logger(__name__)


@attrs.frozen
class Copying:
    """The state of a replacement at one moment."""

    step: str  # "checking the other bookies" or "copying"
    ledgers: int  # done
    ledgers_total: int


@attrs.frozen
class Replaced:
    """The end of a replacement. The bookie is stopped, and has all its entries if both lists are empty."""

    bookie_id: str
    ledgers: int  # that name the bookie
    refused: Sequence[OtherCopies]  # without copies elsewhere: then nothing was changed
    not_read_back: Sequence[NotReadBack]

    @property
    def is_done(self) -> bool:
        """True if the bookie returns all its entries."""
        return not self.refused and not self.not_read_back


class DiskReplacement:
    """One replacement. Call ``run`` once."""

    def __init__(
        self,
        config: BookieConfig,
        *,
        open_store: OpenStore,
        disk: Disk | None = None,
        machine: Machine | None = None,
        open_routes: OpenRoutes | None = None,
        percentage: int = 100,
        on_progress: Callable[[Copying], object] = lambda _: None,
    ) -> None:
        """Args:
        config: As the bookie reads it; its empty directories replace lost ones.
        percentage: The share of the entries that is read back, besides the ends of each fragment.

        Raises:
            BookieConfigError: The bookie may not put ledgers in limbo.
        """
        if not config.startup_check.limbo:
            raise BookieConfigError(
                "dataIntegrityChecking=false turns limbo off: a bookie on empty disks would deny entries that"
                " were acknowledged. Remove the key"
            )
        self._config = attrs.evolve(
            config, startup_check=attrs.evolve(config.startup_check, replace_lost_directories=True)
        )
        self._open_store, self._disk, self._machine = open_store, disk or RealDisk(), machine
        self._open_routes, self._percentage, self._on_progress = open_routes, percentage, on_progress

    async def run(self) -> Replaced:
        """Check, start, copy, read back, stop. If cancelled, the bookie ends; the next call continues.

        If a bookie that has copies goes away meanwhile, the call waits for it without a limit.

        Raises:
            CookieError: The bookie has no cookie, or its directories are not empty. Nothing was changed.
            ledger.errors.BookieInUseError: The bookie is registered. Nothing was changed.
            Exception: As ``run_bookie``.
        """
        identity = resolve_identity(self._config.address, self._machine)
        async with self._open_store() as store:
            copies = await self._check(store, identity)
        refused = [one for one in copies if one.reason is not None]
        if refused:
            return Replaced(identity.bookie_id, len(copies), refused, ())
        stop = trio.Event()
        start = partial(
            run_bookie,
            self._config,
            open_store=self._open_store,
            stop=stop,
            disk=self._disk,
            machine=self._machine,
            open_routes=self._open_routes,
        )
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(start)
                left = await self._wait_read_back(identity, copies)
                stop.set()
        except BaseExceptionGroup as group:
            raise only_error(group) from group
        return Replaced(identity.bookie_id, len(copies), (), left)

    async def _check(self, store: MetadataStore, identity: Identity) -> list[OtherCopies]:
        config, bookie_id = self._config, identity.bookie_id
        root, directories = config.metadata.ledgers_root, config.directories
        await check_not_registered(store, root, bookie_id)
        if await store.exists(cookie_path(root, bookie_id)) is None:
            raise CookieError(
                f"bookie {bookie_id} has no cookie at {cookie_path(root, bookie_id)}, so it had no entries:"
                f" start it as a new one. If that is wrong, check metadataServiceUri and bookieId"
            )
        cookie = Cookie(
            bookie_id,
            directories.journal,
            directories.ledger,
            directories.index,
            await read_instance_id(store, root),
        )
        await check_cookies(
            store,
            root,
            self._disk,
            cookie,
            possible_ids=identity.possible_ids,
            allow_expansion=config.startup_check.allow_expansion,
            replace_lost=True,
        )
        layout = await prepare_cluster_root(store, root, config.metadata.layout)
        nodes = ClusterNodes(lambda: store, root, layout)
        self._cluster = ClusterAccess(nodes, self._open_store, partial(client_config, config))
        async with self._cluster.open_session() as (session, client):
            look = Replacement(client.context, session, bookie_id)
            return await look.copies_elsewhere(partial(self._show, "checking the other bookies"))

    async def _wait_read_back(self, identity: Identity, copies: Sequence[OtherCopies]) -> list[NotReadBack]:
        while True:
            try:
                async with self._cluster.open_session() as (session, client):
                    return await Replacement(client.context, session, identity.bookie_id).wait_read_back(
                        [one.ledger_id for one in copies],
                        percentage=self._percentage,
                        on_progress=partial(self._show, "copying"),
                    )
            except (ConnectionLostError, SessionExpiredError) as exc:
                # The copying continues without this look, and may take hours.
                log.warning("the look at the copied ledgers begins again: %s", exc)
                await trio.sleep(LOOK_PAUSE_S)

    def _show(self, step: str, done: int, total: int) -> None:
        self._on_progress(Copying(step, done, total))
