"""Giving a log another name: all of its nodes move in one transaction.

Inside: reading the nodes, the refusals that they give, the transaction. Not inside: the lock, rights, the
recovery of segments in progress (``operations.renaming``), the name that records stay bound to (``origin``).
Always: the log is below one of the two names, with all of its nodes, or the transaction failed; it fails if a
node is no longer as it was read; a node that this module does not know stops the rename.

Source: DistributedLog, ZKLogStreamMetadataStore.java (renameLog), which moves the nodes in one transaction,
too, without the lock, and refuses a log with nodes that it does not know.
"""

from __future__ import annotations

import attrs

from ledger.metadata_store.errors import (
    BadVersionError,
    NodeExistsError,
    NodeTooLargeError,
    NoNodeError,
    NotEmptyError,
)
from ledger.metadata_store.lock import in_order
from ledger.metadata_store.store import (
    Check,
    Create,
    Delete,
    MetadataStore,
    Node,
    Operation,
    Put,
    ancestors_of,
)
from namespace import log_nodes
from namespace.errors import LogExistsError, LogRenameError, LogUnavailableError
from namespace.log_metadata import (
    MOVE_LOCK_NODE,
    MOVED_FROM_NODE,
    MOVED_TO_NODE,
    initial_nodes,
    log_metadata_from,
)
from namespace.log_nodes import LogNodes
from namespace.logs import descendants
from namespace.node_reads import read_nodes
from namespace.origin import (
    RenamedName,
    decode_renamed,
    encode_origin,
    encode_renamed,
    log_not_found,
    origin_from,
)
from namespace.segments.segment import decode_segment, is_segment_name

ATTEMPTS_MAX = 100  # each is lost to another client's change in the same moment
_MOVED = {"dlog-retention", "dlog-properties", "dlog-heal", log_nodes.ORIGIN}
_OF_MOVES = {MOVED_TO_NODE, MOVED_FROM_NODE, MOVE_LOCK_NODE}


@attrs.frozen
class Rename:
    """One rename of a log.

    Args:
        token: Random. A repeated call with it recognises the log that an earlier one renamed, although its
            reply was lost.
    """

    old: LogNodes
    new: LogNodes
    token: bytes = attrs.field(repr=False)

    @property
    def store(self) -> MetadataStore:
        """The store of both names."""
        return self.old.store


async def rename_nodes(rename: Rename) -> None:
    """Move all nodes of a log to its new name. The caller holds the log's lock in the session of their store.

    If cancelled, or if the connection is lost, the log has one of the two names.

    Raises:
        LogNotFoundError: There is no log of the old name.
        LogExistsError: There is a log of the new name.
        LogRenameError: A node forbids it; or the log has too many nodes for one transaction.
        LogMovedError, LogMovingError: The log is closed.
        LogMetadataError: A node does not parse.
        LogUnavailableError: Other clients changed the log at every attempt.
    """
    for _ in range(ATTEMPTS_MAX):
        await rename.store.sync(rename.new.root_path)
        if await was_renamed(rename):
            return
        operations = await _operations(rename)
        if operations is None:
            continue
        try:
            await rename.store.commit(operations)
        except (BadVersionError, NoNodeError, NodeExistsError, NotEmptyError):
            continue  # another client changed a node meanwhile
        except NodeTooLargeError as exc:
            raise LogRenameError(
                rename.old.name,
                rename.new.name,
                f"its nodes need {len(operations)} operations, more than the metadata store takes at once."
                " Truncate and purge the log, so that it has fewer segments, and try again",
            ) from exc
        return
    raise LogUnavailableError(
        f"log {rename.old.name!r}: not renamed, because other clients changed it, or {rename.new.name!r},"
        f" {ATTEMPTS_MAX} times in that moment; try again"
    )


async def was_renamed(rename: Rename) -> bool:
    """True if an earlier attempt of this rename was applied.

    Raises:
        LogExistsError: There is another log of the new name, or a part of one.
    """
    root = rename.new.root_path
    lock = rename.new.lock_path
    nodes = await read_nodes(rename.store, [root, lock])
    if nodes[root] is None:
        return False
    found = nodes[lock]
    if found is None or found.value.partition(b"\n")[0] != rename.token:
        raise LogExistsError(rename.new.name, do="choose another new name")
    return True


