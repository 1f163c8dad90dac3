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
from namespace import paths
from namespace.errors import LogExistsError, LogRenameError, LogUnavailableError
from namespace.log_metadata import initial_nodes, log_metadata_from
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
_MOVED = {"dlog-retention", "dlog-properties", "dlog-heal", paths.ORIGIN}
_OF_PROMOTIONS = {"dlog-promoted-to", "dlog-promoted-from", "dlog-promotion-lock"}


@attrs.frozen
class Rename:
    """One rename of a log.

    Args:
        token: Random. A repeated call with it recognises the log that an earlier one renamed, although its
            reply was lost.
    """

    namespace_path: str
    old: str
    new: str
    token: bytes = attrs.field(repr=False)


async def rename_nodes(store: MetadataStore, rename: Rename) -> None:
    """Move all nodes of a log to its new name. The caller holds the log's lock in the store's session.

    If cancelled, or if the connection is lost, the log has one of the two names.

    Raises:
        LogNotFoundError: There is no log of the old name.
        LogExistsError: There is a log of the new name.
        LogRenameError: A node forbids it; or the log has too many nodes for one transaction.
        LogPromotedError, PromotionError: A promotion has closed the log.
        LogMetadataError: A node does not parse.
        LogUnavailableError: Other clients changed the log at every attempt.
    """
    for _ in range(ATTEMPTS_MAX):
        await store.sync(paths.log_root_path(rename.namespace_path, rename.new))
        if await was_renamed(store, rename):
            return
        operations = await _operations(store, rename)
        if operations is None:
            continue
        try:
            await store.commit(operations)
        except (BadVersionError, NoNodeError, NodeExistsError, NotEmptyError):
            continue  # another client changed a node meanwhile
        except NodeTooLargeError as exc:
            raise LogRenameError(
                rename.old,
                rename.new,
                f"its nodes need {len(operations)} operations, more than the metadata store takes at once."
                " Truncate and purge the log, so that it has fewer segments, and try again",
            ) from exc
        return
    raise LogUnavailableError(
        f"log {rename.old!r}: not renamed, because other clients changed it, or {rename.new!r},"
        f" {ATTEMPTS_MAX} times in that moment; try again"
    )


async def was_renamed(store: MetadataStore, rename: Rename) -> bool:
    """True if an earlier attempt of this rename was applied.

    Raises:
        LogExistsError: There is another log of the new name, or a part of one.
    """
    root = paths.log_root_path(rename.namespace_path, rename.new)
    lock = paths.lock_path(rename.namespace_path, rename.new)
    nodes = await read_nodes(store, [root, lock])
    if nodes[root] is None:
        return False
    found = nodes[lock]
    if found is None or found.value.partition(b"\n")[0] != rename.token:
        raise LogExistsError(rename.new, do="choose another new name")
    return True


async def _operations(store: MetadataStore, rename: Rename) -> list[Operation] | None:
    """The transaction; None if another client changed a node while the nodes were read."""
    place, old, new = rename.namespace_path, rename.old, rename.new
    root, new_root = paths.log_root_path(place, old), paths.log_root_path(place, new)
    tree = await descendants(store, root)
    if tree is None:
        raise await log_not_found(store, place, old)
    log_path, name_path = paths.log_path(place, old), paths.renamed_path(place, old)
    nodes = await read_nodes(store, [log_path, *tree, name_path])
    # Raises if a promotion has closed the log, or a node is missing or damaged.
    log_metadata_from(place, old, {path: nodes[path] for path, _ in initial_nodes(place, old)})

    members = in_order(path.rpartition("/")[2] for path in tree if path.startswith(f"{root}/lock/"))
    if not members or (holder := nodes[f"{root}/lock/{members[0]}"]) is None or not _is_mine(store, holder):
        raise LogRenameError(old, new, "its lock was lost meanwhile; try again")
    operations: list[Operation] = []
    deletions: list[Operation] = []
    for path in tree:
        node = nodes[path]
        if node is None:
            return None
        below = path.removeprefix(root).removeprefix("/")
        deletions.append(Delete(path, node.stat.version))
        if below == f"{paths.LOCK}/{members[0]}":
            continue  # ours: its deletion fails if the lock is lost
        _check_node(rename, path, below, node)
        value = rename.token if below == paths.LOCK else node.value
        if below != paths.ORIGIN:
            operations.append(Create(new_root + path.removeprefix(root), value))
    origin_path = paths.origin_path(place, old)
    origin = origin_from(old, origin_path, nodes.get(origin_path), name_path, nodes[name_path])
    operations.append(Create(paths.origin_path(place, new), encode_origin(origin)))
    return [
        *await _above(store, rename, nodes[log_path]),
        *operations,
        *reversed(deletions),
        *await _old_log_node(store, rename, nodes[log_path]),
        *await _name_node(store, rename, nodes[name_path]),
    ]


