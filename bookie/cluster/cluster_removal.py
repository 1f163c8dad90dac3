"""Erasing the metadata of a whole cluster: for a new beginning on the same root, or for good.

Inside: Apache's ``metaformat`` and ``nukeexistingcluster``. Not inside: the disks of the bookies, the
question to the operator (``dlog bookies``).
Always: nothing is deleted while a bookie is registered, or while the root has a child that belongs to no
cluster; the instance id, which disks are compared with, is deleted before anything else, so that a bookie
never starts with old disks on a half erased cluster; an interrupted call is completed by the next one.

Source: ZKRegistrationManager.java (format, nukeExistingCluster); docs/metadata.md 4.
"""

from __future__ import annotations

from bookie.errors import BookieConfigError, ClusterInUseError
from bookie.identity.cookie_check import read_instance_id
from ledger.catalog.paths import (
    AVAILABLE,
    COOKIES,
    DISABLE_HEALTH_CHECK,
    IDGEN,
    IDGEN_LONG,
    INSTANCE_ID,
    LAYOUT,
    READONLY,
    READONLY_NAME,
    RESTORED,
    UNDERREPLICATION,
    Layout,
    is_ledger_parent,
)
from ledger.metadata_store.errors import NodeExistsError, NoNodeError
from ledger.metadata_store.store import Create, MetadataStore

_OF_CLUSTER = frozenset(
    {
        AVAILABLE,
        COOKIES,
        INSTANCE_ID,
        LAYOUT,
        UNDERREPLICATION,
        IDGEN,
        IDGEN_LONG,
        DISABLE_HEALTH_CHECK,
        RESTORED,
    }
)
_BOOKIES_SHOWN = 8


async def format_cluster(store: MetadataStore, root: str, layout: Layout, instance_id: str) -> None:
    """Delete all ledgers, cookies and marks of a cluster, and begin it again with a new instance id.

    The bookies keep their disks, and refuse to start until these are formatted. If cancelled, the cluster has
    no instance id or no layout, and the call must be repeated.

    Args:
        instance_id: A fresh UUID as text.

    Raises:
        ClusterInUseError: A bookie is registered; nothing was changed.
        BookieConfigError: The root does not exist, or has a child of another program; nothing was changed.
        ledger.metadata_store.errors.MetadataError: The metadata store failed.
    """
    children = await _check_idle(store, root)
    await _erase(store, root, children - {AVAILABLE})
    try:
        await store.create(f"{root}/{READONLY}", parents=True)
    except NodeExistsError:
        pass
    await store.commit(
        [Create(f"{root}/{INSTANCE_ID}", instance_id.encode()), Create(f"{root}/{LAYOUT}", layout.text)]
    )


async def nuke_cluster(store: MetadataStore, root: str, instance_id: str | None) -> None:
    """Delete the root of a cluster with everything below it.

    If cancelled, a part is deleted; repeat the call with ``instance_id=None``.

    Args:
        instance_id: The id that the cluster must have; None only if it has none.

    Raises:
        ClusterInUseError, BookieConfigError: As ``format_cluster``, or the instance id is another one.
        ledger.metadata_store.errors.MetadataError: The metadata store failed.
    """
    children = await _check_idle(store, root)
    found = await read_instance_id(store, root)
    if found != instance_id:
        raise BookieConfigError(
            f"the cluster at {root} has the instance id {found or 'none'}, not {instance_id or 'none'};"
            " `dlog bookies instance-id` prints it. Nothing was deleted"
        )
    await _erase(store, root, children)
    await store.delete(root)


async def _check_idle(store: MetadataStore, root: str) -> frozenset[str]:
    """The children of the root, if the cluster may be erased."""
    await store.sync(root)
    try:
        children = frozenset((await store.children(root)).names)
    except NoNodeError:
        raise BookieConfigError(f"there is no cluster at {root}") from None
    foreign = sorted(
        name
        for name in children - _OF_CLUSTER
        if not any(is_ledger_parent(layout, name) for layout in Layout)
    )
    if foreign:
        raise BookieConfigError(
            f"{root}/{foreign[0]} belongs to no cluster of bookies. Nothing was deleted; move it away first"
        )
    registered = [name for name in await _names(store, f"{root}/{AVAILABLE}") if name != READONLY_NAME]
    registered += await _names(store, f"{root}/{READONLY}")
    if registered:
        raise ClusterInUseError(root, registered[:_BOOKIES_SHOWN], len(registered))
    return children


async def _erase(store: MetadataStore, root: str, children: frozenset[str]) -> None:
    first = [name for name in (INSTANCE_ID, COOKIES) if name in children]
    for name in (*first, *sorted(children - {*first, LAYOUT}), *(children & {LAYOUT})):
        await _delete_tree(store, f"{root}/{name}")


async def _delete_tree(store: MetadataStore, path: str) -> None:
    pending = [(path, False)]
    while pending:
        node, is_empty = pending.pop()
        if is_empty:
            try:
                await store.delete(node)
            except NoNodeError:
                pass
            continue
        pending.append((node, True))
        pending += [(f"{node}/{name}", False) for name in await _names(store, node)]


async def _names(store: MetadataStore, path: str) -> tuple[str, ...]:
    try:
        return (await store.children(path)).names
    except NoNodeError:
        return ()
