"""A namespace's logs by name: create, open, list, delete.

Inside: the nodes of a log itself. Not inside: the nodes of its segments (``segment_nodes``), ledgers, locks.
Always: creating and deleting a log is one transaction.

Source: DistributedLog, ZKLogStreamMetadataStore.java, BKDistributedLogManager.java.
"""

from __future__ import annotations

from collections.abc import Sequence

from ledger.metadata_store.errors import NodeExistsError, NoNodeError, NotEmptyError
from ledger.metadata_store.lock import in_order
from ledger.metadata_store.store import Create, Delete, MetadataStore, Node, Operation, Put, ancestors_of
from namespace import paths
from namespace.errors import LogExistsError, LogInUseError, LogNotFoundError, NamespaceNotBoundError
from namespace.log_identity import encode_log_id
from namespace.log_metadata import LogMetadata, initial_nodes, log_metadata_from
from namespace.log_name import RESERVED_PREFIXES, check_log_name
from namespace.node_reads import READS_AT_ONCE, read_children, read_nodes


async def create_log(
    store: MetadataStore,
    namespace_path: str,
    log_name: str,
    *,
    exist_ok: bool = False,
    token: bytes = b"",
    log_id: str | None = None,
) -> None:
    """Create a log and the missing ancestors of a name like ``a/b/c``. A partly created log is completed.

    If cancelled, the log may or may not exist.

    Args:
        token: Written into the lock's node, whose data no program reads. A repeated call with this token
            recognises the log that an earlier one created, although its reply was lost.
        log_id: The log's identity. None: its first writer gives it one.

    Raises:
        InvalidLogNameError, LogExistsError
        NamespaceNotBoundError: There is no namespace at that path.
        LogMetadataError: A node of the log is damaged.
    """
    log_name = check_log_name(log_name)
    lock = paths.lock_path(namespace_path, log_name)
    data_of = {lock: token}
    if log_id is not None:
        data_of[paths.log_root_path(namespace_path, log_name)] = encode_log_id(log_id)
    while True:
        nodes = await _read_log_nodes(store, namespace_path, log_name)
        if None not in nodes.values():
            found = nodes[lock]
            if not exist_ok and (not token or found is None or found.value.partition(b"\n")[0] != token):
                raise LogExistsError(log_name)
            log_metadata_from(namespace_path, log_name, nodes)  # for its errors
            return
        operations: list[Operation] = []
        for ancestor in ancestors_of(paths.log_path(namespace_path, log_name)):
            if len(ancestor) > len(namespace_path) and await store.exists(ancestor) is None:
                operations.append(Create(ancestor))
        operations += [
            Create(path, data_of.get(path, data))
            for path, data in initial_nodes(namespace_path, log_name)
            if nodes[path] is None
        ]
        try:
            await store.commit(operations)
        except NodeExistsError:
            continue  # another client creates this log, or one below the same ancestor: look again
        except NoNodeError as exc:
            if await store.exists(namespace_path) is None:
                raise NamespaceNotBoundError(
                    f"there is no namespace at {namespace_path}: the node does not exist"
                ) from exc
            continue
        return


async def open_log(
    store: MetadataStore, namespace_path: str, log_name: str, *, for_promotion: bool = False
) -> LogMetadata:
    """The values of a log's nodes with their versions, as a writer needs them.

    Args:
        for_promotion: Also if a promotion has closed the log to all other changes.

    Raises:
        InvalidLogNameError, LogNotFoundError, LogMetadataError
        LogPromotedError, PromotionError: A promotion has closed the log to changes.
    """
    log_name = check_log_name(log_name)
    nodes = await _read_log_nodes(store, namespace_path, log_name)
    return log_metadata_from(namespace_path, log_name, nodes, for_promotion=for_promotion)


async def log_exists(store: MetadataStore, namespace_path: str, log_name: str) -> bool:
    """True if there is such a log now.

    Raises:
        InvalidLogNameError: No log can have this name.
    """
    path = paths.segments_path(namespace_path, check_log_name(log_name))
    await store.sync(path)
    return await store.exists(path) is not None


