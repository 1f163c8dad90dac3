"""The bookies' nodes in a local cluster's ZooKeeper, and the binding of the cluster's default namespace.

Not inside: starting and waiting (``local``).
Always: a node comes with the id of its session. The node of a killed bookie stays until its session ends, and
without the id it would look like the node of the restarted bookie.
"""

from __future__ import annotations

import attrs
import trio

from dlog.cluster.layout import DEFAULT_NAMESPACE, LEDGERS_ROOT
from dlog.errors import NamespaceNotBoundError
from ledger.catalog.paths import AVAILABLE, READONLY, READONLY_NAME
from ledger.metadata_store.errors import MetadataError, NoNodeError
from ledger.metadata_store.store import MetadataStore
from ledger.metadata_store.zookeeper import open_zookeeper_store
from ledger.metadata_store.zookeeper_security import NO_SECURITY
from namespace.binding import new_binding
from namespace.bindings import bind, resolve_binding


@attrs.frozen
class BookieNode:
    """The node that registers a bookie."""

    session_id: int  # of the session that created the node
    readonly: bool


async def registrations(store: MetadataStore) -> dict[str, BookieNode]:
    """The nodes of the registered bookies, by bookie id; a writable node hides a read-only one."""
    found: dict[str, BookieNode] = {}
    for directory, readonly in ((READONLY, True), (AVAILABLE, False)):
        parent = f"{LEDGERS_ROOT}/{directory}"
        try:
            names = (await store.children(parent)).names
        except NoNodeError:
            continue  # no bookie has registered yet
        for name in names:
            if name != READONLY_NAME and (stat := await store.exists(f"{parent}/{name}")) is not None:
                found[name] = BookieNode(stat.ephemeral_owner, readonly)
    return found


async def query_registrations(hosts: str, *, timeout_s: float) -> dict[str, BookieNode] | None:
    """``registrations`` with a session of its own; None if ZooKeeper does not reply in time."""
    with trio.move_on_after(timeout_s):
        try:
            async with open_zookeeper_store(
                hosts, connect_timeout_s=timeout_s, security=NO_SECURITY
            ) as store:
                return await registrations(store)
        except MetadataError:
            pass
    return None


async def bind_namespace(store: MetadataStore, hosts: str) -> None:
    """Bind the default namespace to the cluster's ledgers if it is unbound, so that the URI can be used."""
    path = f"/{DEFAULT_NAMESPACE}"
    try:
        await resolve_binding(store, path)
    except NamespaceNotBoundError:
        await bind(store, path, new_binding(hosts, LEDGERS_ROOT))
