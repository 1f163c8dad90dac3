"""Opening the ledgers below logs with the one client configuration (docs/settings.md).

Inside: the ledgers of a URI or of a namespace, the settings that hold for them. Not inside: the client itself
(``ledger.open_client``, which takes every setting as an argument), ledgers of a namespace in memory.
Always: a place without ledgers stays as it is: no directory, no node is made.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from dlog.config import NamespaceConfig
from dlog.connect import client_config
from dlog.errors import InvalidUriError, NamespaceNotBoundError
from dlog.settings import load_settings
from ledger.client import LedgerClient
from ledger.config import ClientConfig
from ledger.deploy import Deployment, Opening, open_deployment
from ledger.errors import ClusterNotFoundError
from ledger.metadata_store.service_uri import ServiceUri
from ledger.runtime.tasks.trio_only import check_trio
from namespace.namespace_uri import parse_namespace_uri

UNNAMED = "distributedlog://localhost/unnamed"  # for settings of a cluster that no namespace names


@asynccontextmanager
async def open_ledgers(
    uri: str,
    *,
    config: NamespaceConfig | None = None,
    config_file: str | Path | None = None,
    settings: Mapping[str, object] | None = None,
    read_only: bool = False,
) -> AsyncIterator[LedgerClient]:
    """Open a client for ledgers, configured as ``open_namespace`` is: file, environment, query, keywords.

    Leaving the block closes the client, not its ledgers. The settings say how bookies and ZooKeeper are
    reached: TLS, identities, placement, timeouts. The quorums, digest and password of a new ledger are
    arguments of ``LedgerClient.create``.

    Args:
        uri: A namespace (``distributedlog:``, ``file:``), for the ledgers of its logs; or the ledgers of a
            cluster (``zk+hierarchical://zk1:2181/ledgers``, without a query).
        config, config_file, settings: See ``open_namespace``.
        read_only: See ``ledger.open_client``.

    Raises:
        InvalidUriError, InvalidStoreAddressError: The URI cannot be parsed.
        ConfigError: Settings are unknown, wrong or contradict each other; the message names their place.
        NamespaceNotBoundError: There are no ledgers at this place.
        LedgerError, MetadataError: As ``ledger.open_client`` raises them.
        RuntimeError: No task of trio makes the call.
    """
    check_trio("dlog.open_ledgers", "ledger.blocking in a thread")
    async with open_ledger_deployment(
        uri, config=config, config_file=config_file, settings=settings, read_only=read_only
    ) as deployment:
        yield deployment.client


@asynccontextmanager
async def open_ledger_deployment(
    uri: str,
    *,
    config: NamespaceConfig | None = None,
    config_file: str | Path | None = None,
    settings: Mapping[str, object] | None = None,
    read_only: bool = False,
    client: Callable[[NamespaceConfig], ClientConfig] = client_config,
) -> AsyncIterator[Deployment]:
    """Like ``open_ledgers``, with the metadata store and the root of the ledgers' nodes.

    Args:
        client: Makes the ledger client's configuration of the settings. If it has TLS or authentication, the
            settings of ``bookie_security`` do not count.
    """
    scheme = uri.strip().partition(":")[0].lower()
    names_ledgers = scheme.startswith("zk")
    found = await trio.to_thread.run_sync(
        lambda: load_settings(UNNAMED if names_ledgers else uri, config_file=config_file, settings=settings)
    )
    if not names_ledgers:
        uri = found.uri
    is_directory = scheme == "file"
    kind = "file" if is_directory else "distributedlog"
    obeyed = await trio.to_thread.run_sync(found.config, kind, config)
    if is_directory:
        obeyed = obeyed.for_scheme(kind)
        if not await trio.Path(parse_namespace_uri(uri).path).is_dir():
            raise NamespaceNotBoundError(f"{uri}: the directory does not exist; `dlog log create` creates it")
    elif not names_ledgers:
        uri = await _service_uri_of_namespace(uri, obeyed)
    ledgers = client(obeyed)
    chosen = ledgers.transport.tls is not None or ledgers.transport.auth is not None
    opening = Opening(
        config=ledgers,
        read_only=read_only,
        session_timeout_ms=obeyed.session_timeout_ms,
        connect_timeout_s=obeyed.connect_timeout_s,
        host_lock_timeout_s=obeyed.host_lock_timeout_s,
        security=obeyed.zookeeper_security,
        bookie_security=None if chosen else obeyed.bookie_security,
    )
    try:
        async with open_deployment(uri, opening) as deployment:
            yield deployment
    except ClusterNotFoundError as exc:
        raise NamespaceNotBoundError(str(exc)) from None


async def ledgers_uri(uri: str) -> str:
    """The metadata service URI of the ledgers of a namespace of a cluster; that of ledgers is returned.

    Raises:
        InvalidUriError, InvalidStoreAddressError: The URI cannot be parsed, or is that of a directory.
        ConfigError: Settings are wrong.
        NamespaceNotBoundError: There is no such namespace.
        ledger.metadata_store.errors.MetadataError
    """
    scheme = uri.strip().partition(":")[0].lower()
    if scheme.startswith("zk"):
        return uri
    if scheme == "file":
        raise InvalidUriError(f"{uri} is a directory; this is for a cluster: name it, zk://HOST:PORT/ledgers")
    found = await trio.to_thread.run_sync(load_settings, uri)
    return await _service_uri_of_namespace(
        found.uri, await trio.to_thread.run_sync(found.config, "distributedlog")
    )


async def _service_uri_of_namespace(uri: str, config: NamespaceConfig) -> str:
    from ledger.metadata_store.zookeeper import open_zookeeper_store
    from namespace.bindings import resolve_binding

    where = parse_namespace_uri(uri)
    async with open_zookeeper_store(
        where.hosts,
        session_timeout_ms=config.session_timeout_ms,
        connect_timeout_s=config.connect_timeout_s,
        security=config.zookeeper_security,
    ) as store:
        binding = await resolve_binding(store, where.path)
    return str(ServiceUri(binding.bk_hosts, binding.ledgers_root, None))
