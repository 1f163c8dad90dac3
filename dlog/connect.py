"""From a URI to a namespace: the one place that knows which parts a deployment is made of.

Inside: choosing and assembling store, ledger client and namespace; what only exists for that. Not inside: any
of them.
Always: the parts run in a task of their own, so an error of the caller's block comes out as it is; they are
closed in order, also when the block is cancelled.

Source: DistributedLog, NamespaceBuilder.java, BKNamespaceDriver.java (reference 3.1, 3.2).
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

import attrs
import trio

from dlog.config import NamespaceConfig
from dlog.errors import ConfigError, NamespaceNotBoundError, as_dlog_error
from dlog.namespace_handle import Namespace
from dlog.nursery import open_service_tasks
from ledger.client import LedgerClient, open_ledger_client
from ledger.config import ClientConfig
from ledger.dial import dial_tcp
from ledger.errors import LedgerError
from ledger.transport_config import TransportConfig
from namespace.binding import Binding, new_binding
from namespace.bindings import bind, resolve_binding
from namespace.errors import NamespaceError, NoBindingError, NodeExistsError
from namespace.segment import FIRST_SEGMENT_SEQNO
from namespace.store import MetadataStore
from namespace.uri import NamespaceUri, parse_namespace_uri

CLOSE_S = 20.0  # for the parts to close once the block is left


@attrs.frozen
class _Parts:
    store: MetadataStore
    client: LedgerClient
    path: str
    first_segment_seqno: int = FIRST_SEGMENT_SEQNO


@asynccontextmanager
async def open_namespace(uri: str, *, config: NamespaceConfig | None = None) -> AsyncIterator[Namespace]:
    """Open a namespace for the length of an ``async with``.

    Args:
        uri: ``file:///dir`` for one that lives in a directory of this machine, served by this process or by
        another
            one that has it open; ``distributedlog://zk1:2181;zk2:2181/path`` for one in a cluster of bookies,
            ours or Apache's.
        config: How logs are stored, and how patient writers and readers are.

    Raises:
        InvalidUriError, ConfigError
        NamespaceNotBoundError: Nobody has said where the namespace's ledgers are; see
        ``NamespaceConfig.create``. LogUnavailableError: ZooKeeper cannot be reached. EmbeddedStoreError: The
        directory cannot be used.
    """
    config = config or NamespaceConfig()
    try:
        where = parse_namespace_uri(uri)
    except NamespaceError as exc:
        raise as_dlog_error(exc, None, "opening it") from exc
    config = config.for_scheme(where.scheme)
    stop, stopped = trio.Event(), trio.Event()
    async with open_service_tasks() as tasks:
        parts = await tasks.start(_hold_open, where, config, stop, stopped)
        namespace = Namespace(
            uri,
            parts.store,
            parts.client,
            parts.path,
            config,
            client_id=config.client_id or f"{socket.gethostname()}/{os.getpid()}",
            first_segment_seqno=parts.first_segment_seqno,
        )
        try:
            yield namespace
        finally:
            namespace.close()
            with trio.move_on_after(CLOSE_S) as scope:
                scope.shield = True
                stop.set()
                await stopped.wait()


async def _hold_open(
    where: NamespaceUri,
    config: NamespaceConfig,
    stop: trio.Event,
    stopped: trio.Event,
    *,
    task_status: trio.TaskStatus[_Parts],
) -> None:
    """Keep the parts of a namespace until told to stop; for a task."""
    try:
        async with _open_parts(where, config) as parts:
            task_status.started(parts)
            await stop.wait()
    except (NamespaceError, LedgerError) as exc:
        raise as_dlog_error(exc, None, "opening the namespace") from exc
    finally:
        stopped.set()


def _open_parts(where: NamespaceUri, config: NamespaceConfig) -> AbstractAsyncContextManager[_Parts]:
    return _open_directory(where, config) if where.scheme == "file" else _open_cluster(where, config)


@asynccontextmanager
async def _open_directory(where: NamespaceUri, config: NamespaceConfig) -> AsyncIterator[_Parts]:
    # A bookie and its index are not imported by programs that use a cluster.
    from dlog.embedded import NAMESPACE_PATH, open_embedded_stack

    async with open_embedded_stack(Path(where.path), _client_config(config)) as stack:
        yield _Parts(stack.store, stack.client, NAMESPACE_PATH)


@asynccontextmanager
async def _open_cluster(where: NamespaceUri, config: NamespaceConfig) -> AsyncIterator[_Parts]:
    # Nor is a ZooKeeper client by those that do not.
    from namespace.zookeeper import open_zookeeper_store

    async with AsyncExitStack() as stack:

        async def open_store(hosts: str) -> MetadataStore:
            return await stack.enter_async_context(
                open_zookeeper_store(
                    hosts,
                    session_timeout_ms=config.session_timeout_ms,
                    connect_timeout_s=config.connect_timeout_s,
                )
            )

        store = await open_store(where.hosts)
        binding = await _binding(store, where, config)
        if binding.federated:
            raise ConfigError(
                f"namespace {where}: it is federated, which is not supported; name one of its sub-namespaces"
            )
        # The ledgers may be another ZooKeeper's.
        bookies_store = (
            store if _same_hosts(binding.bk_hosts, where.hosts) else await open_store(binding.bk_hosts)
        )
        client = await stack.enter_async_context(
            open_ledger_client(bookies_store, dial_tcp, _client_config(config), root=binding.ledgers_root)
        )
        yield _Parts(store, client, where.path, binding.segment_seqno_first)


async def _binding(store: MetadataStore, where: NamespaceUri, config: NamespaceConfig) -> Binding:
    try:
        binding = await resolve_binding(store, where.path)
    except NoBindingError as exc:
        if not config.create:
            raise NamespaceNotBoundError(
                f"namespace {where}: neither {where.path} nor a node above it says where the "
                "ledgers are. If this is the right path, open it once with NamespaceConfig(create=True), "
                f"which binds it to {config.ledgers_root} on the same ZooKeeper"
            ) from exc
        binding = new_binding(where.hosts, config.ledgers_root)
        await bind(store, where.path, binding)
        return binding
    if await store.exists(where.path) is None:
        if not config.create:
            raise NamespaceNotBoundError(
                f"namespace {where}: there is no node {where.path}, although one above it is bound; "
                "is the path right? Open it once with NamespaceConfig(create=True) to create it"
            )
        try:
            await store.create(where.path, b"", parents=True)
        except NodeExistsError:
            pass  # somebody else was faster
    return binding


def _same_hosts(one: str, other: str) -> bool:
    def canonical(hosts: str) -> set[str]:
        return {host if ":" in host else f"{host}:2181" for host in hosts.replace(";", ",").split(",")}

    return canonical(one) == canonical(other)


def _client_config(config: NamespaceConfig) -> ClientConfig:
    return ClientConfig(
        transport=TransportConfig(add_version=config.wire_version, tls=config.tls),
        placement=config.placement,
        add_quorum_timeout_s=config.add_quorum_timeout_s,
        delay_ensemble_change=config.delay_ensemble_change,
    )
