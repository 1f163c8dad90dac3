"""The nodes of a log's segments: listing them, and each change of a segment as one transaction.

Inside: list segments; record an allocated ledger; start, complete, delete and mark a segment.
Not inside: a log's own nodes (``logs``), ledgers, locks, and the decision when to do what. A segment's ledger
is created before the node that names it and deleted before it.
Always: each transaction is conditional on the versions in ``LogMetadata``. Once another writer has changed
the log, a transaction changes nothing and raises ``LogFencedError``. After a ``ConnectionLostError`` the
transaction may or may not have been applied: read the log's nodes again before anything else.

Source: DistributedLog, ZKLogSegmentMetadataStore.java, BKLogWriteHandler.java.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import trio

from ledger.metadata_store.errors import BadVersionError, NodeExistsError, NoNodeError, StoreError
from ledger.metadata_store.store import Check, Create, Delete, MetadataStore, Node, Operation, Put
from namespace.errors import LogFencedError, LogMetadataError, LogNotFoundError
from namespace.heal_node import in_same_segment, read_heals
from namespace.log_metadata import LAYOUT_VERSION, LogMetadata, check_start_txid
from namespace.log_nodes import LogNodes
from namespace.node_reads import read_nodes
from namespace.segments.segment import LogSegment, decode_segment, encode_segment, is_segment_name
from namespace.segments.segment_list import check_no_gap, check_same_log, sort_segments


@attrs.frozen
class SegmentList:
    """A log's segments in order, as of one moment."""

    segments: tuple[LogSegment, ...]
    child_version: int  # of their parent; greater for a later list


async def list_segments(
    log: LogNodes,
    *,
    known: Sequence[LogSegment] = (),
    watch: trio.Event | None = None,
    gaps_ok: bool = False,
) -> SegmentList:
    """A log's segments in order; the watch fires when one is added, completed, marked or deleted.

    Args:
        known: Segments listed before. A completed one is not read again, so a change of its truncation is not
            seen. The exception: if no other segment that is read shows that this is still the same log, the
            newest known one is read.
        gaps_ok: List the segments although some are missing in between.

    Raises:
        LogNotFoundError: The log does not exist, or was deleted since.
        LogMetadataError: A segment's metadata does not parse. Or the known segments belong to another log of
            the same name: it was deleted and created again.
        SegmentGapError: A segment is missing between two others.
    """
    parent = log.segments_path
    completed = {segment.name: segment for segment in known if not segment.in_progress}
    ledgers = {segment.ledger_id for segment in known}
    while True:
        try:
            children = await log.store.children(parent, watch=watch)
        except NoNodeError:
            raise LogNotFoundError(log.name) from None
        names = [name for name in children.names if is_segment_name(name)]
        kept = [completed[name] for name in names if name in completed]
        read = await _read_segments(log.store, parent, [name for name in names if name not in completed])
        compared = read
        if read is not None and kept and ledgers.isdisjoint(segment.ledger_id for segment in read):
            # A log created again has nodes of the same names, but never the same ledgers.
            compared = await _read_segments(log.store, parent, [kept[-1].name])
            if compared and compared[0].ledger_id != kept[-1].ledger_id:
                number, ledger_id = kept[-1].segment_seqno, kept[-1].ledger_id
                heals = (await read_heals(log)).heals
                if in_same_segment(heals, number, ledger_id, compared[0].ledger_id):
                    compared = []  # the same log; the known segment can be read from both ledgers
        if read is None or compared is None:
            continue  # one was completed or deleted meanwhile, so this list lacks its replacement
        segments = sort_segments(kept + read)
        check_same_log(log.name, known, read + compared, segments)
        if not gaps_ok:
            check_no_gap(log.name, segments)
        return SegmentList(segments, children.child_version)


async def _read_segments(store: MetadataStore, parent: str, names: Sequence[str]) -> list[LogSegment] | None:
    """The segments of these names; None if one of them is gone."""
    nodes = await read_nodes(store, [f"{parent}/{name}" for name in names])
    found = []
    for name in names:
        node = nodes[f"{parent}/{name}"]
        if node is None:
            return None
        found.append(_decoded(f"{parent}/{name}", node, name))
    return found


