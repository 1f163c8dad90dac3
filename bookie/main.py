"""Assembling and running a bookie of a cluster.

Inside: ``run_bookie``, which opens the bookie again after its disk was full. Not inside: a bookie without a
cluster (``bookie``), joining the cluster (``membership``), the work in the background (``upkeep``), what
clients and operators see (``serving``), processes, signals, the choice of a metadata store (``__main__``).
Always: the storage opens after the cluster knows whose disks they are, and closes after the port. After a
failure of the storage the bookie serves nothing more.

Source: EmbeddedServer.java, BookieImpl.java; docs/metadata.md 7.1.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import attrs
import trio

from bookie.auth.reloading import Secrets, open_secrets
from bookie.bookie import Bookie, open_bookie
from bookie.cluster.registration import OpenStore
from bookie.config.classes import BookieConfig
from bookie.disk.descriptor_limit import SPARES
from bookie.disk.disk import Disk, no_space
from bookie.disk.real_disk import RealDisk
from bookie.disk.reserve import START_RESERVE, START_RESERVE_BYTES, Reserve
from bookie.errors import DirectoryError, SpaceAgainError, StorageFailedError, StorageFileError
from bookie.http import OpenRoutes
from bookie.identity.address import Machine, resolve_identity
from bookie.ledger_metadata.digest_types import DigestTypes
from bookie.listening import bind
from bookie.membership import BookieSetup, Membership, join_cluster
from bookie.offline.index_rebuild import take_over_page_files
from bookie.serving import PublicSide
from bookie.storage.config import CURRENT
from bookie.upkeep import prepare_upkeep
from ledger.runtime.log_lines import get_logger
from ledger.runtime.tasks.task_errors import only_error

FULL_PAUSE_S = 1.0  # before a storage that met a full disk is opened again

log = get_logger(__name__)


async def run_bookie(
    config: BookieConfig,
    *,
    open_store: OpenStore,
    stop: trio.Event | None = None,
    disk: Disk | None = None,
    machine: Machine | None = None,
    secrets: Secrets | None = None,
    open_routes: OpenRoutes | None = None,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a bookie of a cluster until ``stop`` is set. If cancelled, it ends without sending pending replies.

    Args:
        open_store: Opens a session with the metadata store; called again after a session expires.
        secrets: The certificates and secrets, if the caller wants to reload them; None: those of ``config``.
        open_routes: More routes for the HTTP server.
        task_status: Gets the port when the bookie is announced and serves.

    Raises:
        BookieConfigError, ListenError, CookieError, DirectoryError, StartError: It did not start.
        LedgerListingError: It may have lost entries, and the ledgers concerned could not be listed.
        RegistrationError: It could not be announced, or not again after its session expired.
        StorageFailedError: Its disk failed. If it is only full, the bookie is started again, read-only.
        StoreUnreachableError: The metadata store does not reply.
    """
    disk = disk or RealDisk()
    if disk.descriptors is not None:
        disk.descriptors.hold_spares(SPARES)
    for warning in config.warnings:
        log.warning("%s", warning)
    setup = BookieSetup(
        config=config,
        open_store=open_store,
        stop=trio.Event() if stop is None else stop,
        disk=disk,
        machine=machine,
        secrets=secrets or await open_secrets(config.tls, config.server.auth),
        open_routes=open_routes,
    )
    started: list[int] = []

    def note_started(port: int) -> None:
        if not started:
            task_status.started(port)
        started.append(port)

    while True:
        port = started[0] if started else config.address.port  # the same port again
        starts = len(started)
        try:
            await _run(setup, port, note_started)
        except SpaceAgainError as exc:
            log.info("%s: the storage is opened again", exc)
        except (StorageFailedError, DirectoryError, StorageFileError) as exc:
            if no_space(exc) is None or not config.fullness.may_be_read_only:
                raise
            if len(started) == starts and await disk.run(_lend, setup):
                continue  # what was given to this start, or to one before, another program has taken
            if not started:
                raise
            log.warning("the disk is full: the storage is opened again, for reads: %s", exc)
            with trio.move_on_after(FULL_PAUSE_S):
                await setup.stop.wait()
        else:
            return
        if setup.stop.is_set():
            return


def _lend(setup: BookieSetup) -> bool:
    """Give a start that found no space a little of what is kept for it; False if nothing is left. Blocks."""
    has_lent = False
    for path in setup.config.storage.ledger_directories:
        current = path / CURRENT
        if setup.disk.usage(path).free_bytes < START_RESERVE_BYTES:
            has_lent |= Reserve(setup.disk, current, START_RESERVE_BYTES, name=START_RESERVE).lend()
    return has_lent


async def _run(setup: BookieSetup, port: int, note_started: Callable[[int], None]) -> None:
    """Run the bookie from its directories as they are, until its storage has to be opened again."""
    address = setup.config.address
    identity = resolve_identity(attrs.evolve(address, port=port), setup.machine)
    sockets = await bind(identity.listen_host, port)
    try:
        bound_port: int = sockets[0].getsockname()[1]
        if bound_port != port:
            identity = resolve_identity(attrs.evolve(address, port=bound_port), setup.machine)
        async with setup.open_store() as store:
            member = await join_cluster(store, identity, bound_port, setup)
            await setup.disk.run(take_over_page_files, setup.disk, setup.config.storage)
            async with _open_member(member, setup) as bookie:
                await member.startup_check.complete(bookie.storage)
                upkeep = await prepare_upkeep(bookie.service, member, setup)
                async with trio.open_nursery() as background:
                    upkeep.start(background)
                    await PublicSide(bookie.server, member, upkeep, setup).run(sockets, note_started)
                    background.cancel_scope.cancel()
            await member.startup_check.mark_clean_stop()
    except BaseExceptionGroup as group:
        raise only_error(group) from group  # callers tell errors apart by their class
    finally:
        for bound in sockets:
            bound.close()
    log.info("bookie %s has stopped", identity.bookie_id)


def _open_member(member: Membership, setup: BookieSetup) -> AbstractAsyncContextManager[Bookie]:
    """The bookie of a cluster, open and not served yet."""
    config, policies = setup.config, member.policies
    permissions = None
    if config.permissions is not None and policies is not None:
        permissions = policies.permissions(config.permissions)
    return open_bookie(
        attrs.evolve(config.storage, accepts_losses=member.startup_check.accepts_losses),
        server_config=attrs.evolve(
            config.server, tls=None if config.tls is None else lambda: setup.secrets.context
        ),
        sync_adds=config.sync_adds,
        digest_type_of=DigestTypes(member.nodes),
        disk=setup.disk,
        permissions=permissions,
    )
