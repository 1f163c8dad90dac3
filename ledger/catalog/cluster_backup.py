"""Backup and restore of all metadata of a cluster, when its metadata store is lost.

A restored cluster knows nothing of what happened after the backup. Two dangers follow:

- Ledgers created since have entries on the bookies and no node. The garbage collection would delete them. So
  a restore leaves the node ``RESTORED`` below the ledgers root. While it exists, bookies of ours delete no
  ledger. ``release_restored`` deletes it.
- Ids given out since would be given out again, and entries of two ledgers would mix. So a restore begins a
  new series of long ids (``new_id_series``), which no client can have used.

    RESTORED "writing", new series ──▶ other nodes ──▶ cookies ──▶ INSTANCEID, LAYOUT ──▶ RESTORED "held"

A bookie with disks does not start before its cookie and the instance id are back. A crash in between leaves
"writing"; the same call with the same file continues.

Inside: walking the trees, the order of writes. Not inside: the file (``backup_file``), bookies' disks.
Always: nothing is written over: a node that exists with another value stops the restore. An ephemeral node is
never in a backup.

Source: our own; docs/metadata.md 18.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence

import attrs
from attrs.validators import instance_of

from ledger.catalog.backup_file import ID_SERIES_MAX, BackupNode, ClusterBackup, check_tops
from ledger.catalog.paths import (
    AUDITOR_ELECTION,
    AVAILABLE,
    COOKIES,
    HIGH_ORDER_PREFIX,
    IDGEN,
    IDGEN_LONG,
    INSTANCE_ID,
    LAYOUT,
    READONLY,
    READONLY_NAME,
    RESTORED,
    UNDERREPLICATION_LOCKS,
    Layout,
    decode_layout,
    id_series_of,
    ledger_id_of,
)
from ledger.errors import BackupFileError, BookieInUseError, ClusterNotFoundError, RestoreRefusedError
from ledger.metadata_store.errors import NodeExistsError, NoNodeError
from ledger.metadata_store.store import Create, MetadataStore, Node, Put, parent_of

NODES_AT_ONCE = 64
BATCH_BYTES_MAX = 256 * 1024
MINUTE_MS = 60_000
_WRITING, _HELD = "writing", "held"
_LONG_ID_LAYOUTS = (Layout.HIERARCHICAL, Layout.LONG_HIERARCHICAL)
_COUNTERS = (IDGEN, IDGEN_LONG)  # their nodes do not have their numbers, which only the store knows
_CHILDREN_LEFT_OUT = (UNDERREPLICATION_LOCKS, AUDITOR_ELECTION, READONLY)  # of living processes
_LAST = (INSTANCE_ID, LAYOUT)


async def read_backup(
    store: MetadataStore,
    ledgers_root: str,
    namespaces: Sequence[str],
    *,
    now_ms: int,
    on_progress: Callable[[int], None] = lambda nodes: None,
) -> ClusterBackup:
    """Read the persistent nodes of a cluster, which may be in use.

    The nodes are read one after the other. Namespaces are read before ledgers, so each ledger that a segment
    names is in the backup, unless it was deleted meanwhile.

    Args:
        namespaces: Paths of namespaces of logs, outside the ledgers root.
        now_ms: The time for the header, epoch milliseconds.
        on_progress: Called with the number of nodes read so far.

    Raises:
        ClusterNotFoundError: The ledgers root or a namespace does not exist.
        BackupFileError: The trees overlap, or the layout of the cluster has no long ids.
        RestoreRefusedError: A restore into this cluster is not complete.
        MetadataFormatError: The layout is unknown.
        ledger.metadata_store.errors.MetadataError: The store failed.
    """
    check_tops((ledgers_root, *namespaces))
    await store.sync(ledgers_root)
    state = await _restore_state(store, ledgers_root)
    if state is not None and state.state == _WRITING:
        raise RestoreRefusedError(f"{ledgers_root}: a restore is not complete. Run it again with its file")
    found = await store.get_many([f"{ledgers_root}/{LAYOUT}", f"{ledgers_root}/{INSTANCE_ID}"])
    layout_node, instance_node = found[f"{ledgers_root}/{LAYOUT}"], found[f"{ledgers_root}/{INSTANCE_ID}"]
    if layout_node is None:
        raise ClusterNotFoundError(f"there is no cluster at {ledgers_root}")
    _check_layout(layout_node.value)
    left_out = {f"{ledgers_root}/{name}" for name in (*_CHILDREN_LEFT_OUT, *_COUNTERS)}
    nodes: dict[str, bytes] = {}
    for top in (*sorted(namespaces), ledgers_root):
        async for path, node in _walk(store, top, left_out):
            nodes[path] = node.value
            on_progress(len(nodes))
        if top not in nodes:
            raise ClusterNotFoundError(f"node {top} does not exist")
    for name in (RESTORED, *_COUNTERS):
        nodes.pop(f"{ledgers_root}/{name}", None)
    series = [0]
    series += [(ledger_id_of(ledgers_root, path) or 0) >> 32 for path in nodes]
    series += [
        number
        for name in await _names(store, f"{ledgers_root}/{IDGEN_LONG}")
        if (number := id_series_of(name)) is not None
    ]
    return ClusterBackup(
        ledgers_root=ledgers_root,
        namespaces=tuple(sorted(namespaces)),
        instance_id=None if instance_node is None else instance_node.value.decode("ascii", "replace"),
        id_series=max(series),
        created_ms=now_ms,
        nodes=tuple(BackupNode(path, nodes[path]) for path in sorted(nodes)),
    )


def new_id_series(backup: ClusterBackup, now_ms: int) -> int:
    """The series of ledger ids that a restored cluster begins with; it becomes the upper half of the ids.

    The backup does not know which ids were given out after it. A series that is one greater is no safe
    choice: another restore of the same file would begin the same series again. So it is at least the number
    of minutes since 1970, which no cluster reaches by counting.

    Raises:
        BackupFileError: All series are used.
    """
    series = max(backup.id_series + 1, now_ms // MINUTE_MS)
    if series > ID_SERIES_MAX:
        raise BackupFileError("its cluster has used all ledger ids")
    return series


async def restore_backup(
    store: MetadataStore,
    backup: ClusterBackup,
    file_sha256: str,
    *,
    now_ms: int,
    on_progress: Callable[[int], None] = lambda nodes: None,
) -> int:
    """Write the nodes of a backup to a store that does not have them; return the new series of ledger ids.

    Afterwards bookies of ours delete no ledger, until ``release_restored``. If cancelled or failed, a part
    is written; call it again with the same file.

    Args:
        file_sha256: Names the file, so that an interrupted restore is not completed with another one.
        now_ms: The time, epoch milliseconds; a later restore has a later time.
        on_progress: Called with the number of nodes written so far.

    Raises:
        BookieInUseError: A bookie is registered. Nothing was changed.
        RestoreRefusedError: The target is not empty, or holds an incomplete restore of another file; nothing
            was changed. Or a node was created meanwhile with another value.
        BackupFileError: The layout of the backup has no long ids. Nothing was changed.
        ledger.metadata_store.errors.MetadataError: The store failed.
    """
    root = backup.ledgers_root
    values = {node.path: node.value for node in backup.nodes}
    if root not in values or f"{root}/{LAYOUT}" not in values:
        raise BackupFileError("it has no layout of ledgers")
    _check_layout(values[f"{root}/{LAYOUT}"])
    await _check_no_bookies(store, root)
    state = await _restore_state(store, root)
    if state is None:
        for top in backup.tops:
            if await store.exists(top) is not None and (top == "/" or await _names(store, top)):
                raise RestoreRefusedError(
                    f"{top} exists and is not empty. A restore needs an empty metadata store;"
                    " `dlog bookies nuke` deletes a cluster"
                )
        state = _RestoreState(file_sha256, _WRITING, new_id_series(backup, now_ms))
        await _begin(store, root, values[root], state)
    elif state.state != _WRITING or state.file_sha256 != file_sha256:
        raise RestoreRefusedError(
            f"{root} holds a restore of another file that is not complete. Run that again, or delete the"
            " cluster with `dlog bookies nuke --instance-id none`"
            if state.state == _WRITING
            else f"{root} is restored already; `dlog metadata release` ends the restore"
        )
    last = {f"{root}/{name}" for name in _LAST}
    cookies = f"{root}/{COOKIES}"
    groups: tuple[list[BackupNode], list[BackupNode]] = ([], [])
    for node in backup.nodes:
        if node.path != root and node.path not in last:
            groups[_is_in(node.path, cookies)].append(node)
    written = 0
    for group in groups:
        for batch in _batches(group):
            await _write(store, batch)
            written += len(batch)
            on_progress(written)
    await _check_no_bookies(store, root)
    await _write(store, [one for one in backup.nodes if one.path in last])
    await store.put(f"{root}/{RESTORED}", attrs.evolve(state, state=_HELD).encode())
    on_progress(len(backup.nodes))
    return state.id_series


async def release_restored(store: MetadataStore, root: str) -> None:
    """Let the bookies of a restored cluster delete ledgers again that the metadata do not have.

    Raises:
        RestoreRefusedError: The restore is not complete. Nothing was changed.
        ClusterNotFoundError: The cluster was not restored, or is released already.
        ledger.metadata_store.errors.MetadataError: The store failed.
    """
    await check_restored(store, root)
    await store.delete(f"{root}/{RESTORED}")


async def check_restored(store: MetadataStore, root: str) -> None:
    """Check that the restore of a cluster is complete, and not released.

    Raises:
        RestoreRefusedError, ClusterNotFoundError, MetadataError: As ``release_restored``.
    """
    await store.sync(root)
    state = await _restore_state(store, root)
    if state is None:
        raise ClusterNotFoundError(f"{root} holds no restored cluster that waits for its release")
    if state.state != _HELD:
        raise RestoreRefusedError(f"{root}: the restore is not complete. Run it again with its file")


@attrs.frozen
class _RestoreState:
    file_sha256: str = attrs.field(validator=instance_of(str))
    state: str = attrs.field(validator=instance_of(str))  # _WRITING or _HELD
    id_series: int = attrs.field(validator=instance_of(int))

    def encode(self) -> bytes:
        return json.dumps(attrs.asdict(self)).encode()


async def _restore_state(store: MetadataStore, root: str) -> _RestoreState | None:
    try:
        data = (await store.get(f"{root}/{RESTORED}")).value
    except NoNodeError:
        return None
    try:
        return _RestoreState(**json.loads(data))
    except (ValueError, TypeError, RecursionError) as exc:
        raise RestoreRefusedError(f"node {root}/{RESTORED} is not of this program: {data[:80]!r}") from exc


async def _begin(store: MetadataStore, root: str, value: bytes, state: _RestoreState) -> None:
    """Write the root, the marker and the series of ids, in one transaction."""
    if parent_of(root) != "/":
        try:
            await store.create(parent_of(root), parents=True)
        except NodeExistsError:
            pass
    series = f"{root}/{IDGEN_LONG}"
    await store.commit(
        [
            Create(root, value) if await store.exists(root) is None else Put(root, value),
            Create(f"{root}/{RESTORED}", state.encode()),
            Create(series),
            Create(f"{series}/{HIGH_ORDER_PREFIX}{state.id_series:010d}"),
        ]
    )


async def _write(store: MetadataStore, batch: Sequence[BackupNode]) -> None:
    if not batch:
        return
    try:
        await store.commit([Create(node.path, node.value) for node in batch])
    except (NodeExistsError, NoNodeError):
        # An interrupted restore wrote a part, or a namespace has a parent that does not exist yet.
        for node in batch:
            await _write_one(store, node)


async def _write_one(store: MetadataStore, node: BackupNode) -> None:
    try:
        await store.create(node.path, node.value, parents=True)
    except NodeExistsError:
        present = await store.get(node.path)
        if present.value == node.value:
            return
        if present.value or present.stat.version:
            raise RestoreRefusedError(
                f"node {node.path} was created during the restore and differs from the backup. Stop all"
                " programs of the cluster, delete it with `dlog bookies nuke --instance-id none`, and begin"
                " again"
            ) from None
        # The parents of the first nodes were made without a value.
        await store.commit([Put(node.path, node.value, 0)])


async def _check_no_bookies(store: MetadataStore, root: str) -> None:
    registered = [one for one in await _names(store, f"{root}/{AVAILABLE}") if one != READONLY_NAME]
    registered += await _names(store, f"{root}/{READONLY}")
    if registered:
        raise BookieInUseError(
            registered[0],
            f"it is registered at {root}. Stop all bookies before a restore, and wait until their sessions"
            " end",
        )


async def _walk(store: MetadataStore, top: str, left_out: Iterable[str]) -> AsyncIterator[tuple[str, Node]]:
    """The persistent nodes of a tree, without the children of ``left_out``."""
    pending = [[top]]
    while pending:
        paths = pending.pop()
        more = paths[NODES_AT_ONCE:]
        if more:
            pending.append(more)
        for path, node in (await store.get_many(paths[:NODES_AT_ONCE])).items():
            if node is None or node.stat.ephemeral_owner:
                continue
            yield path, node
            if node.stat.children_count and path not in left_out:
                pending.append([f"{path}/{name}" for name in await _names(store, path)])


async def _names(store: MetadataStore, path: str) -> tuple[str, ...]:
    try:
        return (await store.children(path)).names
    except NoNodeError:
        return ()


def _check_layout(data: bytes) -> None:
    layout = decode_layout(data)
    if layout not in _LONG_ID_LAYOUTS:
        raise BackupFileError(
            f"the layout {layout.value} has one counter of ledger ids, which no program can set. A restored"
            " cluster would give ids out again, so such clusters have no backup"
        )


def _is_in(path: str, top: str) -> bool:
    return path == top or path.startswith(f"{top}/")


def _batches(nodes: Sequence[BackupNode]) -> list[list[BackupNode]]:
    batches: list[list[BackupNode]] = []
    size_bytes = BATCH_BYTES_MAX
    for node in nodes:
        node_bytes = len(node.path) + len(node.value) + 64
        if size_bytes + node_bytes > BATCH_BYTES_MAX:
            batches.append([])
            size_bytes = 0
        batches[-1].append(node)
        size_bytes += node_bytes
    return batches