def _decoded(path: str, node: Node, name: str | None = None) -> LogSegment:
    try:
        return decode_segment(node.value, name)
    except LogMetadataError as exc:
        raise LogMetadataError(f"{path}: {exc}; nothing was changed") from None


async def record_allocation(metadata: LogMetadata, ledger_id: int) -> LogMetadata:
    """Record a ledger created for the next segment. Without the record a crash would leak the ledger.

    Returns:
        The metadata for the next transaction.

    Raises:
        LogFencedError: Another writer has used the node; delete the ledger and stop.
    """
    path = metadata.log.allocation_path
    try:
        stat = await metadata.log.store.put(path, b"%d" % ledger_id, expected=metadata.allocation_version)
    except (BadVersionError, NoNodeError) as exc:
        raise _fenced(metadata, exc) from None
    return attrs.evolve(metadata, allocated_ledger_id=ledger_id, allocation_version=stat.version)


async def start_segment(
    metadata: LogMetadata,
    segment: LogSegment,
    *,
    sealing: bool = False,
    ledger: Create | None = None,
) -> LogMetadata:
    """Create the node of a segment in progress, and clear its ledger from the allocation.

    If cancelled, or if the connection is lost, it may or may not have happened.

    Args:
        ledger: The node of the segment's ledger, to be created in the same transaction. Then the allocation
            need not name the ledger.

    Returns:
        The metadata for the next transaction.

    Raises:
        ValueError, EndOfStreamError, TxidOutOfOrderError: The segment's first txid is not possible.
        LogFencedError: Another writer has started or completed a segment. Nothing was changed.
        ledger.metadata_store.errors.NodeExistsError, NoNodeError: About ``ledger``. Nothing was changed.
    """
    assert segment.in_progress, segment  # the caller has made or checked it
    check_start_txid(metadata, segment.first_txid, sealing=sealing)
    log = metadata.log
    await _commit(
        metadata,
        [
            *([] if ledger is None else [ledger]),
            Put(log.allocation_path, b"", metadata.allocation_version),
            Create(log.segment_path(segment.name), encode_segment(segment)),
            Put(
                log.segments_path,
                b"%d" % segment.segment_seqno,
                metadata.max_segment_seqno_version,
            ),
        ],
        foreign_path=None if ledger is None else ledger.path,
    )
    return attrs.evolve(
        metadata,
        allocated_ledger_id=None,
        allocation_version=metadata.allocation_version + 1,
        max_segment_seqno=segment.segment_seqno,
        max_segment_seqno_version=metadata.max_segment_seqno_version + 1,
    )


async def complete_segment(metadata: LogMetadata, segment: LogSegment, completed: LogSegment) -> LogMetadata:
    """Replace a segment in progress by the same segment completed. Its ledger is closed already.

    If cancelled, or if the connection is lost, it may or may not have happened.

    Returns:
        The metadata for the next transaction.

    Raises:
        LogFencedError: Another writer has completed it, or started another. Nothing was changed.
        LogMetadataError: The log's greatest segment number is neither this one's nor the next.
    """
    assert segment.in_progress, segment  # the caller has made or checked it
    assert not completed.in_progress, completed  # made by LogSegment.completed
    # LogSegment.completed keeps it
    assert segment.segment_seqno == completed.segment_seqno, (segment, completed)
    assert segment.ledger_id == completed.ledger_id, (segment, completed)  # LogSegment.completed keeps it
    max_seqno, seqno = metadata.max_segment_seqno, completed.segment_seqno
    if max_seqno not in (seqno, seqno + 1):
        raise LogMetadataError(
            f"log {metadata.log.name!r}: segment {seqno} not completed: the greatest segment number stored is"
            f" {max_seqno}; nothing was changed"
        )
    max_txid = max(metadata.max_txid, completed.last_txid)
    log = metadata.log
    await _commit(
        metadata,
        [
            Create(log.segment_path(completed.name), encode_segment(completed)),
            Delete(log.segment_path(segment.name)),
            # Written even if the number stays: the new version fails a transaction of a second writer.
            Put(log.segments_path, b"%d" % max_seqno, metadata.max_segment_seqno_version),
            Put(log.max_txid_path, b"%d" % max_txid, metadata.max_txid_version),
        ],
    )
    return attrs.evolve(
        metadata,
        max_segment_seqno_version=metadata.max_segment_seqno_version + 1,
        max_txid=max_txid,
        max_txid_version=metadata.max_txid_version + 1,
    )