def _is_mine(store: MetadataStore, node: Node) -> bool:
    return node.stat.ephemeral_owner == store.session_id


def _check_node(rename: Rename, path: str, below: str, node: Node) -> None:
    """Raise if a node below the log's root forbids the rename."""

    def refusal(evidence: str) -> LogRenameError:
        return LogRenameError(rename.old, rename.new, evidence)

    parts = below.split("/")
    if node.stat.ephemeral_owner:
        which = "waits for its lock" if parts[0] == paths.LOCK else "reads it under a lock"
        raise refusal(
            f"another client {which} ({path}); close that client, or wait for the end of its session"
        )
    if parts[0] in _OF_PROMOTIONS:
        raise refusal(
            f"it is being promoted, or was promoted ({path}), and the other namespace knows it by its name"
        )
    match parts:
        case [""] | ["maxtxid"] | ["version"] | [paths.LOCK] | [paths.READ_LOCK] | ["allocation"]:
            return
        case ["ledgers"] | [paths.SUBSCRIBERS] | [paths.SUBSCRIBERS, _]:
            return
        case [paths.SUBSCRIBERS, _, paths.READ_LOCK]:
            return
        case [name] if name in _MOVED:
            return
        case ["ledgers", name] if is_segment_name(name):
            if not decode_segment(node.value, name).in_progress:
                return
            raise refusal(f"its segment {name} is in progress again; try again")
    raise refusal(f"this release does not know the node {path}, so it does not know whether it may move")


async def _above(store: MetadataStore, rename: Rename, log_node: Node | None) -> list[Operation]:
    """Create the missing nodes above the new root, and take the application's data along."""
    new_path = paths.log_path(rename.namespace_path, rename.new)
    value = b"" if log_node is None else log_node.value
    operations: list[Operation] = []
    for ancestor in ancestors_of(new_path):
        if len(ancestor) > len(rename.namespace_path) and await store.exists(ancestor) is None:
            operations.append(Create(ancestor))
    (there,) = (await read_nodes(store, [new_path])).values()
    if there is None:
        return [*operations, Create(new_path, value)]
    if there.value and value and there.value != value:
        raise LogRenameError(
            rename.old,
            rename.new,
            f"both {new_path} and the log's own node hold data of an application; empty one of them first",
        )
    if not value:
        return [*operations, Check(new_path, there.stat.version)]
    return [*operations, Put(new_path, value, there.stat.version)]


async def _old_log_node(store: MetadataStore, rename: Rename, log_node: Node | None) -> list[Operation]:
    """Delete the log's own node, or empty it if logs with longer names lie below it."""
    path = paths.log_path(rename.namespace_path, rename.old)
    assert log_node is not None  # ``log_metadata_from`` refuses a log without it
    others = set((await store.children(path)).names) - {paths.UNPARTITIONED}
    if others or rename.new.startswith(f"{rename.old}/"):
        return [Put(path, b"", log_node.stat.version)]
    return [Delete(path, log_node.stat.version)]


async def _name_node(store: MetadataStore, rename: Rename, name_node: Node | None) -> list[Operation]:
    """Count the renames away from the old name, so that a later log of this name has another origin."""
    path = paths.renamed_path(rename.namespace_path, rename.old)
    if name_node is not None:
        times = decode_renamed(name_node.value, path).times + 1
        return [Put(path, encode_renamed(RenamedName(times, rename.new)), name_node.stat.version)]
    created: list[Operation] = [Create(path, encode_renamed(RenamedName(1, rename.new)))]
    parent = paths.renamed_path(rename.namespace_path)
    return created if await store.exists(parent) is not None else [Create(parent), *created]
