"""Assembling and running one bookie: storage, service, server; cookies, registration, disk watch.

Inside: ``open_bookie``, a bookie without a cluster, for programs that embed it; ``run_bookie``, a bookie of a
cluster. Not inside: the state of the disks (``disk_watch``), processes, signals, the choice of a metadata
store (``__main__``).
Always: clients cannot see or reach a bookie before it can serve. On a stop the registration goes first, then
the port, then the storage. After a failure of the storage the bookie serves nothing more.

Source: EmbeddedServer.java, BookieImpl.java; docs/metadata.md 7.1.
"""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

import attrs
import trio

from bookie.auth.reloading import Secrets, open_secrets
from bookie.auth.tls import peer_context
from bookie.cluster.access import ClusterAccess
from bookie.cluster.autorecovery import run_auto_recovery
from bookie.cluster.cluster_root import prepare_cluster_root
from bookie.cluster.registration import OpenStore, Registration
from bookie.cluster.startup_check import START_RETRY_S, begin_startup_check
from bookie.config.bookie_config import BookieConfig
from bookie.damage.digest_checker import DigestTypeOf
from bookie.disk.descriptor_limit import SPARES
from bookie.disk.descriptors import Descriptors
from bookie.disk.disk import Disk, no_space
from bookie.disk.real_disk import RealDisk
from bookie.disk.reserve import FLUSH_RESERVE, Reserve
from bookie.disk_watch import DiskWatch
from bookie.errors import DirectoryError, SpaceAgainError, StorageFailedError, StorageFileError
from bookie.gc.collector import GarbageCollector
from bookie.healing.damage_healing import DamageHealing, HealingStats
from bookie.healing.integrity import IntegrityRepair
from bookie.http import Admin, OpenRoutes, serve_admin
from bookie.identity.address import Identity, Machine, resolve_identity
from bookie.identity.cookie import Cookie
from bookie.identity.cookie_check import read_instance_id
from bookie.ledger_metadata.digest_types import DigestTypes
from bookie.ledger_metadata.gone_ledgers import GoneLedgers
from bookie.ledger_metadata.live_ledgers import LiveLedgers, ServedLedgers, load_tombstones, node_of
from bookie.ledger_metadata.log_permissions import LogPermissions
from bookie.ledger_metadata.new_ledger_check import NewLedgerCheck
from bookie.ledger_metadata.over_replicated import OverReplicated
from bookie.limits import RECORD_BYTES_MAX
from bookie.listening import bind, listen
from bookie.offline.index_rebuild import take_over_page_files
from bookie.requests.new_ledgers import NewLedgers
from bookie.requests.permissions import GuardedService, Permissions
from bookie.requests.service import BookieService
from bookie.server.config import ServerConfig
from bookie.server.server import Server
from bookie.storage.config import CURRENT, StorageConfig
from bookie.storage.opening import open_storage
from bookie.storage.storage import Storage
from ledger.catalog.connection_retry import retry_lost_connection
from ledger.catalog.service_info import (
    LOCATION_PROPERTY,
    RPC_ID,
    RPC_PROTOCOL,
    TLS_EXTENSION,
    Endpoint,
    ServiceInfo,
    encode_service_info,
)
from ledger.config import ClientConfig
from ledger.replication import AutoRecoveryStats
from ledger.runtime.clock import wall_ms
from ledger.runtime.readiness import READY, STOPPING, notify
from ledger.runtime.tasks.task_errors import only_error
from ledger.transport.config import TransportConfig

DRAIN_S = 3.0  # for the replies still to be sent when a bookie stops
WITHDRAW_S = 2.0
FULL_PAUSE_S = 1.0  # before a storage that met a full disk is opened again
SWITCH_INTERVAL_S = 0.0002  # a journal thread needs the interpreter after each sync; the default is 5 ms
_REPLY_OVERHEAD_BYTES = 1024  # of a frame, besides the entry in it

log = logging.getLogger(__name__)