async def delete_segment(log: LogNodes, segment: LogSegment) -> None:
    """Delete a segment's node. Its ledger is deleted already. A missing node is no error.

    If cancelled, the node may or may not be deleted.

    Raises:
        LogFencedError: The node names another ledger: the number of an empty segment was used again. Nothing
            was deleted.
    """
    parent = log.segments_path
    path = log.segment_path(segment.name)
    while True:
        try:
            version = (await log.store.get(parent)).stat.version
            node = await log.store.get(path)
            if _decoded(path, node).ledger_id != segment.ledger_id:
                raise LogFencedError(log.name, f"segment {segment.name} has another ledger now")
            # A node deleted and created again has version 0 again, so its own version proves nothing. But a
            # writer that creates a segment also writes the parent.
            await log.store.commit([Check(parent, version), Delete(path, node.stat.version)])
        except NoNodeError:
            return
        except BadVersionError:
            continue
        return


async def set_truncation(metadata: LogMetadata, segments: Sequence[LogSegment]) -> LogMetadata:
    """Replace completed segments by the same segments with other truncation marks, all at once.

    The nodes are deleted and created again, so that a watch on their parent fires. If cancelled, or if the
    connection is lost, all are marked or none.

    A segment's node has version 0 after each change, so it cannot show a change by another client. The node
    of the layout can: each change of marks writes it, with the data that it has. A writer does not depend on
    that node, so marks set by others do not stop it.

    Returns:
        The metadata for the next transaction.

    Raises:
        LogFencedError: Another client has changed the log or its marks, or has deleted a segment. Nothing was
            changed.
    """
    if not segments:
        return metadata
    log = metadata.log
    operations: list[Operation] = [
        Check(log.segments_path, metadata.max_segment_seqno_version),
        Put(log.version_path, LAYOUT_VERSION, metadata.marks_version),
    ]
    for segment in segments:
        assert not segment.in_progress, segment  # ``marked_before`` stops at one in progress
        path = log.segment_path(segment.name)
        operations += [Delete(path), Create(path, encode_segment(segment))]
    await _commit(metadata, operations)
    return attrs.evolve(metadata, marks_version=metadata.marks_version + 1)


async def replace_ledger(
    metadata: LogMetadata, segment: LogSegment, healed: LogSegment, note: Operation
) -> None:
    """Replace the ledger of a completed segment by a copy with the same entries.

    As in ``set_truncation``, the node is deleted and created again, and that of the layout is written. If
    cancelled, or if the connection is lost, it may or may not have happened.

    Args:
        note: Writes the heal node in the same transaction.

    Raises:
        LogFencedError: Another client has changed the log, its marks or the heals. Nothing was changed.
    """
    assert not segment.in_progress, segment  # a heal takes completed segments
    log = metadata.log
    path = log.segment_path(segment.name)
    await _commit(
        metadata,
        [
            Check(log.segments_path, metadata.max_segment_seqno_version),
            Put(log.version_path, LAYOUT_VERSION, metadata.marks_version),
            note,
            Delete(path),
            Create(path, encode_segment(healed)),
        ],
    )


async def _commit(
    metadata: LogMetadata,
    operations: Sequence[Operation],
    *,
    foreign_path: str | None = None,
) -> None:
    try:
        await metadata.log.store.commit(operations)
    except (BadVersionError, NodeExistsError, NoNodeError) as exc:
        if exc.path == foreign_path:  # no node of the log
            raise
        raise _fenced(metadata, exc) from None


def _fenced(metadata: LogMetadata, cause: StoreError) -> LogFencedError:
    return LogFencedError(metadata.log.name, str(cause))