async def list_logs(store: MetadataStore, namespace_path: str, prefix: str = "") -> list[str]:
    """The names of all logs, sorted; with a prefix, of those below it (``a`` gives ``a/b``, not ``ab``).

    Java's listing gives only the first part of each name. This one reads every level of the tree, with one
    read for each node. Below the first level it lists parts that begin with ".", too: Java's writers create
    them, although Java's listing leaves them out.
    """
    await store.sync(namespace_path)
    names: list[str] = []
    top = check_log_name(prefix.removesuffix("/")) if prefix else ""
    pending = [top]
    while pending:
        batch, pending = pending[:READS_AT_ONCE], pending[READS_AT_ONCE:]
        parents = [paths.log_path(namespace_path, name) if name else namespace_path for name in batch]
        for name, children in zip(batch, await read_children(store, parents), strict=True):
            if name != top and paths.UNPARTITIONED in children:
                names.append(name)
            reserved = "<" if name else RESERVED_PREFIXES  # no part of any name begins with "<"
            pending += [
                f"{name}/{child}" if name else child for child in children if not child.startswith(reserved)
            ]
    return sorted(names)


async def delete_log_nodes(store: MetadataStore, namespace_path: str, log_name: str) -> None:
    """Delete a log's own nodes, in one transaction. Its segments must be gone; the caller holds its lock.

    Logs whose names extend this one's stay (``a/b`` if ``a`` is deleted), and so does the node above them.
    If cancelled, the log is either complete or gone.

    Raises:
        LogInUseError: Segments are left, another session's writer holds the lock, or another client has
            changed the nodes meanwhile.
        LogNotFoundError: There is no such log.
    """
    log_name = check_log_name(log_name)
    log_path = paths.log_path(namespace_path, log_name)
    root = paths.log_root_path(namespace_path, log_name)
    tree = await descendants(store, root)
    if tree is None:
        raise LogNotFoundError(log_name)
    segments_path = paths.segments_path(namespace_path, log_name)
    if left := [path for path in tree if path.startswith(segments_path + "/")]:
        raise LogInUseError(log_name, f"{len(left)} segments are left, such as {left[0]}")
    await _check_lock_is_mine(store, namespace_path, log_name, tree)
    operations: list[Operation] = [Delete(path) for path in reversed(tree)]
    try:
        if set((await store.children(log_path)).names) - {paths.UNPARTITIONED}:
            operations.append(Put(log_path, b""))
        else:
            operations.append(Delete(log_path))
        await store.commit(operations)
    except NotEmptyError as exc:
        raise LogInUseError(log_name, f"another client has just added a node to {exc.path}") from exc
    except NoNodeError as exc:
        raise LogInUseError(log_name, f"another client has just deleted {exc.path}") from exc


async def _check_lock_is_mine(
    store: MetadataStore, namespace_path: str, log_name: str, tree: Sequence[str]
) -> None:
    prefix = paths.lock_path(namespace_path, log_name) + "/"
    members = in_order(path.removeprefix(prefix) for path in tree if path.startswith(prefix))
    if members:
        holder = await store.exists(prefix + members[0])
        if holder is not None and holder.ephemeral_owner not in (0, store.session_id):
            raise LogInUseError(log_name, f"a writer holds its lock ({members[0]})")


async def _read_log_nodes(store: MetadataStore, namespace_path: str, log_name: str) -> dict[str, Node | None]:
    return await read_nodes(store, [path for path, _ in initial_nodes(namespace_path, log_name)])


async def descendants(store: MetadataStore, path: str) -> list[str] | None:
    """A node and all nodes below it, parents first; None if it does not exist."""
    if await store.exists(path) is None:
        return None
    tree, level = [path], [path]
    while level:
        names = await read_children(store, level)
        level = [
            f"{parent}/{name}" for parent, children in zip(level, names, strict=True) for name in children
        ]
        tree += level
    return tree
