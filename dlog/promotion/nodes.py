"""The nodes of a promotion: reading both records, and each change of one side as one transaction.

Inside: the hand-over, opening and deleting the log at the target, opening the source again. Not inside: which
of them comes when (``steps``, ``promoter``), ledgers.
Always: each change is conditional on the record as the caller read it, so of two processes that promote or
undo the same log one fails and changes nothing; the hand-over makes every transaction fail that a writer, a
truncation or a new cursor prepared before it.

Source: our own; docs/promotion.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import trio

from dlog.errors import (
    LogExistsError,
    LogMetadataError,
    LogNotFoundError,
    LogUnavailableError,
    PromotionError,
)
from dlog.promotion.record import (
    SourcePhase,
    SourceRecord,
    TargetPhase,
    TargetRecord,
    decode_source,
    decode_target,
    encode_source,
    encode_target,
)
from ledger.metadata_store.errors import BadVersionError, NodeExistsError, NoNodeError
from ledger.metadata_store.store import Check, Create, Delete, MetadataStore, Operation, Put, ancestors_of
from namespace import paths
from namespace.log_identity import encode_log_id, new_log_id
from namespace.log_metadata import (
    LAYOUT_VERSION,
    PROMOTED_FROM,
    PROMOTED_TO,
    PURGED,
    LogMetadata,
    initial_nodes,
)
from namespace.logs import open_log
from namespace.node_reads import read_children, read_nodes
from namespace.origin import encode_origin
from namespace.segments.segment import LogSegment, encode_segment

ATTEMPTS_MAX = 100  # to hand over; each is lost to a cursor or a roll in the same moment
OPERATIONS_AT_ONCE = 500  # in one transaction; ZooKeeper takes at most 1 MiB


async def read_source(
    store: MetadataStore, namespace_path: str, log: str, *, watch: trio.Event | None = None
) -> SourceRecord | None:
    """The record of the log that is or was moved; None if it has none. The watch fires when it changes.

    Raises:
        LogMetadataError: It does not parse.
    """
    path = paths.promoted_to_path(namespace_path, log)
    if await store.exists(path, watch=watch) is None:
        return None
    try:
        node = await store.get(path)
    except NoNodeError:
        return None
    return decode_source(node.value, node.stat.version, path)


async def read_target(store: MetadataStore, namespace_path: str, log: str) -> TargetRecord | None:
    """The record of the log that is made of copies; None if it has none.

    Raises:
        LogMetadataError: It does not parse.
    """
    path = paths.promoted_from_path(namespace_path, log)
    await store.sync(path)
    try:
        node = await store.get(path)
    except NoNodeError:
        return None
    return decode_target(node.value, node.stat.version, path)


async def begin(store: MetadataStore, namespace_path: str, log: str, record: SourceRecord) -> None:
    """Write the first record of a promotion at the source.

    Raises:
        LogNotFoundError: There is no such log.
        PromotionError: Another process has begun a promotion of it.
    """
    try:
        await store.commit(
            [
                Create(paths.promoted_to_path(namespace_path, log), encode_source(record)),
                Create(paths.promoted_cursors_path(namespace_path, log)),
            ]
        )
    except NoNodeError as exc:
        raise LogNotFoundError(log) from exc
    except NodeExistsError as exc:
        raise _changed(log) from exc


async def put_source(
    store: MetadataStore, namespace_path: str, log: str, seen: SourceRecord, wanted: SourceRecord
) -> None:
    """Replace the record at the source, if it is as the caller has seen it.

    Raises:
        PromotionError: Another process has changed it.
    """
    path = paths.promoted_to_path(namespace_path, log)
    try:
        await store.put(path, encode_source(wanted), expected=seen.node_version)
    except (BadVersionError, NoNodeError) as exc:
        raise _changed(log) from exc


async def mark_purged(store: MetadataStore, namespace_path: str, log: str, seen: SourceRecord) -> None:
    """Note that the segments at the source are being deleted. A writer that still has records in flight in
    one of them must not take a deleted ledger for an empty one.

    Raises:
        PromotionError: Another process has changed the promotion.
    """
    await _commit(
        store,
        log,
        [
            Put(
                paths.promoted_to_path(namespace_path, log),
                encode_source(attrs.evolve(seen, is_purged=True)),
                seen.node_version,
            ),
            Put(paths.version_path(namespace_path, log), PURGED + seen.target.encode("utf-8")),
        ],
    )


async def hand_over(store: MetadataStore, namespace_path: str, log: str, seen: SourceRecord) -> None:
    """Close the log at the source for good: the hand-over. Its cursors move into the record.

    It writes every node that a writer's transaction is conditional on, and the node that each program checks
    before it changes a log. So a writer that continues from what it read before starts no segment any more;
    the ledgers of the segments in progress are fenced afterwards.

    Raises:
        PromotionError: Another process has changed the promotion.
        LogUnavailableError: Other clients changed the log at every attempt.
    """
    closed = attrs.evolve(seen, phase=SourcePhase.HANDED_OVER)
    parent, moved = (
        paths.subscribers_path(namespace_path, log),
        paths.promoted_cursors_path(namespace_path, log),
    )
    for _ in range(ATTEMPTS_MAX):
        metadata = await open_log(store, namespace_path, log)
        (names,) = await read_children(store, [parent])
        cursors = await read_nodes(store, [f"{parent}/{name}" for name in names])
        operations: list[Operation] = [
            Put(paths.promoted_to_path(namespace_path, log), encode_source(closed), seen.node_version),
            Put(
                paths.version_path(namespace_path, log),
                PROMOTED_TO + seen.target.encode("utf-8"),
                metadata.marks_version,
            ),
            *_rewritten(metadata),
        ]
        for name in names:
            node = cursors[f"{parent}/{name}"]
            if node is not None:
                operations += [
                    Delete(f"{parent}/{name}", node.stat.version),
                    Create(f"{moved}/{name}", node.value),
                ]
        try:
            await store.commit(operations)
        except (BadVersionError, NoNodeError, NodeExistsError) as exc:
            now = await read_source(store, namespace_path, log)
            if now is None or now.node_version != seen.node_version:
                raise _changed(log) from exc
            continue
        return
    raise LogUnavailableError(
        f"log {log!r}: not handed over, because its writer or its cursors changed it {ATTEMPTS_MAX} times in"
        " that moment; try again"
    )


def _rewritten(metadata: LogMetadata) -> list[Operation]:
    """The nodes of a writer with the same data and the next version: what it prepared before fails."""
    place = metadata.namespace_path, metadata.log_name
    allocated = metadata.allocated_ledger_id
    return [
        Put(
            paths.segments_path(*place),
            b"%d" % metadata.max_segment_seqno,
            metadata.max_segment_seqno_version,
        ),
        Put(paths.max_txid_path(*place), b"%d" % metadata.max_txid, metadata.max_txid_version),
        Put(
            paths.allocation_path(*place),
            b"" if allocated is None else b"%d" % allocated,
            metadata.allocation_version,
        ),
    ]


async def reopen_source(store: MetadataStore, namespace_path: str, log: str, seen: SourceRecord) -> None:
    """Let the log take records at the source again; the target can no longer become active.

    Raises:
        PromotionError: Another process has changed the promotion.
    """
    reopened = attrs.evolve(seen, phase=SourcePhase.UNDOING)
    operations: list[Operation] = [
        Put(paths.promoted_to_path(namespace_path, log), encode_source(reopened), seen.node_version)
    ]
    if seen.phase is SourcePhase.HANDED_OVER:
        operations.append(Put(paths.version_path(namespace_path, log), LAYOUT_VERSION))
        moved = paths.promoted_cursors_path(namespace_path, log)
        (names,) = await read_children(store, [moved])
        for name, node in zip(
            names, (await read_nodes(store, [f"{moved}/{name}" for name in names])).values(), strict=True
        ):
            if node is None:
                raise LogMetadataError(f"{moved}/{name}: it was deleted while the promotion's lock was held")
            operations += [
                Create(paths.subscriber_path(namespace_path, log, name), node.value),
                Delete(f"{moved}/{name}"),
            ]
    await _commit(store, log, operations)


async def forget(store: MetadataStore, namespace_path: str, log: str, seen: SourceRecord) -> None:
    """Delete the record at the source.

    Raises:
        PromotionError: Another process has changed the promotion.
    """
    await _commit(
        store,
        log,
        [
            Delete(paths.promoted_cursors_path(namespace_path, log)),
            Delete(paths.promoted_to_path(namespace_path, log), seen.node_version),
        ],
    )


# The target.


async def create_target(
    store: MetadataStore,
    namespace_path: str,
    log: str,
    record: TargetRecord,
    origin: str,
    *,
    keeps_chain: bool,
) -> None:
    """Create the log at the target, closed to every change but those of this promotion.

    Args:
        origin: The name that the records are bound to. At the target, logs of other origins may have had the
            log's name.
        keeps_chain: The log has a hash chain.

    Raises:
        LogExistsError: There is a log of this name.
    """
    operations: list[Operation] = []
    for ancestor in ancestors_of(paths.log_path(namespace_path, log)):
        if len(ancestor) > len(namespace_path) and await store.exists(ancestor) is None:
            operations.append(Create(ancestor))
    for path, data in initial_nodes(namespace_path, log):
        if path == paths.version_path(namespace_path, log):
            data = PROMOTED_FROM + record.source.encode("utf-8")
        elif path == paths.log_root_path(namespace_path, log):
            # The copies are ledgers of another log than the originals.
            data = encode_log_id(new_log_id(), keeps_chain=keeps_chain)
        if path != paths.log_path(namespace_path, log) or await store.exists(path) is None:
            operations.append(Create(path, data))
    operations += [
        Create(paths.promoted_from_path(namespace_path, log), encode_target(record)),
        Create(paths.origin_path(namespace_path, log), encode_origin(origin)),
    ]
    try:
        await store.commit(operations)
    except NodeExistsError as exc:
        raise LogExistsError(log) from exc
    except NoNodeError as exc:
        raise LogUnavailableError(
            f"log {log!r}: another client changed the nodes above it; try again"
        ) from exc


async def put_target(
    store: MetadataStore, namespace_path: str, log: str, seen: TargetRecord, phase: TargetPhase
) -> None:
    """Set the phase at the target, if the record is as the caller has seen it.

    Raises:
        PromotionError: Another process has changed it.
    """
    path = paths.promoted_from_path(namespace_path, log)
    try:
        await store.put(path, encode_target(attrs.evolve(seen, phase=phase)), expected=seen.node_version)
    except (BadVersionError, NoNodeError) as exc:
        raise _changed(log) from exc


async def add_segment(
    store: MetadataStore, metadata: LogMetadata, seen: TargetRecord, segment: LogSegment
) -> None:
    """Add a copied and compared segment to the log at the target; its ledger was the allocated one.

    Raises:
        PromotionError: Another process has changed the promotion.
    """
    place = metadata.namespace_path, metadata.log_name
    await _commit(
        store,
        metadata.log_name,
        [
            Check(paths.promoted_from_path(*place), seen.node_version),
            Put(paths.allocation_path(*place), b"", metadata.allocation_version),
            Create(paths.segment_path(*place, segment.name), encode_segment(segment)),
            Put(
                paths.segments_path(*place), b"%d" % segment.segment_seqno, metadata.max_segment_seqno_version
            ),
            Put(
                paths.max_txid_path(*place),
                b"%d" % max(metadata.max_txid, segment.last_txid),
                metadata.max_txid_version,
            ),
        ],
    )


async def set_marks(
    store: MetadataStore,
    namespace_path: str,
    log: str,
    seen: TargetRecord,
    changes: Sequence[tuple[LogSegment, LogSegment]],
) -> None:
    """Give segments at the target other truncation marks, from the first segment of each pair to the second.

    Raises:
        PromotionError: Another process has changed the promotion.
    """
    for start in range(0, len(changes), OPERATIONS_AT_ONCE):
        operations: list[Operation] = [
            Check(paths.promoted_from_path(namespace_path, log), seen.node_version)
        ]
        for before, after in changes[start : start + OPERATIONS_AT_ONCE]:
            operations += [
                Delete(paths.segment_path(namespace_path, log, before.name)),
                Create(paths.segment_path(namespace_path, log, after.name), encode_segment(after)),
            ]
        await _commit(store, log, operations)


async def activate(
    store: MetadataStore,
    namespace_path: str,
    log: str,
    seen: TargetRecord,
    extras: Sequence[tuple[str, bytes]],
    *,
    max_txid: int,
) -> None:
    """Open the log at the target. ``extras`` (paths below the log and their data) are there before.

    Raises:
        PromotionError: Another process has changed the promotion, such as one that undoes it.
    """
    log_path = paths.log_path(namespace_path, log)
    metadata = await open_log(store, namespace_path, log, for_promotion=True)
    here = Check(paths.promoted_from_path(namespace_path, log), seen.node_version)
    missing: list[Operation] = []
    for path, data in extras:
        stat = await store.exists(log_path + path)
        # A cursor that exists is not written again: a reader of the target may have moved it.
        if stat is None:
            missing.append(Create(log_path + path, data))
        elif not path.startswith(f"/{paths.UNPARTITIONED}/{paths.SUBSCRIBERS}"):
            missing.append(Put(log_path + path, data, stat.version))
    for start in range(0, len(missing), OPERATIONS_AT_ONCE):
        await _commit(store, log, [here, *missing[start : start + OPERATIONS_AT_ONCE]])
    await _commit(
        store,
        log,
        [
            Put(
                paths.promoted_from_path(namespace_path, log),
                encode_target(attrs.evolve(seen, phase=TargetPhase.ACTIVE)),
                seen.node_version,
            ),
            Put(paths.version_path(namespace_path, log), LAYOUT_VERSION, metadata.marks_version),
            Put(
                paths.max_txid_path(namespace_path, log),
                b"%d" % max(metadata.max_txid, max_txid),
                metadata.max_txid_version,
            ),
        ],
    )


async def extras_of(store: MetadataStore, namespace_path: str, log: str) -> list[tuple[str, bytes]]:
    """The other nodes of a log, with paths below the log: its own data, properties, retention, its cursors.

    Cursors are those that the hand-over took. Parents come first.
    """
    log_path = paths.log_path(namespace_path, log)
    root = paths.log_root_path(namespace_path, log)
    moved = paths.promoted_cursors_path(namespace_path, log)
    subscribers = paths.subscribers_path(namespace_path, log)
    known = {path for path, _ in initial_nodes(namespace_path, log)[1:]} | {
        paths.promoted_to_path(namespace_path, log),
        paths.promoted_from_path(namespace_path, log),
        paths.promotion_lock_path(namespace_path, log),
        paths.origin_path(namespace_path, log),
        subscribers,
    }
    found: list[tuple[str, str]] = [(log_path, log_path)]  # where it is, where its copy goes
    level = [f"{root}/{name}" for name in (await read_children(store, [root]))[0]]
    level = [path for path in level if path not in known]
    while level:
        found += [(path, path) for path in level]
        children = await read_children(store, level)
        level = [f"{parent}/{name}" for parent, names in zip(level, children, strict=True) for name in names]
    (cursors,) = await read_children(store, [moved])
    if cursors:
        found.append((subscribers, subscribers))
        found += [(f"{moved}/{name}", f"{subscribers}/{name}") for name in cursors]
    nodes = await read_nodes(store, [path for path, _ in found])
    return [
        (place.removeprefix(log_path), node.value)
        for path, place in found
        if (node := nodes[path]) is not None
    ]


async def _commit(store: MetadataStore, log: str, operations: Sequence[Operation]) -> None:
    try:
        await store.commit(operations)
    except (BadVersionError, NodeExistsError, NoNodeError) as exc:
        raise _changed(log) from exc


def _changed(log: str) -> PromotionError:
    return PromotionError(
        log,
        "another process has just changed its promotion; `dlog promote --status` shows it, --resume goes on",
    )
