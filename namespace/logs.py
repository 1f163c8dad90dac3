"""Logs by name, and the transactions of their segments' lives.

Inside: create, open, list, delete; list a log's segments; start, complete, delete and mark a segment.
Not inside: ledgers (they are created before and deleted before the nodes that name them), locks, and any
decision when to do what.
Always: one call is one transaction; it is conditional on the versions remembered in ``LogMetadata``, so a
writer that has been overtaken changes nothing and learns of it by ``LogTakenOverError``. A
``ConnectionLostError`` leaves the outcome open: treat the writer as failed and open the log again.

Source: DistributedLog, ZKLogStreamMetadataStore.java, ZKLogSegmentMetadataStore.java,
BKLogWriteHandler.java, BKDistributedLogManager.java.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import trio

from namespace import paths
from namespace.errors import (
    BadVersionError,
    FormatError,
    LogExistsError,
    LogInUseError,
    LogMetadataError,
    LogNotFoundError,
    LogTakenOverError,
    NoBindingError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    StoreError,
)
from namespace.lock import in_order
from namespace.log_metadata import LogMetadata, check_start_txid, initial_nodes, log_metadata_from
from namespace.log_name import RESERVED_PREFIXES, check_log_name
from namespace.segment import LogSegment, decode_segment, encode_segment, is_segment_name
from namespace.segment_list import check_no_gap, check_same_log, sort_segments
from namespace.store import Check, Create, Delete, MetadataStore, Node, Operation, Put, ancestors_of

READS_AT_ONCE = 64


@attrs.frozen
class SegmentList:
    """A log's segments in order, as of one moment."""

    segments: tuple[LogSegment, ...]
    child_version: int  # of their parent; greater for a later list


async def create_log(
    store: MetadataStore, namespace_path: str, log_name: str, *, exist_ok: bool = False
) -> LogMetadata:
    """Create a log, with missing parts of a name like ``a/b/c``; a partly created one is completed.

    If cancelled, the log may or may not exist.

    Raises:
        InvalidLogNameError, LogExistsError
        NoBindingError: There is no namespace at that path.
        LogMetadataError: What exists of the log is damaged.
    """
    log_name = check_log_name(log_name)
    while True:
        nodes = await _read_nodes(store, namespace_path, log_name)
        if None not in nodes.values():
            if not exist_ok:
                raise LogExistsError(log_name)
            return log_metadata_from(namespace_path, log_name, nodes)
        operations: list[Operation] = []
        for ancestor in ancestors_of(paths.log_path(namespace_path, log_name)):
            if len(ancestor) > len(namespace_path) and await store.exists(ancestor) is None:
                operations.append(Create(ancestor))
        operations += [
            Create(path, data)
            for path, data in initial_nodes(namespace_path, log_name)
            if nodes[path] is None
        ]
        try:
            await store.commit(operations)
        except NodeExistsError:
            continue  # somebody else is creating it, or a neighbour below the same ancestor: look again
        except NoNodeError as exc:
            if await store.exists(namespace_path) is None:
                raise NoBindingError(namespace_path) from exc
            continue
        return await open_log(store, namespace_path, log_name)


async def open_log(store: MetadataStore, namespace_path: str, log_name: str) -> LogMetadata:
    """What a writer must remember of a log.

    Raises:
        InvalidLogNameError, LogNotFoundError, LogMetadataError
    """
    log_name = check_log_name(log_name)
    return log_metadata_from(namespace_path, log_name, await _read_nodes(store, namespace_path, log_name))


async def log_exists(store: MetadataStore, namespace_path: str, log_name: str) -> bool:
    """Whether there is such a log now.

    Raises:
        InvalidLogNameError: No log can be called so.
    """
    path = paths.segments_path(namespace_path, check_log_name(log_name))
    await store.sync(path)
    return await store.exists(path) is not None


async def list_logs(store: MetadataStore, namespace_path: str, prefix: str = "") -> list[str]:
    """The names of all logs, sorted; with a prefix, of those below it (``a`` gives ``a/b``, not ``ab``).

    Java's listing gives the first parts of names only; this one looks into them, one read for each. There,
    parts that begin with "." are as good as others, as they are to Java's writers, though not its listing.
    """
    await store.sync(namespace_path)
    names: list[str] = []
    top = check_log_name(prefix.removesuffix("/")) if prefix else ""
    pending = [top]
    while pending:
        batch, pending = pending[:READS_AT_ONCE], pending[READS_AT_ONCE:]
        parents = [paths.log_path(namespace_path, name) if name else namespace_path for name in batch]
        for name, children in zip(batch, await _children_of(store, parents), strict=True):
            if name != top and paths.UNPARTITIONED in children:
                names.append(name)
            reserved = "<" if name else RESERVED_PREFIXES  # "<" is in no part of any name
            pending += [
                f"{name}/{child}" if name else child for child in children if not child.startswith(reserved)
            ]
    return sorted(names)


