"""Opening ledgers by a URI alone.

Inside: the kinds of URI, assembling store and client. Not inside: logs (``dlog.connect``).
Always: a cluster without ledgers stays as it is; not even a LAYOUT node is created.

Source: BookKeeper, MetadataDrivers.java; docs/metadata.md 1.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import trio

from ledger.catalog.paths import LAYOUT, LAYOUT_OF_URI_NAME
from ledger.catalog.store_errors import as_ledger_error
from ledger.client import LedgerClient, open_ledger_client
from ledger.config import ClientConfig
from ledger.errors import ClusterNotFoundError, SecuritySettingsError
from ledger.metadata_store.errors import InvalidStoreAddressError, MetadataError
from ledger.metadata_store.read_only import ReadOnlyStore
from ledger.metadata_store.service_uri import (
    parse_directory_uri,
    parse_metadata_service_uri,
    without_user_info,
)
from ledger.metadata_store.store import MetadataStore
from ledger.metadata_store.zookeeper_security import ZooKeeperSecurity
from ledger.runtime.tasks.trio_only import check_trio
from ledger.transport.bookie_security import BookieSecurity, security_of_environment
from ledger.transport.dial import dial_tcp


@attrs.frozen
class Deployment:
    """Open ledgers: the client, and where their nodes are."""

    client: LedgerClient
    store: MetadataStore
    ledgers_root: str


@attrs.frozen(kw_only=True)
class Opening:
    """How ledgers are opened, whatever their URI; ``open_client`` says what each field means."""

    config: ClientConfig | None = None
    session_timeout_ms: int = 10_000
    connect_timeout_s: float = 10.0
    host_lock_timeout_s: float = 30.0
    security: ZooKeeperSecurity | None = None
    bookie_security: BookieSecurity | None = None
    read_only: bool = False


@asynccontextmanager
async def open_client(
    uri: str,
    *,
    config: ClientConfig | None = None,
    session_timeout_ms: int = 10_000,
    connect_timeout_s: float = 10.0,
    host_lock_timeout_s: float = 30.0,
    security: ZooKeeperSecurity | None = None,
    bookie_security: BookieSecurity | None = None,
    read_only: bool = False,
) -> AsyncIterator[LedgerClient]:
    """Open a client for the ledgers at a URI. Leaving the block closes the client, not its ledgers.

    Args:
        uri: ``zk+hierarchical://zk1:2181;zk2:2181/ledgers``, as ``metadataServiceUri`` in Apache's
            configuration; also ``zk+longhierarchical``, ``zk+flat``, and ``zk+null`` or ``zk`` for the layout
            that the cluster has. Or ``file:///dir`` for a directory of this machine, which is created if it
            does not exist.
        config: Quorum timeouts, TLS, placement and limits.
        session_timeout_ms: The timeout of the session with ZooKeeper.
        connect_timeout_s: How long to wait for ZooKeeper.
        security: Identity, access lists and TLS of the session with ZooKeeper. None: the file that the
            variable DLOG_ZK_SECURITY names, if it is set.
        bookie_security: TLS and authentication with bookies. None: those in ``config.transport``; if it has
            neither, the file that the variable DLOG_BOOKIE_SECURITY names, if it is set.
        host_lock_timeout_s: For a directory: how long to wait for a process that holds ``host.lock`` and does
            not serve.
        read_only: Every change raises ``ReadOnlyError``, and a recovery is one. Nothing is written below a
            directory, which may be on a full or read-only disk; without a process that hosts it, the client
            reads the files as they were when it was opened.

    Raises:
        InvalidLedgersUriError: The URI cannot be parsed; the message names the part.
        SecuritySettingsError: A file with settings for TLS or authentication cannot be used.
        ClusterNotFoundError: There are no ledgers at the URI.
        DirectoryUnusableError: The directory cannot be used.
        MetadataFormatError: The cluster has another layout than the URI names.
        MetadataUnavailableError: The metadata store cannot be reached.
        MetadataStoreError: The metadata store refused the identity, or failed.
    """
    opening = Opening(
        config=config,
        session_timeout_ms=session_timeout_ms,
        connect_timeout_s=connect_timeout_s,
        host_lock_timeout_s=host_lock_timeout_s,
        security=security,
        bookie_security=bookie_security,
        read_only=read_only,
    )
    is_open = False
    try:
        async with open_deployment(uri, opening) as deployment:
            is_open = True
            yield deployment.client
    except MetadataError as exc:
        if is_open:
            raise  # of the caller's block
        raise as_ledger_error(exc) from None


@asynccontextmanager
async def open_deployment(uri: str, opening: Opening | None = None) -> AsyncIterator[Deployment]:
    """Like ``open_client``, with the metadata store and the root of the ledgers' nodes."""
    check_trio("ledger.open_client", "ledger.blocking, on asyncio in a thread")
    opening = opening or Opening()
    scheme = uri.strip().partition(":")[0].lower()
    if scheme == "file":
        from ledger.deploy.embedded import LEDGERS_ROOT, open_embedded_stack

        path = Path(parse_directory_uri(uri))
        if opening.read_only:
            from ledger.deploy.read_only import open_read_only_stack

            async with open_read_only_stack(
                path, opening.config, lock_timeout_s=opening.host_lock_timeout_s
            ) as opened:
                yield Deployment(opened.client, opened.store, LEDGERS_ROOT)
            return
        async with open_embedded_stack(
            path, opening.config, lock_timeout_s=opening.host_lock_timeout_s
        ) as stack:
            yield Deployment(stack.client, stack.store, LEDGERS_ROOT)
        return
    if scheme.startswith("distributedlog"):
        raise InvalidStoreAddressError(
            f"URI {without_user_info(uri)!r}: it names a namespace of logs; open that with"
            " dlog.open_namespace, or name the ledgers: zk+hierarchical://HOST:PORT/ledgers"
        )
    from ledger.deploy.cluster_store import open_cluster_store

    where = parse_metadata_service_uri(uri)
    config = await trio.to_thread.run_sync(
        _with_security, opening.config or ClientConfig(), opening.bookie_security
    )
    layout = None if where.layout is None else LAYOUT_OF_URI_NAME[where.layout]
    async with open_cluster_store(
        where.hosts,
        session_timeout_ms=opening.session_timeout_ms,
        connect_timeout_s=opening.connect_timeout_s,
        security=opening.security,
    ) as session:
        store = ReadOnlyStore(session) if opening.read_only else session
        await check_cluster_exists(store, where.ledgers_root, uri)
        async with open_ledger_client(
            store, dial_tcp, config, root=where.ledgers_root, layout=layout, read_only=opening.read_only
        ) as client:
            yield Deployment(client, store, where.ledgers_root)


def _with_security(config: ClientConfig, security: BookieSecurity | None) -> ClientConfig:
    """The configuration with TLS and authentication, from the settings or from the environment."""
    transport = config.transport
    if transport.tls is not None or transport.auth is not None:
        if security is not None:
            raise SecuritySettingsError("bookie_security: leave out tls and auth of the transport's settings")
        return config
    security = security_of_environment() if security is None else security
    context, auth = security.open()
    return attrs.evolve(config, transport=attrs.evolve(transport, tls=context, auth=auth))


async def check_cluster_exists(store: MetadataStore, ledgers_root: str, uri: str) -> None:
    """Raise ``ClusterNotFoundError`` unless the root has a LAYOUT node."""
    if await store.exists(f"{ledgers_root}/{LAYOUT}") is None:
        raise ClusterNotFoundError(
            f"{uri}: there are no ledgers below {ledgers_root}, because it has no node {LAYOUT}. Check the"
            " path: bookies name it in metadataServiceUri. `dlog bookies init` creates a new cluster"
        )
