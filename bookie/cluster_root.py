"""The nodes a bookie needs before it can register: made if they are missing, checked if they are not.

Inside: the ledgers root with its parents of registrations, LAYOUT; INSTANCEID, for who creates a cluster
expressly. A bookie starts without one and never writes it.

Source: ZKMetadataDriverBase.java, AbstractZkLedgerManagerFactory.java; reference on metadata 1, 3 and 4.
"""

from __future__ import annotations

import logging

from bookie.errors import ConfigError
from ledger.errors import MetadataFormatError
from ledger.paths import AVAILABLE, INSTANCE_ID, LAYOUT, READONLY, Layout, decode_layout
from namespace.errors import NodeExistsError, NoNodeError
from namespace.store import Create, MetadataStore, parent_of

log = logging.getLogger(__name__)


async def prepare_cluster_root(store: MetadataStore, root: str, layout: Layout | None) -> Layout:
    """Make the root and what belongs below it; return the cluster's layout.

    Several bookies may do this at once. If cancelled, some of the nodes may exist; the next start goes on.

    Args:
        layout: What the configuration demands; None takes what is there, or the hierarchical one.

    Raises:
        ConfigError: The cluster has another layout, or one that is not known here.
    """
    if await store.exists(root) is None:
        log.info("the ledgers root %s does not exist: creating it, without an instance id", root)
    try:
        await store.create(f"{root}/{READONLY}", parents=True)
    except NodeExistsError:
        pass
    path = f"{root}/{LAYOUT}"
    try:
        data = (await store.get(path)).value
    except NoNodeError:
        wanted = layout or Layout.HIERARCHICAL
        try:
            await store.create(path, wanted.text)
        except NodeExistsError:
            data = (await store.get(path)).value
        else:
            return wanted
    try:
        found = decode_layout(data)
    except MetadataFormatError as exc:
        raise ConfigError(f"node {path}: {exc}. Is {root} the right ledgers root?") from exc
    if layout is not None and found is not layout:
        raise ConfigError(
            f"the cluster at {root} has the layout {found.uri_name or found.value}, but the configuration"
            f" demands {layout.uri_name or layout.value}. Use zk+null:// to take whatever the cluster has"
        )
    return found


async def create_cluster(store: MetadataStore, root: str, layout: Layout, instance_id: str) -> None:
    """Make the root of a new cluster, with an instance id, which ties bookies' disks to it.

    One transaction makes all of it; if cancelled, all or nothing is there.

    Args:
        instance_id: A fresh UUID as text.

    Raises:
        NodeExistsError: The root exists; nothing was changed.

    Source: ZKRegistrationManager.initNewCluster; reference on metadata 4.1. Java writes LAYOUT afterwards.
    """
    parent = parent_of(root)
    if parent != "/":
        try:
            await store.create(parent, parents=True)
        except NodeExistsError:
            pass
    await store.commit(
        [
            Create(root),
            Create(f"{root}/{AVAILABLE}"),
            Create(f"{root}/{READONLY}"),
            Create(f"{root}/{INSTANCE_ID}", instance_id.encode()),
            Create(f"{root}/{LAYOUT}", layout.text),
        ]
    )