class Bookie:
    """A bookie that serves the streams given to it. Made by ``open_bookie``."""

    def __init__(self, storage: Storage, service: BookieService, server: Server) -> None:
        self.storage = storage
        self.service = service
        self.server = server

    def __repr__(self) -> str:
        return f"<Bookie on {self.storage!r}>"

    async def serve_stream(self, stream: trio.abc.Stream) -> None:
        """Serve one peer until it disconnects; then close the stream. An error of the peer raises nothing."""
        await self.server.serve_stream(stream)

    async def serve_listeners(
        self,
        listeners: Sequence[trio.abc.Listener[trio.abc.Stream]],
        *,
        task_status: trio.TaskStatus[list[trio.abc.Listener[trio.abc.Stream]]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve all connections of these listeners until cancelled."""
        await self.server.serve(listeners, task_status=task_status)

    async def drain(self) -> None:
        """Take no more requests; return when all taken requests have replies, or after ``DRAIN_S``."""
        await self.server.drain(timeout_s=DRAIN_S)


@asynccontextmanager
async def open_bookie(
    storage_config: StorageConfig,
    *,
    server_config: ServerConfig | None = None,
    sync_adds: bool = True,
    digest_type_of: DigestTypeOf | None = None,
    disk: Disk | None = None,
    permissions: Permissions | None = None,
) -> AsyncIterator[Bookie]:
    """A bookie on its directories, without cookies and cluster; leaving the block flushes and closes it.

    A failure of the storage cancels the block and is raised instead of its result.

    Args:
        sync_adds: False acknowledges adds before they are synced.
        digest_type_of: As the metadata say. None: no entry that can be read counts as damaged.
        disk: None: the disks of this machine.
        permissions: None: peers that may connect may do everything.

    Raises:
        StorageFailedError: A write or a sync failed; nothing was acknowledged after it.
        DirectoryInUseError, StartError: As ``open_storage``.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    raised: BaseException | None = None
    failure: BaseException | None = None

    async def watch(storage: Storage, scope: trio.CancelScope) -> None:
        nonlocal failure
        failure = await storage.wait_failed()
        scope.cancel()

    disk = disk or RealDisk()
    async with open_storage(disk, storage_config, digest_type_of=digest_type_of) as storage:
        service = BookieService(storage, sync_adds=sync_adds)
        if permissions is not None:
            service = GuardedService(storage, permissions, sync_adds=sync_adds)
        service.digest_type_of = digest_type_of
        if storage.full is not None:
            service.rights.hold(takes_records=storage.takes_records)
        server = Server(service, server_config)
        bookie = Bookie(storage, service, server)
        descriptors = disk.descriptors or Descriptors()
        descriptors.connect(server.shed_connections)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, storage, nursery.cancel_scope)
            nursery.start_soon(server.sweep, descriptors.refill)
            try:
                yield bookie
            except BaseException as exc:  # raised below: the nursery would wrap it into a group
                raised = exc
            nursery.cancel_scope.cancel()
            descriptors.close()  # before the end of the nursery: a read may wait for a descriptor
        if failure is not None:
            raise StorageFailedError(f"the bookie's storage failed: {failure}") from failure
        if raised is not None:
            raise raised


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
    stop = trio.Event() if stop is None else stop
    disk = disk or RealDisk()
    if disk.descriptors is not None:
        disk.descriptors.hold_spares(SPARES)
    for warning in config.warnings:
        log.warning("%s", warning)
    secrets = secrets or await open_secrets(config.tls, config.server.auth)
    started: list[int] = []

    def note_started(port: int) -> None:
        if not started:
            task_status.started(port)
        started.append(port)

    while True:
        if started:  # the same port again
            config = attrs.evolve(config, address=attrs.evolve(config.address, port=started[0]))
        try:
            await _run(config, open_store, stop, disk, machine, secrets, open_routes, note_started)
        except SpaceAgainError as exc:
            log.info("%s: the storage is opened again", exc)
        except (StorageFailedError, DirectoryError, StorageFileError) as exc:
            if no_space(exc) is None or not started or not config.fullness.may_be_read_only:
                raise
            log.warning("the disk is full: the storage is opened again, for reads: %s", exc)
            with trio.move_on_after(FULL_PAUSE_S):
                await stop.wait()
        else:
            return
        if stop.is_set():
            return


async def _run(
    config: BookieConfig,
    open_store: OpenStore,
    stop: trio.Event,
    disk: Disk,
    machine: Machine | None,
    secrets: Secrets,
    open_routes: OpenRoutes | None,
    note_started: Callable[[int], None],
) -> None:
    """Run the bookie from its directories as they are, until its storage has to be opened again."""
    identity = resolve_identity(config.address, machine)
    sockets = await bind(identity.listen_host, config.address.port)
    try:
        port: int = sockets[0].getsockname()[1]
        if config.address.port != port:
            identity = resolve_identity(attrs.evolve(config.address, port=port), machine)
        async with open_store() as store:
            root = config.metadata.ledgers_root
            layout = await retry_lost_connection(
                lambda: prepare_cluster_root(store, root, config.metadata.layout), timeout_s=START_RETRY_S
            )
            directories = config.directories
            cookie = Cookie(
                identity.bookie_id,
                directories.journal,
                directories.ledger,
                directories.index,
                await retry_lost_connection(lambda: read_instance_id(store, root), timeout_s=START_RETRY_S),
            )
            startup_check = await begin_startup_check(
                store,
                root,
                layout,
                disk,
                cookie,
                config.storage,
                possible_ids=identity.possible_ids,
                config=config.startup_check,
            )
            registration = Registration(
                store,
                root,
                identity.bookie_id,
                _service_info(identity, port, config.network_location, has_tls=config.tls is not None),
                wait_s=config.metadata.session_timeout_ms / 1000,
            )
            permissions = None
            if config.permissions is not None:
                log_permissions = LogPermissions(
                    lambda: registration.store, root, layout, config.permissions.namespaces
                )
                await retry_lost_connection(log_permissions.check_namespaces, timeout_s=START_RETRY_S)
                permissions = log_permissions.permissions(config.permissions)
            await disk.run(take_over_page_files, disk, config.storage)
            async with open_bookie(
                attrs.evolve(config.storage, accepts_losses=startup_check.accepts_losses),
                server_config=attrs.evolve(
                    config.server, tls=None if config.tls is None else lambda: secrets.context
                ),
                sync_adds=config.sync_adds,
                digest_type_of=DigestTypes(lambda: registration.store, root, layout),
                disk=disk,
                permissions=permissions,
            ) as bookie:
                await startup_check.complete(bookie.storage)
                bookie.service.may_exist = lambda ledger_id: node_of(root, layout, ledger_id) is not None
                live_ledgers = LiveLedgers(
                    lambda: registration.store,
                    root,
                    layout,
                    identity.bookie_id,
                    cookie.instance_id,
                    config.gc.metadata_requests_per_s,
                )
                served = ServedLedgers(
                    bookie.service,
                    await load_tombstones(bookie.service, config.storage.ledger_directories[0], disk),
                )
                garbage = GarbageCollector(
                    served,
                    live_ledgers,
                    config=config.gc,
                    compaction=config.storage.compaction,
                    delete_over_replicated=OverReplicated(
                        lambda: registration.store,
                        root,
                        layout,
                        identity.bookie_id,
                        socket.getfqdn(),
                        config.gc.metadata_requests_per_s,
                    ),
                    delete_local_copy=served.delete_local_copy,
                )
                async with trio.open_nursery() as background:
                    background.start_soon(garbage.run)
                    if permissions is not None:
                        background.start_soon(log_permissions.keep_fresh)
                    if config.secrets_refresh_s > 0:
                        background.start_soon(secrets.keep, config.secrets_refresh_s)
                    if config.new_ledgers.unconfirmed_max:
                        new_ledgers = NewLedgers(config.new_ledgers, trio.current_time)
                        bookie.service.new_ledgers = new_ledgers
                        check = NewLedgerCheck(new_ledgers, live_ledgers.find, served.delete_ledgers)
                        background.start_soon(check.run)
                    background.start_soon(
                        startup_check.keep_raising_incarnation,
                        lambda: registration.store,
                        lambda: bookie.storage.progress,
                    )
                    cluster = ClusterAccess(
                        lambda: registration.store, open_store, root, layout, partial(_client_config, config)
                    )
                    repair = IntegrityRepair(
                        bookie.storage,
                        identity.bookie_id,
                        cluster.open_client,
                        GoneLedgers(live_ledgers, served),
                        config.integrity,
                    )
                    background.start_soon(repair.run)
                    healing = DamageHealing(
                        bookie.storage,
                        identity.bookie_id,
                        cluster.open_client,
                        may_write=lambda: bookie.service.rights.writable,
                    )
                    background.start_soon(healing.run)
                    await _serve(
                        bookie,
                        config,
                        identity,
                        sockets,
                        registration,
                        open_store,
                        stop,
                        disk,
                        garbage,
                        secrets,
                        cluster,
                        cookie,
                        healing.stats,
                        open_routes,
                        note_started,
                    )
                    background.cancel_scope.cancel()
            await startup_check.mark_clean_stop()
    except BaseExceptionGroup as group:
        raise only_error(group) from group  # callers tell errors apart by their class
    finally:
        for bound in sockets:
            bound.close()
    log.info("bookie %s has stopped", identity.bookie_id)


def _client_config(config: BookieConfig) -> ClientConfig:
    """Of a client that reads from the other bookies."""
    transport = TransportConfig(
        tls=None if config.tls is None else peer_context(config.tls),
        auth=config.client_auth,
        # Not the configured frame limit: other bookies may hold entries from before it was lowered.
        frame_bytes_max=RECORD_BYTES_MAX + _REPLY_OVERHEAD_BYTES,
    )
    return ClientConfig(transport=transport)


async def _serve(
    bookie: Bookie,
    config: BookieConfig,
    identity: Identity,
    sockets: Sequence[trio.socket.SocketType],
    registration: Registration,
    open_store: OpenStore,
    stop: trio.Event,
    disk: Disk,
    garbage: GarbageCollector,
    secrets: Secrets,
    cluster: ClusterAccess,
    cookie: Cookie,
    healing: HealingStats,
    open_routes: OpenRoutes | None,
    note_started: Callable[[int], None],
) -> None:
    watch = DiskWatch(
        bookie.service.rights,
        registration,
        disk,
        config.fullness,
        ledger_directories=config.storage.ledger_directories,
        journal_directories=config.storage.journal_directories,
        is_forced=config.read_only,
        persists=config.persist_status,
        reserves=[
            Reserve(disk, path / CURRENT, config.fullness.reserve_bytes, name=FLUSH_RESERVE)
            for path in config.storage.ledger_directories
        ],
        other_reserves=[
            Reserve(disk, path / CURRENT, config.storage.compaction.reserve_bytes)
            for path in config.storage.ledger_directories
        ],
        backlog_bytes=lambda: None if bookie.storage.full is None else bookie.storage.backlog_bytes,
        wall_ms=wall_ms,
        on_fullness=garbage.on_fullness,
    )
    await watch.load()
    await watch.check()
    for bound in sockets:
        listen(bound, keepalive=config.server.tcp_keepalive)
    listeners = [trio.SocketListener(bound) for bound in sockets]
    admin = Admin(
        identity.bookie_id,
        bookie.service,
        garbage,
        watch,
        wall_ms,
        disk=disk,
        config=config,
        server=bookie.server,
        cluster=cluster,
        cookie=cookie,
        auto_recovery=None if config.auto_recovery is None else AutoRecoveryStats(),
        healing=healing,
    )
    async with trio.open_nursery() as serving:
        if config.admin is not None:
            url = await serving.start(
                partial(serve_admin, admin, config.admin, secrets, open_routes=open_routes)
            )
            log.info("the HTTP server for operators listens at %s", url)
        accepting = trio.CancelScope()

        async def accept(*, task_status: trio.TaskStatus[list[trio.abc.Listener[trio.abc.Stream]]]) -> None:
            with accepting:
                await bookie.server.serve(listeners, connections=serving, task_status=task_status)

        await serving.start(accept)
        try:
            # False: ``stop`` was set while this waited for the end of an earlier process's session.
            if await _announce(registration, stop, read_only=not bookie.service.rights.writable):
                port: int = sockets[0].getsockname()[1]
                log.info(
                    "bookie %s is ready, %s, at %s port %d",
                    identity.bookie_id,
                    "writable" if bookie.service.rights.writable else "read-only",
                    identity.listen_host or "all addresses",
                    port,
                )
                admin.is_ready = True
                notify(READY)
                note_started(port)
                async with trio.open_nursery() as watching:
                    watching.start_soon(registration.keep, open_store)
                    watching.start_soon(watch.run)
                    if config.auto_recovery is not None:
                        watching.start_soon(
                            run_auto_recovery,
                            cluster,
                            identity.bookie_id,
                            config.auto_recovery,
                            admin.auto_recovery,
                        )
                    await stop.wait()
                    watching.cancel_scope.cancel()
        finally:
            admin.is_stopping = True
            notify(STOPPING)
            # First clients stop choosing this bookie, then none connects, then the last replies go out.
            with trio.move_on_after(WITHDRAW_S, shield=True):
                await registration.withdraw()
            accepting.cancel()
            for listener in listeners:
                listener.socket.close()
        await bookie.drain()
        serving.cancel_scope.cancel()


async def _announce(registration: Registration, stop: trio.Event, *, read_only: bool) -> bool:
    """Announce the bookie; False if ``stop`` was set first."""
    is_announced = False
    async with trio.open_nursery() as nursery:

        async def give_up() -> None:
            await stop.wait()
            nursery.cancel_scope.cancel()

        nursery.start_soon(give_up)
        await registration.announce(read_only=read_only)
        is_announced = True
        nursery.cancel_scope.cancel()
    return is_announced


def _service_info(identity: Identity, port: int, location: str | None, *, has_tls: bool) -> bytes:
    extensions = (TLS_EXTENSION,) if has_tls else ()
    endpoint = Endpoint(RPC_ID, port, identity.advertised_host, RPC_PROTOCOL, (), extensions)
    properties = {} if location is None else {LOCATION_PROPERTY: location}
    return encode_service_info(ServiceInfo((endpoint,), properties))