async def delete_log_nodes(store: MetadataStore, namespace_path: str, log_name: str) -> None:
    """Delete a log's own nodes, in one transaction. Its segments must be gone; the caller holds its lock.

    Logs whose names extend this one's (``a/b`` when ``a`` is deleted) stay, and the node they need.
    If cancelled, the log is either whole or gone.

    Raises:
        LogInUseError: Segments are left, or another session's writer holds the lock or has come in between.
        LogNotFoundError: There is no such log.
    """
    log_name = check_log_name(log_name)
    log_path = paths.log_path(namespace_path, log_name)
    root = paths.log_root_path(namespace_path, log_name)
    tree = await _descendants(store, root)
    if tree is None:
        raise LogNotFoundError(log_name)
    segments_path = paths.segments_path(namespace_path, log_name)
    if left := [path for path in tree if path.startswith(segments_path + "/")]:
        raise LogInUseError(log_name, f"not deleted: {len(left)} segments are left, such as {left[0]}")
    await _check_lock_is_mine(store, namespace_path, log_name, tree)
    operations: list[Operation] = [Delete(path) for path in reversed(tree)]
    try:
        if set((await store.children(log_path)).names) - {paths.UNPARTITIONED}:
            operations.append(Put(log_path, b""))
        else:
            operations.append(Delete(log_path))
        await store.commit(operations)
    except NotEmptyError as exc:
        raise LogInUseError(log_name, f"not deleted: somebody has just added to {exc.path}") from exc
    except NoNodeError as exc:
        raise LogInUseError(log_name, f"not deleted: somebody has just deleted {exc.path}") from exc


async def list_segments(
    store: MetadataStore,
    namespace_path: str,
    log_name: str,
    *,
    known: Sequence[LogSegment] = (),
    watch: trio.Event | None = None,
    gaps_ok: bool = False,
) -> SegmentList:
    """A log's segments in order; the watch fires when one is added, completed, marked or deleted.

    Args:
        known: Segments listed before. Completed ones among them are not read again, so a change of their
            truncation is not seen; one is where nothing else read tells that this is still the same log.
        gaps_ok: List the segments although some are missing in between.

    Raises:
        LogNotFoundError: The log does not exist, or not any more.
        LogMetadataError: The log is not the one of the known segments: it was deleted and created again.
        SegmentGapError: A segment is missing between two others.
        FormatError: A segment's metadata does not parse.
    """
    parent = paths.segments_path(namespace_path, log_name)
    completed = {segment.name: segment for segment in known if not segment.in_progress}
    ledgers = {segment.ledger_id for segment in known}
    while True:
        try:
            children = await store.children(parent, watch=watch)
        except NoNodeError:
            raise LogNotFoundError(log_name) from None
        names = [name for name in children.names if is_segment_name(name)]
        kept = [completed[name] for name in names if name in completed]
        read = await _read_segments(store, parent, [name for name in names if name not in completed])
        witnesses = read
        if read is not None and kept and ledgers.isdisjoint(segment.ledger_id for segment in read):
            # A log created again has nodes of the same names, but no ledger twice.
            witnesses = await _read_segments(store, parent, [kept[-1].name])
        if read is None or witnesses is None:
            continue  # completed or deleted meanwhile, so what replaces it is not in this list
        segments = sort_segments(kept + read)
        check_same_log(log_name, known, read + witnesses, segments)
        if not gaps_ok:
            check_no_gap(log_name, segments)
        return SegmentList(segments, children.child_version)


async def _read_segments(store: MetadataStore, parent: str, names: Sequence[str]) -> list[LogSegment] | None:
    """The segments of these names; None if one of them is gone."""
    nodes = await _get_all(store, [f"{parent}/{name}" for name in names])
    found = []
    for name in names:
        node = nodes[f"{parent}/{name}"]
        if node is None:
            return None
        try:
            found.append(decode_segment(node.value, name))
        except FormatError as exc:
            raise FormatError(f"{parent}/{name}: {exc}") from exc
    return found


