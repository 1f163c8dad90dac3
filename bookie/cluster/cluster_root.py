"""The nodes that a bookie needs before it can register: created if missing, checked otherwise.

Inside: the ledgers root with the parents of registrations, and LAYOUT; for a new cluster also INSTANCEID. A
bookie starts without an instance id and never writes one.

Source: ZKMetadataDriverBase.java, AbstractZkLedgerManagerFactory.java; docs/metadata.md 1, 3, 4.
"""

from __future__ import annotations

from bookie.errors import BookieConfigError
from ledger.catalog.paths import AVAILABLE, INSTANCE_ID, LAYOUT, READONLY, Layout, decode_layout
from ledger.errors import MetadataFormatError
from ledger.metadata_store.errors import NodeExistsError, NoNodeError
from ledger.metadata_store.store import Create, MetadataStore, parent_of
from ledger.runtime.log_lines import get_logger

log = get_logger(__name__)


async def prepare_cluster_root(store: MetadataStore, root: str, layout: Layout | None) -> Layout:
    """Create the root and its children; return the layout of the cluster.

    Several bookies may do this at once. If cancelled, some of the nodes may exist; the next start continues.

    Args:
        layout: The configured layout; None for the layout of the cluster, or hierarchical for a new one.

    Raises:
        BookieConfigError: The cluster has another layout, or an unknown one.
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
        raise BookieConfigError(f"node {path}: {exc}. Is {root} the right ledgers root?") from exc
    if layout is not None and found is not layout:
        raise BookieConfigError(
            f"the cluster at {root} has the layout {found.uri_name or found.value}, but the configuration"
            f" demands {layout.uri_name or layout.value}. Use zk+null:// to accept the layout of the cluster"
        )
    return found


async def create_cluster(store: MetadataStore, root: str, layout: Layout, instance_id: str) -> None:
    """Create the root of a new cluster, with an instance id, which ties the disks of bookies to it.

    One transaction creates all nodes; if cancelled, either all or none of them exist.

    Args:
        instance_id: A fresh UUID as text.

    Raises:
        NodeExistsError: The root exists; nothing was changed.

    Source: ZKRegistrationManager.initNewCluster; docs/metadata.md 4.1. Java writes LAYOUT afterwards.
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
