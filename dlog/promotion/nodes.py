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
from ledger.metadata_store.store import Check, Create, Delete, Operation, Put, ancestors_of
from namespace import log_nodes
from namespace.log_identity import encode_log_id, new_log_id
from namespace.log_metadata import (
    LAYOUT_VERSION,
    MOVE_LOCK_NODE,
    MOVED_FROM_NODE,
    MOVED_TO_NODE,
    PROMOTED_FROM,
    PROMOTED_TO,
    PURGED,
    LogMetadata,
    initial_nodes,
)
from namespace.log_nodes import LogNodes
from namespace.logs import open_log
from namespace.node_reads import read_children, read_nodes
from namespace.origin import encode_origin
from namespace.segments.segment import LogSegment, encode_segment

ATTEMPTS_MAX = 100  # to hand over; each is lost to a cursor or a roll in the same moment
OPERATIONS_AT_ONCE = 500  # in one transaction; ZooKeeper takes at most 1 MiB


def moved_to_path(log: LogNodes) -> str:
    """Where the log is being moved or was moved (``record``)."""
    return f"{log.root_path}/{MOVED_TO_NODE}"


def move_lock_path(log: LogNodes) -> str:
    """The lock of the process that moves the log."""
    return f"{log.root_path}/{MOVE_LOCK_NODE}"


def moved_cursors_path(log: LogNodes) -> str:
    """The parent of the cursors that the hand-over took from ``subscribers``."""
    return f"{moved_to_path(log)}/cursors"


def moved_from_path(log: LogNodes) -> str:
    """Where the log comes from, if it was promoted."""
    return f"{log.root_path}/{MOVED_FROM_NODE}"


async def read_source(log: LogNodes, *, watch: trio.Event | None = None) -> SourceRecord | None:
    """The record of the log that is or was moved; None if it has none. The watch fires when it changes.

    Raises:
        LogMetadataError: It does not parse.
    """
    path = moved_to_path(log)
    if await log.store.exists(path, watch=watch) is None:
        return None
    try:
        node = await log.store.get(path)
    except NoNodeError:
        return None
    return decode_source(node.value, node.stat.version, path)


async def read_target(log: LogNodes) -> TargetRecord | None:
    """The record of the log that is made of copies; None if it has none.

    Raises:
        LogMetadataError: It does not parse.
    """
    path = moved_from_path(log)
    await log.store.sync(path)
    try:
        node = await log.store.get(path)
    except NoNodeError:
        return None
    return decode_target(node.value, node.stat.version, path)


async def begin(log: LogNodes, record: SourceRecord) -> None:
    """Write the first record of a promotion at the source.

    Raises:
        LogNotFoundError: There is no such log.
        PromotionError: Another process has begun a promotion of it.
    """
    try:
        await log.store.commit(
            [
                Create(moved_to_path(log), encode_source(record)),
                Create(moved_cursors_path(log)),
            ]
        )
    except NoNodeError as exc:
        raise LogNotFoundError(log.name) from exc
    except NodeExistsError as exc:
        raise _changed(log.name) from exc


async def put_source(log: LogNodes, seen: SourceRecord, wanted: SourceRecord) -> None:
    """Replace the record at the source, if it is as the caller has seen it.

    Raises:
        PromotionError: Another process has changed it.
    """
    path = moved_to_path(log)
    try:
        await log.store.put(path, encode_source(wanted), expected=seen.node_version)
    except (BadVersionError, NoNodeError) as exc:
        raise _changed(log.name) from exc


async def mark_purged(log: LogNodes, seen: SourceRecord) -> None:
    """Note that the segments at the source are being deleted. A writer that still has records in flight in
    one of them must not take a deleted ledger for an empty one.

    Raises:
        PromotionError: Another process has changed the promotion.
    """
    await _commit(
        log,
        [
            Put(
                moved_to_path(log),
                encode_source(attrs.evolve(seen, is_purged=True)),
                seen.node_version,
            ),
            Put(log.version_path, PURGED + seen.target.encode("utf-8")),
        ],
    )


