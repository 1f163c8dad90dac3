"""Finding, storing and removing the binding of a namespace.

Source: DistributedLog, ZkMetadataResolver.java (resolve), DLMetadata.java (create, update).
"""

from __future__ import annotations

import attrs

from ledger.metadata_store.errors import NodeExistsError, NoNodeError
from ledger.metadata_store.store import MetadataStore, check_new_path, parent_of
from namespace.binding import Binding, decode_binding, encode_binding
from namespace.errors import LogMetadataError, NamespaceNotBoundError

ACCESS_CONTROL_NODE = ".acls"  # below the namespace
SUB_NAMESPACES_NODE = ".subnamespaces"  # below a federated one; the parts with its logs


async def resolve_binding(store: MetadataStore, path: str) -> Binding:
    """The binding of a namespace path: its own, or that of the nearest ancestor with data.

    Raises:
        NamespaceNotBoundError: No node from the path up to the root has data.
        LogMetadataError: The nearest data is no binding. Nodes above it are not tried.
    """
    node_path = check_new_path(path)
    while True:
        try:
            data = (await store.get(node_path)).value
        except NoNodeError:
            data = b""
        if data:
            return _decoded(node_path, data)
        if node_path == "/":
            raise NamespaceNotBoundError(
                f"neither {path} nor a node above it holds a binding; bind the namespace to a cluster of"
                " bookies, or open it with NamespaceConfig(create=True), which does so"
            )
        node_path = parent_of(node_path)


async def bind(store: MetadataStore, path: str, binding: Binding, *, overwrite: bool = False) -> None:
    """Bind a namespace path. The node and its ancestors are created if missing.

    A federated namespace gets the node of its parts first: a binding without it would refuse every new log.
    If cancelled, the binding may or may not be stored; repeat the call.

    Raises:
        NodeExistsError: The node has other data already, and ``overwrite`` was not given.
    """
    data = encode_binding(binding)
    if binding.federated:
        await _add_sub_namespaces(store, path, data, overwrite=overwrite)
    try:
        await store.create(path, data, parents=True)
    except NodeExistsError:
        node = await store.get(path)
        if node.value == data:
            return
        if node.value and not overwrite:
            raise NodeExistsError(
                path, "the node holds another binding or other data; nothing was changed"
            ) from None
        await store.put(path, data, expected=node.stat.version)


async def _add_sub_namespaces(store: MetadataStore, path: str, data: bytes, *, overwrite: bool) -> None:
    try:
        value = (await store.get(path)).value
    except NoNodeError:
        value = b""
    if value and value != data and not overwrite:
        raise NodeExistsError(path, "the node holds another binding or other data; nothing was changed")
    try:
        await store.create(f"{path}/{SUB_NAMESPACES_NODE}", parents=True)
    except NodeExistsError:
        pass


def access_control_path(path: str, binding: Binding) -> str | None:
    """The node with the default access control entry of a namespace; None if the binding names none."""
    return f"{path}/{binding.acl_root_path}" if binding.acl_root_path else None


async def place_access_control(store: MetadataStore, path: str) -> str:
    """Add a place for access control entries to the binding of a namespace; return the path of its node.

    A place that is there stays. If cancelled, it may or may not be stored. The other namespaces of the same
    binding get one, too.

    Raises:
        NamespaceNotBoundError, LogMetadataError: As ``resolve_binding``.
        ledger.metadata_store.errors.BadVersionError: Another client has just changed the binding.
    """
    binding = await resolve_binding(store, path)
    if binding.acl_root_path is None:
        here = path
        while True:
            node = await store.get(here) if await store.exists(here) is not None else None
            if node is not None and node.value:
                break
            here = parent_of(here)
        binding = attrs.evolve(_decoded(here, node.value), acl_root_path=ACCESS_CONTROL_NODE)
        await store.put(here, encode_binding(binding), expected=node.stat.version)
    found = access_control_path(path, binding)
    assert found is not None  # the binding above has an ACL path
    return found


def _decoded(path: str, data: bytes) -> Binding:
    try:
        return decode_binding(data)
    except LogMetadataError as exc:
        raise LogMetadataError(f"{path}: {exc}; nothing was changed") from None
