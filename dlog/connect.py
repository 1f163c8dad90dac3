"""Opening a namespace from its URI: choosing and assembling store, ledger client and namespace.

Not inside: the parts themselves.
Always: the parts run in a task of their own, so an error of the caller's block comes out unchanged; they are
closed in order, also when the block is cancelled.

Source: DistributedLog, NamespaceBuilder.java, BKNamespaceDriver.java (docs/metadata.md 16.1, 16.2).
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import trio

from dlog.config import NamespaceConfig
from dlog.context import EMBEDDED_NAMESPACE_PATH, FixedLocation, NamespaceContext
from dlog.errors import ConfigError, DiskFullError, NamespaceNotBoundError, as_dlog_error, error_of_system
from dlog.namespace_handle import Namespace
from dlog.promotion.location import promotable
from dlog.settings import has_settings, load_settings
from ledger.client import LedgerClient, open_ledger_client
from ledger.config import ClientConfig
from ledger.errors import LedgerError
from ledger.metadata_store.errors import MetadataError, NodeExistsError
from ledger.metadata_store.read_only import ReadOnlyStore
from ledger.metadata_store.store import MetadataStore
from ledger.metadata_store.zookeeper_security import NO_SECURITY, security_of_environment
from ledger.runtime.own_user import own_user
from ledger.runtime.tasks.service_tasks import ServiceTasks, open_service_tasks
from ledger.runtime.tasks.trio_only import check_trio
from ledger.transport import bookie_security
from ledger.transport.bookie_security import BookieSecurity
from ledger.transport.config import TransportConfig
from ledger.transport.dial import dial_tcp
from namespace.binding import Binding, new_binding
from namespace.bindings import access_control_path, bind, resolve_binding
from namespace.federated_store import FederatedStore
from namespace.namespace_uri import NamespaceUri, parse_namespace_uri
from namespace.owner_address import parse_listen_at
from namespace.segments.segment import FIRST_SEGMENT_SEQNO

if TYPE_CHECKING:
    from dlog.forwarding.shared_shell import Meeting
    from ledger.deploy.directory import Directory
    from namespace.log_nodes import LogNodes

# Directories that exist in memory only, by path: those of ``dlog.testing``.
in_memory: dict[str, Callable[[NamespaceConfig, bool], AbstractAsyncContextManager[Parts]]] = {}
BACKUP = "backup"  # in place of the scheme of a namespace; ``path`` is the whole URI then
_BACKUP_SCHEMES = ("backup:", "s3:")
_NO_URI = "file:///"  # for settings of a backup, whose query has none
CLOSE_S = 20.0  # the parts have this long to close after the block is left


@attrs.frozen
class Parts:
    """The open parts of a namespace."""

    store: MetadataStore
    client: LedgerClient
    path: str
    first_segment_seqno: int = FIRST_SEGMENT_SEQNO
    is_snapshot: bool = False
    access_control_path: str | None = None
    meet: Callable[[LogNodes], Meeting] | None = None  # where the programs that share a writer meet


@asynccontextmanager
async def open_namespace(
    uri: str,
    *,
    config: NamespaceConfig | None = None,
    config_file: str | Path | None = None,
    settings: Mapping[str, object] | None = None,
    read_only: bool = False,
) -> AsyncIterator[Namespace]:
    """Open a namespace for the duration of an ``async with``.

    Args:
        uri: ``file:///dir`` for a namespace in a directory of this machine. This process serves it, or
            another one that has it open. ``distributedlog://zk1:2181;zk2:2181/path`` for a namespace in a
            cluster of bookies, ours or Apache's. Settings may follow as a query: ``?write_quorum=2``.
            ``backup:/dir`` and ``s3://bucket/prefix`` for a backup, which is only read; with ``?at=TIME`` the
            newest one at that time or before.
        config: How logs are stored, and the settings of writers and readers. The settings named in it are
            stronger than those of all other places.
        config_file: A file with settings (docs/settings.md); None: the file that the variable DLOG_CONFIG
            names, if it is set. No other file is read. Variables ``DLOG_...`` are stronger than the file, and
            the query of the URI is stronger than those.
        settings: More settings by their names in docs/settings.md, stronger than the query.
        read_only: Refuse every change with ``ReadOnlyError``. A directory is opened without writing a byte in
            it, so it may be on a full or read-only disk. If no process hosts it, the logs are those of this
            moment: later records do not appear, and once a process has opened the directory for writing, the
            block ends with ``EmbeddedStoreError`` when a reader needs a file that this process changed.

    Raises:
        InvalidUriError
        ConfigError: Settings are unknown, wrong or contradict each other; the message names their place.
        NamespaceNotBoundError: No binding says where the ledgers are; see ``NamespaceConfig.create``.
        LogUnavailableError: ZooKeeper cannot be reached.
        AccessDeniedError: ZooKeeper refuses the identity.
        EmbeddedStoreError: The directory cannot be used.
        BackupError: The backup is damaged, cannot be reached, or is not there.
        RuntimeError: No task of trio makes the call; ``dlog.aio`` is for asyncio.
    """
    check_trio("dlog.open_namespace", "dlog.aio.open_namespace on asyncio, dlog.blocking without async")
    async with open_service_tasks() as tasks:
        opened = _Opened(
            tasks, partial(_configured, config=config, config_file=config_file, settings=settings), read_only
        )
        context = await opened.open(uri)
        try:
            yield Namespace(context)
        finally:
            with trio.move_on_after(CLOSE_S) as scope:
                scope.shield = True
                await opened.aclose()


class _Opened:
    """A namespace, and those that its logs were promoted to, which are opened when they are needed."""

    def __init__(
        self,
        tasks: ServiceTasks,
        configured: Callable[[str], Awaitable[tuple[NamespaceUri, NamespaceConfig]]],
        read_only: bool,
    ) -> None:
        """``configured``: the settings for a URI, from the same places for all of them."""
        self._tasks, self._configured, self._read_only = tasks, configured, read_only
        self._turn = trio.Lock()
        self._open: dict[str, NamespaceContext] = {}
        self._ends: list[tuple[NamespaceContext, trio.Event, trio.Event]] = []  # in the order of opening

    async def open(self, uri: str) -> NamespaceContext:
        """The open namespace of a URI; opened again if its session is over."""
        async with self._turn:
            found = self._open.get(uri)
            if found is None or found.is_over:
                found = self._open[uri] = await self._opened(uri)
            return found

    async def _opened(self, uri: str) -> NamespaceContext:
        where, config = await self._configured(uri)
        stop, stopped = trio.Event(), trio.Event()
        parts = await self._tasks.start(_hold_open, where, config, self._read_only, stop, stopped)
        context = NamespaceContext(
            uri,
            parts.store,
            parts.client,
            parts.path,
            config,
            client_id=config.client_id or f"{socket.gethostname()}/{os.getpid()}",
            first_segment_seqno=parts.first_segment_seqno,
            principal=config.principal or _principal(where, config),
            read_only=self._read_only or where.scheme == BACKUP,
            is_backup=where.scheme == BACKUP,
            is_snapshot=parts.is_snapshot,
            access_control_path=parts.access_control_path,
            meet=parts.meet,
            locate=promotable(self.open) if where.scheme == "file" else FixedLocation,
        )
        self._ends.append((context, stop, stopped))
        return context

    async def aclose(self) -> None:
        for context, _, _ in self._ends:
            context.close()
        for _, stop, stopped in reversed(self._ends):
            stop.set()
            await stopped.wait()


async def _configured(
    uri: str,
    config: NamespaceConfig | None,
    config_file: str | Path | None,
    settings: Mapping[str, object] | None,
) -> tuple[NamespaceUri, NamespaceConfig]:
    def read_of_backup() -> tuple[NamespaceUri, NamespaceConfig]:
        found = load_settings(_NO_URI, config_file=config_file, settings=settings)
        return NamespaceUri(BACKUP, "", uri), found.config("file", config).for_scheme("file")

    def read() -> tuple[NamespaceUri, NamespaceConfig]:
        found = load_settings(uri, config_file=config_file, settings=settings)
        where = parse_namespace_uri(found.uri)
        return where, found.config(where.scheme, config).for_scheme(where.scheme)

    if uri.strip().lower().startswith(_BACKUP_SCHEMES):  # its query is its own
        return await trio.to_thread.run_sync(read_of_backup)
    if has_settings(uri, config_file, settings):
        return await trio.to_thread.run_sync(read)
    return read()


async def _hold_open(
    where: NamespaceUri,
    config: NamespaceConfig,
    read_only: bool,
    stop: trio.Event,
    stopped: trio.Event,
    *,
    task_status: trio.TaskStatus[Parts],
) -> None:
    """Keep the parts of a namespace open until ``stop`` is set; for a task."""
    try:
        async with _open_parts(where, config, read_only) as parts:
            task_status.started(parts)
            await stop.wait()
    except (MetadataError, LedgerError) as exc:
        error = as_dlog_error(exc, None, "opening the namespace")
        raise error from error_of_system(exc) if isinstance(error, DiskFullError) else None
    finally:
        stopped.set()


def _open_parts(
    where: NamespaceUri, config: NamespaceConfig, read_only: bool
) -> AbstractAsyncContextManager[Parts]:
    if where.scheme == BACKUP:
        return _read_backup(where, config)
    if where.scheme != "file":
        return _open_cluster(where, config, read_only)
    if where.path in in_memory:
        return in_memory[where.path](config, read_only)
    return _read_directory(where, config) if read_only else _open_directory(where, config)


@asynccontextmanager
async def _open_directory(where: NamespaceUri, config: NamespaceConfig) -> AsyncIterator[Parts]:
    # A program that uses a cluster does not import the embedded store.
    from ledger.deploy.embedded import open_embedded_stack

    async with open_embedded_stack(
        Path(where.path), client_config(config), lock_timeout_s=config.host_lock_timeout_s
    ) as stack:
        path = await prepare_embedded_namespace(stack.store)
        yield Parts(stack.store, stack.client, path, meet=partial(_meet, stack.directory))


def _meet(directory: Directory, nodes: LogNodes) -> Meeting:
    # Only a program that shares a writer imports this.
    from dlog.forwarding.meeting import DirectoryMeeting

    return DirectoryMeeting(directory, nodes)


def meet_by_network(config: NamespaceConfig, security: BookieSecurity, nodes: LogNodes) -> Meeting:
    """Where the programs that share the writer of a log in a cluster meet.

    Args:
        config: ``tls`` and ``auth`` may have been made from the files of ``security``.
        security: What programs show each other.

    Raises:
        ConfigError: ``tls`` or ``auth`` are objects of the program, which only bookies understand.
    """
    from dlog.forwarding.network_meeting import NetworkMeeting

    given = config.tls is not None or config.auth is not None
    if given and security == bookie_security.NO_SECURITY:
        raise ConfigError(
            f"log {nodes.name!r}: to share its writer, give bookie_security in place of tls and auth:"
            " programs show each other its certificate or its user"
        )
    return NetworkMeeting(parse_listen_at(config.owner_address), nodes, security)


@asynccontextmanager
async def _read_directory(where: NamespaceUri, config: NamespaceConfig) -> AsyncIterator[Parts]:
    from ledger.deploy.read_only import open_read_only_stack

    async with open_read_only_stack(
        Path(where.path), client_config(config), lock_timeout_s=config.host_lock_timeout_s
    ) as stack:
        if await stack.store.exists(EMBEDDED_NAMESPACE_PATH) is None:
            raise NamespaceNotBoundError(
                f"namespace {where}: the directory has no logs; open it once without read_only"
            )
        yield Parts(stack.store, stack.client, EMBEDDED_NAMESPACE_PATH, is_snapshot=stack.is_snapshot)


@asynccontextmanager
async def _read_backup(where: NamespaceUri, config: NamespaceConfig) -> AsyncIterator[Parts]:
    from dlog.backup.reading import open_backup

    async with open_backup(where.path, client_config(config)) as (store, client):
        yield Parts(store, client, EMBEDDED_NAMESPACE_PATH, is_snapshot=True)


async def prepare_embedded_namespace(store: MetadataStore) -> str:
    """Create the node of the one namespace in a directory if it is missing; return its path."""
    try:
        await store.create(EMBEDDED_NAMESPACE_PATH, b"", parents=True)
    except NodeExistsError:
        pass
    return EMBEDDED_NAMESPACE_PATH


@asynccontextmanager
async def _open_cluster(
    where: NamespaceUri, config: NamespaceConfig, read_only: bool
) -> AsyncIterator[Parts]:
    # A program that uses a directory does not import the ZooKeeper client.
    from ledger.deploy.cluster_store import open_cluster_store

    async with AsyncExitStack() as stack:

        async def open_store(hosts: str) -> MetadataStore:
            opened = await stack.enter_async_context(
                open_cluster_store(
                    hosts,
                    session_timeout_ms=config.session_timeout_ms,
                    connect_timeout_s=config.connect_timeout_s,
                    security=config.zookeeper_security,
                )
            )
            return ReadOnlyStore(opened) if read_only else opened

        store = await open_store(where.hosts)
        binding = await _binding(store, where, config)
        config, security = await trio.to_thread.run_sync(_with_bookie_security, config)
        # The ledgers may have a ZooKeeper of their own.
        bookies_store = (
            store if _same_hosts(binding.bk_hosts, where.hosts) else await open_store(binding.bk_hosts)
        )
        client = await stack.enter_async_context(
            open_ledger_client(
                bookies_store,
                dial_tcp,
                client_config(config),
                root=binding.ledgers_root,
                read_only=read_only,
            )
        )
        yield Parts(
            FederatedStore(store, where.path, logs_max=config.sub_namespace_logs_max)
            if binding.federated
            else store,
            client,
            where.path,
            binding.segment_seqno_first,
            access_control_path=access_control_path(where.path, binding),
            meet=partial(meet_by_network, config, security),
        )


async def _binding(store: MetadataStore, where: NamespaceUri, config: NamespaceConfig) -> Binding:
    try:
        binding = await resolve_binding(store, where.path)
    except NamespaceNotBoundError as exc:
        if not config.create:
            raise NamespaceNotBoundError(
                f"namespace {where}: neither {where.path} nor a node above it says where the "
                "ledgers are. If the path is right, open it once with NamespaceConfig(create=True), "
                f"which binds it to {config.ledgers_root} on the same ZooKeeper"
            ) from exc
        binding = new_binding(where.hosts, config.ledgers_root)
        await bind(store, where.path, binding)
        return binding
    if await store.exists(where.path) is None:
        if not config.create:
            raise NamespaceNotBoundError(
                f"namespace {where}: there is no node {where.path}, although a node above it is bound. "
                "If the path is right, open it once with NamespaceConfig(create=True), which creates it"
            )
        try:
            await store.create(where.path, b"", parents=True)
        except NodeExistsError:
            pass  # another client has just created it
    return binding


def _principal(where: NamespaceUri, config: NamespaceConfig) -> str:
    security = NO_SECURITY if where.scheme in ("file", BACKUP) else config.zookeeper_security
    if security is None:
        security = security_of_environment()
    if security.username is not None:
        return security.username
    return own_user()


def _same_hosts(one: str, other: str) -> bool:
    def canonical(hosts: str) -> set[str]:
        return {host if ":" in host else f"{host}:2181" for host in hosts.replace(";", ",").split(",")}

    return canonical(one) == canonical(other)


def _with_bookie_security(config: NamespaceConfig) -> tuple[NamespaceConfig, BookieSecurity]:
    """The settings with ``tls`` and ``auth`` from the files of ``bookie_security`` or of the environment; and
    those files' names."""
    if config.tls is not None or config.auth is not None:
        return config, bookie_security.NO_SECURITY
    security = config.bookie_security or bookie_security.security_of_environment()
    context, auth = security.open()
    return attrs.evolve(config, tls=context, auth=auth, bookie_security=None), security


def client_config(config: NamespaceConfig) -> ClientConfig:
    """The settings of the ledger client below a namespace."""
    return ClientConfig(
        transport=TransportConfig(add_version=config.wire_version, tls=config.tls, auth=config.auth),
        placement=config.placement,
        add_quorum_timeout_s=config.add_quorum_timeout_s,
        delay_ensemble_change=config.delay_ensemble_change,
        statistics=config.statistics,
        tracing=config.tracing,
    )