async def record_allocation(store: MetadataStore, metadata: LogMetadata, ledger_id: int) -> LogMetadata:
    """Write down a ledger just created for the next segment, so that it is not lost if we are.

    Raises:
        LogTakenOverError: Another writer has used the node; delete the ledger and stop.
    """
    path = paths.allocation_path(metadata.namespace_path, metadata.log_name)
    try:
        stat = await store.put(path, b"%d" % ledger_id, expected=metadata.allocation_version)
    except (BadVersionError, NoNodeError) as exc:
        raise _taken_over(metadata, exc) from exc
    return attrs.evolve(metadata, allocated_ledger_id=ledger_id, allocation_version=stat.version)


async def start_segment(
    store: MetadataStore, metadata: LogMetadata, segment: LogSegment, *, sealing: bool = False
) -> LogMetadata:
    """Make a segment in progress known, and take its ledger out of the allocation, at once.

    If cancelled, or if the connection is lost, it may or may not have happened.

    Returns:
        The metadata to go on with.

    Raises:
        ValueError, LogSealedError, TxidOutOfOrderError: The segment's first txid is not possible.
        LogTakenOverError: Another writer has started or completed a segment. Nothing was changed.
    """
    assert segment.in_progress, segment
    check_start_txid(metadata, segment.first_txid, sealing=sealing)
    place = metadata.namespace_path, metadata.log_name
    await _commit_or_taken_over(
        store,
        metadata,
        [
            Put(paths.allocation_path(*place), b"", metadata.allocation_version),
            Create(paths.segment_path(*place, segment.name), encode_segment(segment)),
            Put(
                paths.segments_path(*place),
                b"%d" % segment.segment_seqno,
                metadata.max_segment_seqno_version,
            ),
        ],
    )
    return attrs.evolve(
        metadata,
        allocated_ledger_id=None,
        allocation_version=metadata.allocation_version + 1,
        max_segment_seqno=segment.segment_seqno,
        max_segment_seqno_version=metadata.max_segment_seqno_version + 1,
    )


async def complete_segment(
    store: MetadataStore, metadata: LogMetadata, segment: LogSegment, completed: LogSegment
) -> LogMetadata:
    """Replace a segment in progress by the same segment completed; its ledger is closed already.

    If cancelled, or if the connection is lost, it may or may not have happened.

    Returns:
        The metadata to go on with.

    Raises:
        LogTakenOverError: Another writer has completed it, or started another. Nothing was changed.
        LogMetadataError: The log's greatest segment number is neither this one's nor the next.
    """
    assert segment.in_progress, segment
    assert not completed.in_progress, completed
    assert segment.segment_seqno == completed.segment_seqno, (segment, completed)
    assert segment.ledger_id == completed.ledger_id, (segment, completed)
    max_seqno, seqno = metadata.max_segment_seqno, completed.segment_seqno
    if max_seqno not in (seqno, seqno + 1):
        raise LogMetadataError(
            metadata.log_name,
            f"segment {seqno} not completed: the greatest segment number stored is {max_seqno}",
        )
    max_txid = max(metadata.max_txid, completed.last_txid)
    place = metadata.namespace_path, metadata.log_name
    await _commit_or_taken_over(
        store,
        metadata,
        [
            Create(paths.segment_path(*place, completed.name), encode_segment(completed)),
            Delete(paths.segment_path(*place, segment.name)),
            # Written though it may not change: a second owner shows in the version.
            Put(paths.segments_path(*place), b"%d" % max_seqno, metadata.max_segment_seqno_version),
            Put(paths.max_txid_path(*place), b"%d" % max_txid, metadata.max_txid_version),
        ],
    )
    return attrs.evolve(
        metadata,
        max_segment_seqno_version=metadata.max_segment_seqno_version + 1,
        max_txid=max_txid,
        max_txid_version=metadata.max_txid_version + 1,
    )