async def _operations(rename: Rename) -> list[Operation] | None:
    """The transaction; None if another client changed a node while the nodes were read."""
    old, new = rename.old, rename.new
    root, new_root = old.root_path, new.root_path
    tree = await descendants(old.store, root)
    if tree is None:
        raise await log_not_found(old)
    nodes = await read_nodes(old.store, [old.log_path, *tree, old.renamed_path])
    # Raises if a move has closed the log, or a node is missing or damaged.
    log_metadata_from(old, {path: nodes[path] for path, _ in initial_nodes(old)})

    members = in_order(path.rpartition("/")[2] for path in tree if path.startswith(f"{root}/lock/"))
    holder = nodes[f"{root}/lock/{members[0]}"] if members else None
    if holder is None or holder.stat.ephemeral_owner != old.store.session_id:
        raise LogRenameError(old.name, new.name, "its lock was lost meanwhile; try again")
    operations: list[Operation] = []
    deletions: list[Operation] = []
    for path in tree:
        node = nodes[path]
        if node is None:
            return None
        below = path.removeprefix(root).removeprefix("/")
        deletions.append(Delete(path, node.stat.version))
        if below == f"{log_nodes.LOCK}/{members[0]}":
            continue  # ours: its deletion fails if the lock is lost
        _check_node(rename, path, below, node)
        value = rename.token if below == log_nodes.LOCK else node.value
        if below != log_nodes.ORIGIN:
            operations.append(Create(new_root + path.removeprefix(root), value))
    origin = origin_from(
        old.name, old.origin_path, nodes.get(old.origin_path), old.renamed_path, nodes[old.renamed_path]
    )
    operations.append(Create(new.origin_path, encode_origin(origin)))
    return [
        *await _above(rename, nodes[old.log_path]),
        *operations,
        *reversed(deletions),
        *await _old_log_node(rename, nodes[old.log_path]),
        *await _name_node(rename, nodes[old.renamed_path]),
    ]


def _check_node(rename: Rename, path: str, below: str, node: Node) -> None:
    """Raise if a node below the log's root forbids the rename."""

    def refusal(evidence: str) -> LogRenameError:
        return LogRenameError(rename.old.name, rename.new.name, evidence)

    parts = below.split("/")
    if node.stat.ephemeral_owner:
        which = "waits for its lock" if parts[0] == log_nodes.LOCK else "reads it under a lock"
        raise refusal(
            f"another client {which} ({path}); close that client, or wait for the end of its session"
        )
    if parts[0] in _OF_MOVES:
        raise refusal(
            f"it is being moved, or was moved ({path}), and the other namespace knows it by its name"
        )
    match parts:
        case [""] | ["maxtxid"] | ["version"] | [log_nodes.LOCK] | [log_nodes.READ_LOCK] | ["allocation"]:
            return
        case ["ledgers"] | [log_nodes.SUBSCRIBERS] | [log_nodes.SUBSCRIBERS, _]:
            return
        case [log_nodes.SUBSCRIBERS, _, log_nodes.READ_LOCK]:
            return
        case [name] if name in _MOVED:
            return
        case ["ledgers", name] if is_segment_name(name):
            if not decode_segment(node.value, name).in_progress:
                return
            raise refusal(f"its segment {name} is in progress again; try again")
    raise refusal(f"this release does not know the node {path}, so it does not know whether it may move")


async def _above(rename: Rename, log_node: Node | None) -> list[Operation]:
    """Create the missing nodes above the new root, and take the application's data along."""
    new_path = rename.new.log_path
    value = b"" if log_node is None else log_node.value
    operations: list[Operation] = []
    for ancestor in ancestors_of(new_path):
        if len(ancestor) > len(rename.old.namespace_path) and await rename.store.exists(ancestor) is None:
            operations.append(Create(ancestor))
    (there,) = (await read_nodes(rename.store, [new_path])).values()
    if there is None:
        return [*operations, Create(new_path, value)]
    if there.value and value and there.value != value:
        raise LogRenameError(
            rename.old.name,
            rename.new.name,
            f"both {new_path} and the log's own node hold data of an application; empty one of them first",
        )
    if not value:
        return [*operations, Check(new_path, there.stat.version)]
    return [*operations, Put(new_path, value, there.stat.version)]


async def _old_log_node(rename: Rename, log_node: Node | None) -> list[Operation]:
    """Delete the log's own node, or empty it if logs with longer names lie below it."""
    path = rename.old.log_path
    assert log_node is not None  # ``log_metadata_from`` refuses a log without it
    others = set((await rename.store.children(path)).names) - {log_nodes.UNPARTITIONED}
    if others or rename.new.name.startswith(f"{rename.old.name}/"):
        return [Put(path, b"", log_node.stat.version)]
    return [Delete(path, log_node.stat.version)]


async def _name_node(rename: Rename, name_node: Node | None) -> list[Operation]:
    """Count the renames away from the old name, so that a later log of this name has another origin."""
    path = rename.old.renamed_path
    if name_node is not None:
        times = decode_renamed(name_node.value, path).times + 1
        return [Put(path, encode_renamed(RenamedName(times, rename.new.name)), name_node.stat.version)]
    created: list[Operation] = [Create(path, encode_renamed(RenamedName(1, rename.new.name)))]
    parent = log_nodes.renamed_parent_path(rename.old.namespace_path)
    return created if await rename.store.exists(parent) is not None else [Create(parent), *created]
