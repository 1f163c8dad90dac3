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
from namespace.errors import LogExistsError, LogInUseError, LogNotFoundError, NamespaceNotBoundError
from namespace.log_identity import encode_log_id
from namespace.log_metadata import LogMetadata, initial_nodes, log_metadata_from
from namespace.log_name import RESERVED_PREFIXES, check_log_name
from namespace.log_nodes import UNPARTITIONED, LogNodes
from namespace.node_reads import READS_AT_ONCE, read_children, read_nodes


async def create_log(
    log: LogNodes,
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
    check_log_name(log.name)
    data_of = {log.lock_path: token}
    if log_id is not None:
        data_of[log.root_path] = encode_log_id(log_id)
    while True:
        nodes = await _read_log_nodes(log)
        if None not in nodes.values():
            found = nodes[log.lock_path]
            if not exist_ok and (not token or found is None or found.value.partition(b"\n")[0] != token):
                raise LogExistsError(log.name)
            log_metadata_from(log, nodes)  # for its errors
            return
        operations: list[Operation] = []
        for ancestor in ancestors_of(log.log_path):
            if len(ancestor) > len(log.namespace_path) and await log.store.exists(ancestor) is None:
                operations.append(Create(ancestor))
        operations += [
            Create(path, data_of.get(path, data)) for path, data in initial_nodes(log) if nodes[path] is None
        ]
        try:
            await log.store.commit(operations)
        except NodeExistsError:
            continue  # another client creates this log, or one below the same ancestor: look again
        except NoNodeError as exc:
            if await log.store.exists(log.namespace_path) is None:
                raise NamespaceNotBoundError(
                    f"there is no namespace at {log.namespace_path}: the node does not exist"
                ) from exc
            continue
        return


async def open_log(log: LogNodes, *, closed_too: bool = False) -> LogMetadata:
    """The values of a log's nodes with their versions, as a writer needs them.

    Args:
        closed_too: Also if the log is closed to all other changes.

    Raises:
        InvalidLogNameError, LogNotFoundError, LogMetadataError
        LogMovedError, LogMovingError: The log is closed to changes.
    """
    check_log_name(log.name)
    nodes = await _read_log_nodes(log)
    return log_metadata_from(log, nodes, closed_too=closed_too)


async def log_exists(log: LogNodes) -> bool:
    """True if there is such a log now.

    Raises:
        InvalidLogNameError: No log can have this name.
    """
    check_log_name(log.name)
    await log.store.sync(log.segments_path)
    return await log.store.exists(log.segments_path) is not None


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
        parents = [f"{namespace_path}/{name}" if name else namespace_path for name in batch]
        for name, children in zip(batch, await read_children(store, parents), strict=True):
            if name != top and UNPARTITIONED in children:
                names.append(name)
            reserved = "<" if name else RESERVED_PREFIXES  # no part of any name begins with "<"
            pending += [
                f"{name}/{child}" if name else child for child in children if not child.startswith(reserved)
            ]
    return sorted(names)


async def delete_log_nodes(log: LogNodes) -> None:
    """Delete a log's own nodes, in one transaction. Its segments must be gone; the caller holds its lock.

    Logs whose names extend this one's stay (``a/b`` if ``a`` is deleted), and so does the node above them.
    If cancelled, the log is either complete or gone.

    Raises:
        LogInUseError: Segments are left, another session's writer holds the lock, or another client has
            changed the nodes meanwhile.
        LogNotFoundError: There is no such log.
    """
    check_log_name(log.name)
    tree = await descendants(log.store, log.root_path)
    if tree is None:
        raise LogNotFoundError(log.name)
    if left := [path for path in tree if path.startswith(log.segments_path + "/")]:
        raise LogInUseError(log.name, f"{len(left)} segments are left, such as {left[0]}")
    await _check_lock_is_mine(log, tree)
    operations: list[Operation] = [Delete(path) for path in reversed(tree)]
    try:
        if set((await log.store.children(log.log_path)).names) - {UNPARTITIONED}:
            operations.append(Put(log.log_path, b""))
        else:
            operations.append(Delete(log.log_path))
        await log.store.commit(operations)
    except NotEmptyError as exc:
        raise LogInUseError(log.name, f"another client has just added a node to {exc.path}") from exc
    except NoNodeError as exc:
        raise LogInUseError(log.name, f"another client has just deleted {exc.path}") from exc


async def _check_lock_is_mine(log: LogNodes, tree: Sequence[str]) -> None:
    prefix = log.lock_path + "/"
    members = in_order(path.removeprefix(prefix) for path in tree if path.startswith(prefix))
    if members:
        holder = await log.store.exists(prefix + members[0])
        if holder is not None and holder.ephemeral_owner not in (0, log.store.session_id):
            raise LogInUseError(log.name, f"a writer holds its lock ({members[0]})")


async def _read_log_nodes(log: LogNodes) -> dict[str, Node | None]:
    return await read_nodes(log.store, [path for path, _ in initial_nodes(log)])


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
