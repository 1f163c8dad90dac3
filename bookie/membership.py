"""A bookie's place in its cluster: found or made before the storage opens.

Inside: what ``run_bookie`` was given; the root of the cluster, the cookie, the check before a start, the
registration, the policies that its peers are under. Not inside: these steps themselves
(``bookie.cluster``, ``bookie.identity``, ``bookie.ledger_metadata``).
Always: nothing is announced here.

Source: EmbeddedServer.java, BookieImpl.java; docs/metadata.md 7.1.
"""

from __future__ import annotations

from functools import partial

import attrs
import trio

from bookie.auth.reloading import Secrets
from bookie.auth.tls import peer_context
from bookie.cluster.access import ClusterAccess
from bookie.cluster.cluster_root import prepare_cluster_root
from bookie.cluster.registration import OpenStore, Registration
from bookie.cluster.startup_check import START_RETRY_S, StartupCheck, begin_startup_check
from bookie.config.classes import BookieConfig
from bookie.disk.disk import Disk
from bookie.http import OpenRoutes
from bookie.identity.address import Identity, Machine
from bookie.identity.cookie import Cookie
from bookie.identity.cookie_check import read_instance_id
from bookie.ledger_metadata.cluster_nodes import ClusterNodes
from bookie.ledger_metadata.log_permissions import LogPermissions
from bookie.limits import RECORD_BYTES_MAX
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
from ledger.metadata_store.store import MetadataStore
from ledger.transport.config import TransportConfig

_REPLY_OVERHEAD_BYTES = 1024  # of a frame, besides the entry in it


@attrs.frozen(kw_only=True)
class BookieSetup:
    """The arguments of ``run_bookie``. The same each time its storage is opened."""

    config: BookieConfig
    open_store: OpenStore
    stop: trio.Event
    disk: Disk
    machine: Machine | None
    secrets: Secrets = attrs.field(repr=False)
    open_routes: OpenRoutes | None


@attrs.frozen(kw_only=True)
class Membership:
    """One start of one bookie in its cluster. Made by ``join_cluster``."""

    identity: Identity
    cookie: Cookie
    startup_check: StartupCheck
    registration: Registration
    cluster: ClusterAccess
    policies: LogPermissions | None  # None: authenticated peers may do everything

    @property
    def nodes(self) -> ClusterNodes:
        return self.cluster.nodes


async def join_cluster(store: MetadataStore, identity: Identity, port: int, setup: BookieSetup) -> Membership:
    """Check that the disks belong to this bookie of this cluster. Open the storage after it.

    If cancelled, or stopped by a crash, the next start continues.

    Raises:
        BookieConfigError: The cluster has no such namespace.
        CookieError, DirectoryError, MetadataError: As ``begin_startup_check``.
    """
    config = setup.config
    root, directories = config.metadata.ledgers_root, config.directories
    layout = await retry_lost_connection(
        lambda: prepare_cluster_root(store, root, config.metadata.layout), timeout_s=START_RETRY_S
    )
    cookie = Cookie(
        identity.bookie_id,
        directories.journal,
        directories.ledger,
        directories.index,
        await retry_lost_connection(lambda: read_instance_id(store, root), timeout_s=START_RETRY_S),
    )
    registration = Registration(
        store,
        root,
        identity.bookie_id,
        _service_info(identity, port, config.network_location, has_tls=config.tls is not None),
        wait_s=config.metadata.session_timeout_ms / 1000,
    )
    nodes = ClusterNodes(lambda: registration.store, root, layout)
    startup_check = await begin_startup_check(
        nodes,
        setup.disk,
        cookie,
        config.storage,
        possible_ids=identity.possible_ids,
        config=config.startup_check,
    )
    policies = None
    if config.permissions is not None:
        policies = LogPermissions(nodes, config.permissions.namespaces)
        await retry_lost_connection(policies.check_namespaces, timeout_s=START_RETRY_S)
    return Membership(
        identity=identity,
        cookie=cookie,
        startup_check=startup_check,
        registration=registration,
        cluster=ClusterAccess(nodes, setup.open_store, partial(client_config, config)),
        policies=policies,
    )


def _service_info(identity: Identity, port: int, location: str | None, *, has_tls: bool) -> bytes:
    extensions = (TLS_EXTENSION,) if has_tls else ()
    endpoint = Endpoint(RPC_ID, port, identity.advertised_host, RPC_PROTOCOL, (), extensions)
    properties = {} if location is None else {LOCATION_PROPERTY: location}
    return encode_service_info(ServiceInfo((endpoint,), properties))


def client_config(config: BookieConfig) -> ClientConfig:
    """Of a client that reads from the other bookies."""
    transport = TransportConfig(
        tls=None if config.tls is None else peer_context(config.tls),
        auth=config.client_auth,
        # Not the configured frame limit: other bookies may hold entries from before it was lowered.
        frame_bytes_max=RECORD_BYTES_MAX + _REPLY_OVERHEAD_BYTES,
    )
    return ClientConfig(transport=transport)