async def hand_over(log: LogNodes, seen: SourceRecord) -> None:
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
        log.subscribers_path,
        moved_cursors_path(log),
    )
    for _ in range(ATTEMPTS_MAX):
        metadata = await open_log(log)
        (names,) = await read_children(log.store, [parent])
        cursors = await read_nodes(log.store, [f"{parent}/{name}" for name in names])
        operations: list[Operation] = [
            Put(moved_to_path(log), encode_source(closed), seen.node_version),
            Put(
                log.version_path,
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
            await log.store.commit(operations)
        except (BadVersionError, NoNodeError, NodeExistsError) as exc:
            now = await read_source(log)
            if now is None or now.node_version != seen.node_version:
                raise _changed(log.name) from exc
            continue
        return
    raise LogUnavailableError(
        f"log {log.name!r}: not handed over, because its writer or its cursors changed it"
        f" {ATTEMPTS_MAX} times in that moment; try again"
    )


def _rewritten(metadata: LogMetadata) -> list[Operation]:
    """The nodes of a writer with the same data and the next version: what it prepared before fails."""
    log = metadata.log
    allocated = metadata.allocated_ledger_id
    return [
        Put(
            log.segments_path,
            b"%d" % metadata.max_segment_seqno,
            metadata.max_segment_seqno_version,
        ),
        Put(log.max_txid_path, b"%d" % metadata.max_txid, metadata.max_txid_version),
        Put(
            log.allocation_path,
            b"" if allocated is None else b"%d" % allocated,
            metadata.allocation_version,
        ),
    ]


async def reopen_source(log: LogNodes, seen: SourceRecord) -> None:
    """Let the log take records at the source again; the target can no longer become active.

    Raises:
        PromotionError: Another process has changed the promotion.
    """
    reopened = attrs.evolve(seen, phase=SourcePhase.UNDOING)
    operations: list[Operation] = [Put(moved_to_path(log), encode_source(reopened), seen.node_version)]
    if seen.phase is SourcePhase.HANDED_OVER:
        operations.append(Put(log.version_path, LAYOUT_VERSION))
        moved = moved_cursors_path(log)
        (names,) = await read_children(log.store, [moved])
        for name, node in zip(
            names, (await read_nodes(log.store, [f"{moved}/{name}" for name in names])).values(), strict=True
        ):
            if node is None:
                raise LogMetadataError(f"{moved}/{name}: it was deleted while the promotion's lock was held")
            operations += [
                Create(log.subscriber_path(name), node.value),
                Delete(f"{moved}/{name}"),
            ]
    await _commit(log, operations)


async def forget(log: LogNodes, seen: SourceRecord) -> None:
    """Delete the record at the source.

    Raises:
        PromotionError: Another process has changed the promotion.
    """
    await _commit(
        log,
        [
            Delete(moved_cursors_path(log)),
            Delete(moved_to_path(log), seen.node_version),
        ],
    )


# The target.


async def create_target(
    log: LogNodes,
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
    for ancestor in ancestors_of(log.log_path):
        if len(ancestor) > len(log.namespace_path) and await log.store.exists(ancestor) is None:
            operations.append(Create(ancestor))
    for path, data in initial_nodes(log):
        if path == log.version_path:
            data = PROMOTED_FROM + record.source.encode("utf-8")
        elif path == log.root_path:
            # The copies are ledgers of another log than the originals.
            data = encode_log_id(new_log_id(), keeps_chain=keeps_chain)
        if path != log.log_path or await log.store.exists(path) is None:
            operations.append(Create(path, data))
    operations += [
        Create(moved_from_path(log), encode_target(record)),
        Create(log.origin_path, encode_origin(origin)),
    ]
    try:
        await log.store.commit(operations)
    except NodeExistsError as exc:
        raise LogExistsError(log.name) from exc
    except NoNodeError as exc:
        raise LogUnavailableError(
            f"log {log.name!r}: another client changed the nodes above it; try again"
        ) from exc


async def put_target(log: LogNodes, seen: TargetRecord, phase: TargetPhase) -> None:
    """Set the phase at the target, if the record is as the caller has seen it.

    Raises:
        PromotionError: Another process has changed it.
    """
    path = moved_from_path(log)
    try:
        await log.store.put(path, encode_target(attrs.evolve(seen, phase=phase)), expected=seen.node_version)
    except (BadVersionError, NoNodeError) as exc:
        raise _changed(log.name) from exc


async def add_segment(metadata: LogMetadata, seen: TargetRecord, segment: LogSegment) -> None:
    """Add a copied and compared segment to the log at the target; its ledger was the allocated one.

    Raises:
        PromotionError: Another process has changed the promotion.
    """
    log = metadata.log
    await _commit(
        log,
        [
            Check(moved_from_path(log), seen.node_version),
            Put(log.allocation_path, b"", metadata.allocation_version),
            Create(log.segment_path(segment.name), encode_segment(segment)),
            Put(log.segments_path, b"%d" % segment.segment_seqno, metadata.max_segment_seqno_version),
            Put(
                log.max_txid_path,
                b"%d" % max(metadata.max_txid, segment.last_txid),
                metadata.max_txid_version,
            ),
        ],
    )


async def set_marks(
    log: LogNodes,
    seen: TargetRecord,
    changes: Sequence[tuple[LogSegment, LogSegment]],
) -> None:
    """Give segments at the target other truncation marks, from the first segment of each pair to the second.

    Raises:
        PromotionError: Another process has changed the promotion.
    """
    for start in range(0, len(changes), OPERATIONS_AT_ONCE):
        operations: list[Operation] = [Check(moved_from_path(log), seen.node_version)]
        for before, after in changes[start : start + OPERATIONS_AT_ONCE]:
            operations += [
                Delete(log.segment_path(before.name)),
                Create(log.segment_path(after.name), encode_segment(after)),
            ]
        await _commit(log, operations)


async def activate(
    log: LogNodes,
    seen: TargetRecord,
    extras: Sequence[tuple[str, bytes]],
    *,
    max_txid: int,
) -> None:
    """Open the log at the target. ``extras`` (paths below the log and their data) are there before.

    Raises:
        PromotionError: Another process has changed the promotion, such as one that undoes it.
    """
    log_path = log.log_path
    metadata = await open_log(log, closed_too=True)
    here = Check(moved_from_path(log), seen.node_version)
    missing: list[Operation] = []
    for path, data in extras:
        stat = await log.store.exists(log_path + path)
        # A cursor that exists is not written again: a reader of the target may have moved it.
        if stat is None:
            missing.append(Create(log_path + path, data))
        elif not path.startswith(f"/{log_nodes.UNPARTITIONED}/{log_nodes.SUBSCRIBERS}"):
            missing.append(Put(log_path + path, data, stat.version))
    for start in range(0, len(missing), OPERATIONS_AT_ONCE):
        await _commit(log, [here, *missing[start : start + OPERATIONS_AT_ONCE]])
    await _commit(
        log,
        [
            Put(
                moved_from_path(log),
                encode_target(attrs.evolve(seen, phase=TargetPhase.ACTIVE)),
                seen.node_version,
            ),
            Put(log.version_path, LAYOUT_VERSION, metadata.marks_version),
            Put(
                log.max_txid_path,
                b"%d" % max(metadata.max_txid, max_txid),
                metadata.max_txid_version,
            ),
        ],
    )


async def extras_of(log: LogNodes) -> list[tuple[str, bytes]]:
    """The other nodes of a log, with paths below the log: its own data, properties, retention, its cursors.

    Cursors are those that the hand-over took. Parents come first.
    """
    log_path = log.log_path
    root = log.root_path
    moved = moved_cursors_path(log)
    subscribers = log.subscribers_path
    known = {path for path, _ in initial_nodes(log)[1:]} | {
        moved_to_path(log),
        moved_from_path(log),
        move_lock_path(log),
        log.origin_path,
        subscribers,
    }
    found: list[tuple[str, str]] = [(log_path, log_path)]  # where it is, where its copy goes
    level = [f"{root}/{name}" for name in (await read_children(log.store, [root]))[0]]
    level = [path for path in level if path not in known]
    while level:
        found += [(path, path) for path in level]
        children = await read_children(log.store, level)
        level = [f"{parent}/{name}" for parent, names in zip(level, children, strict=True) for name in names]
    (cursors,) = await read_children(log.store, [moved])
    if cursors:
        found.append((subscribers, subscribers))
        found += [(f"{moved}/{name}", f"{subscribers}/{name}") for name in cursors]
    nodes = await read_nodes(log.store, [path for path, _ in found])
    return [
        (place.removeprefix(log_path), node.value)
        for path, place in found
        if (node := nodes[path]) is not None
    ]


async def _commit(log: LogNodes, operations: Sequence[Operation]) -> None:
    try:
        await log.store.commit(operations)
    except (BadVersionError, NodeExistsError, NoNodeError) as exc:
        raise _changed(log.name) from exc


def _changed(log: str) -> PromotionError:
    return PromotionError(
        log,
        "another process has just changed its promotion; `dlog promote --status` shows it, --resume goes on",
    )