async def delete_segment(
    store: MetadataStore, namespace_path: str, log_name: str, segment: LogSegment
) -> None:
    """Delete a segment's node; its ledger has been deleted already. A node missing already is fine.

    If cancelled, the node may or may not be deleted.

    Raises:
        LogTakenOverError: Under that name there is another segment now: an empty one's number has been
            used again. Nothing was deleted.
    """
    parent = paths.segments_path(namespace_path, log_name)
    path = paths.segment_path(namespace_path, log_name, segment.name)
    while True:
        try:
            version = (await store.get(parent)).stat.version
            node = await store.get(path)
            if decode_segment(node.value).ledger_id != segment.ledger_id:
                raise LogTakenOverError(
                    log_name, f"segment {segment.name} not deleted: it has another ledger now"
                )
            # A node deleted and created again has version 0 again, so the node's own version cannot tell;
            # but nobody creates one without writing its parent.
            await store.commit([Check(parent, version), Delete(path, node.stat.version)])
        except NoNodeError:
            return
        except BadVersionError:
            continue
        return


async def set_truncation(store: MetadataStore, metadata: LogMetadata, segments: Sequence[LogSegment]) -> None:
    """Replace completed segments by the same with other truncation marks, all at once.

    The nodes are deleted and created again, so that whoever watches their parent hears of it. If cancelled,
    or if the connection is lost, all are marked or none.

    Raises:
        LogTakenOverError: Another writer has changed the log, or a segment has been deleted. Nothing was
            changed.
    """
    if not segments:
        return
    place = metadata.namespace_path, metadata.log_name
    operations: list[Operation] = [Check(paths.segments_path(*place), metadata.max_segment_seqno_version)]
    for segment in segments:
        assert not segment.in_progress, segment
        path = paths.segment_path(*place, segment.name)
        operations += [Delete(path), Create(path, encode_segment(segment))]
    await _commit_or_taken_over(store, metadata, operations)


async def _commit_or_taken_over(
    store: MetadataStore, metadata: LogMetadata, operations: Sequence[Operation]
) -> None:
    try:
        await store.commit(operations)
    except (BadVersionError, NodeExistsError, NoNodeError) as exc:
        raise _taken_over(metadata, exc) from exc


def _taken_over(metadata: LogMetadata, cause: StoreError) -> LogTakenOverError:
    return LogTakenOverError(
        metadata.log_name, f"another writer has taken over ({cause}); open the log again"
    )


async def _check_lock_is_mine(
    store: MetadataStore, namespace_path: str, log_name: str, tree: Sequence[str]
) -> None:
    prefix = paths.lock_path(namespace_path, log_name) + "/"
    members = in_order(path.removeprefix(prefix) for path in tree if path.startswith(prefix))
    if members:
        holder = await store.exists(prefix + members[0])
        if holder is not None and holder.ephemeral_owner not in (0, store.session_id):
            raise LogInUseError(log_name, f"not deleted: a writer holds its lock ({members[0]})")


async def _read_nodes(store: MetadataStore, namespace_path: str, log_name: str) -> dict[str, Node | None]:
    return await _get_all(store, [path for path, _ in initial_nodes(namespace_path, log_name)])


async def _get_all(store: MetadataStore, node_paths: Sequence[str]) -> dict[str, Node | None]:
    """Read nodes side by side; None for those that do not exist."""
    nodes: dict[str, Node | None] = {}
    failures: list[Exception] = []

    async def read(path: str) -> None:
        try:
            nodes[path] = await store.get(path)
        except NoNodeError:
            nodes[path] = None
        except Exception as exc:  # raised below, and not in a group
            failures.append(exc)

    for start in range(0, len(node_paths), READS_AT_ONCE):
        async with trio.open_nursery() as nursery:
            for path in node_paths[start : start + READS_AT_ONCE]:
                nursery.start_soon(read, path)
        if failures:
            raise failures[0]
    return nodes


async def _children_of(store: MetadataStore, parents: Sequence[str]) -> list[tuple[str, ...]]:
    names: dict[str, tuple[str, ...]] = {}
    failures: list[Exception] = []

    async def read(path: str) -> None:
        try:
            names[path] = (await store.children(path)).names
        except NoNodeError:
            names[path] = ()
        except Exception as exc:  # raised below, and not in a group
            failures.append(exc)

    async with trio.open_nursery() as nursery:
        for path in parents:
            nursery.start_soon(read, path)
    if failures:
        raise failures[0]
    return [names[path] for path in parents]


async def _descendants(store: MetadataStore, path: str) -> list[str] | None:
    """A node and all below it, parents first; None if it does not exist."""
    if await store.exists(path) is None:
        return None
    tree, level = [path], [path]
    while level:
        names = await _children_of(store, level)
        level = [
            f"{parent}/{name}" for parent, children in zip(level, names, strict=True) for name in children
        ]
        tree += level
    return tree
