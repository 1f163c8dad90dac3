"""What a cluster's ZooKeeper knows of its bookies, and the binding of the namespace that its URI names.

Not inside: starting, waiting (``local``).
Always: a registration is told together with its session, since the node of a bookie that was killed stays
until that session ends, and would else be taken for its successor's.
"""

from __future__ import annotations

import attrs
import trio

from dlog.cluster.layout import DEFAULT_NAMESPACE, LEDGERS_ROOT
from ledger.paths import AVAILABLE, READONLY, READONLY_NAME
from namespace.binding import new_binding
from namespace.bindings import bind, resolve_binding
from namespace.errors import NamespaceError, NoBindingError, NoNodeError
from namespace.store import MetadataStore
from namespace.zookeeper import open_zookeeper_store


@attrs.frozen
class Registration:
    """A bookie's node."""

    session_id: int  # that made it
    readonly: bool


async def registrations(store: MetadataStore) -> dict[str, Registration]:
    """The bookies that have a node, by id; a writable one wins."""
    found: dict[str, Registration] = {}
    for directory, readonly in ((READONLY, True), (AVAILABLE, False)):
        parent = f"{LEDGERS_ROOT}/{directory}"
        try:
            names = (await store.children(parent)).names
        except NoNodeError:
            continue  # no bookie was ever there
        for name in names:
            if name != READONLY_NAME and (stat := await store.exists(f"{parent}/{name}")) is not None:
                found[name] = Registration(stat.ephemeral_owner, readonly)
    return found


async def ask_registrations(hosts: str, *, timeout_s: float) -> dict[str, Registration] | None:
    """The same by a session of its own; None if ZooKeeper does not answer in time."""
    with trio.move_on_after(timeout_s):
        try:
            async with open_zookeeper_store(hosts, connect_timeout_s=timeout_s) as store:
                return await registrations(store)
        except NamespaceError:
            pass
    return None


async def bind_namespace(store: MetadataStore, hosts: str) -> None:
    """Say where the ledgers of the namespace are, so that the cluster's URI can be used as it is."""
    path = f"/{DEFAULT_NAMESPACE}"
    try:
        await resolve_binding(store, path)
    except NoBindingError:
        await bind(store, path, new_binding(hosts, LEDGERS_ROOT))
