"""Finding, making and removing the binding of a namespace.

Source: DistributedLog, ZkMetadataResolver.java (resolve), DLMetadata.java (create, update, unbind).
"""

from __future__ import annotations

from namespace.binding import Binding, decode_binding, encode_binding
from namespace.errors import FormatError, NoBindingError, NodeExistsError, NoNodeError
from namespace.store import MetadataStore, check_new_path, parent_of


async def resolve_binding(store: MetadataStore, path: str) -> Binding:
    """The binding that serves a namespace path: its own, or that of the nearest ancestor with data.

    Raises:
        NoBindingError: No node from the path up to the root has data.
        FormatError: The nearest data is no binding; nothing above it is tried.
    """
    node_path = check_new_path(path)
    while True:
        try:
            data = (await store.get(node_path)).value
        except NoNodeError:
            data = b""
        if data:
            try:
                return decode_binding(data)
            except FormatError as exc:
                raise FormatError(f"{node_path}: {exc}") from exc
        if node_path == "/":
            raise NoBindingError(path)
        node_path = parent_of(node_path)


async def bind(store: MetadataStore, path: str, binding: Binding, *, overwrite: bool = False) -> None:
    """Bind a namespace path, creating the node and its ancestors where missing.

    If cancelled, the binding may or may not be there.

    Raises:
        NodeExistsError: The node has data already, and ``overwrite`` was not given.
    """
    data = encode_binding(binding)
    try:
        await store.create(path, data, parents=True)
    except NodeExistsError:
        node = await store.get(path)
        if node.value == data:
            return
        if node.value and not overwrite:
            raise NodeExistsError(
                path, "is bound already, or holds something else; nothing changed"
            ) from None
        await store.put(path, data, expected=node.stat.version)


async def unbind(store: MetadataStore, path: str) -> None:
    """Take a namespace's own binding away; its logs stay. No binding is fine."""
    try:
        node = await store.get(path)
        if node.value:
            decode_binding(node.value)  # what is no binding is not ours to erase
            await store.put(path, b"", expected=node.stat.version)
    except NoNodeError:
        pass
