"""The values of a log's own nodes, with the versions that conditional writes need.

Inside: the initial data of a log's nodes, reading them into a ``LogMetadata``, the rules for a new segment.
Not inside: the store (``logs``).
Always: a ``LogMetadata`` holds each value with the version at which it was read or written. So a transaction
built from it fails once another client has written.

Source: DistributedLog, LogMetadataForWriter.java, ZKLogStreamMetadataStore.java, MaxTxId.java,
MaxLogSegmentSequenceNo.java.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import attrs

from ledger.metadata_store.store import Node
from namespace.errors import (
    EndOfStreamError,
    InvalidUriError,
    LogMetadataError,
    LogMovedError,
    LogNotFoundError,
    PromotionError,
    TxidOutOfOrderError,
)
from namespace.log_identity import keeps_chain_in, log_id_in
from namespace.log_nodes import LogNodes
from namespace.namespace_uri import parse_namespace_uri
from namespace.segments.segment import (
    FIRST_SEGMENT_SEQNO,
    INVALID_TXID,
    MAX_TXID,
    UNASSIGNED_SEGMENT_SEQNO,
    LogSegment,
)

LAYOUT_VERSION = b"\xff\xff\xff\xff"  # -1, the only version
# Below the root of a log that is promoted (docs/promotion.md), or was: where to, where from, who does it.
MOVED_TO_NODE, MOVED_FROM_NODE = "dlog-promoted-to", "dlog-promoted-from"
MOVE_LOCK_NODE = "dlog-promotion-lock"
# In place of the version, with a URI after it: no program changes such a log (docs/promotion.md). Each
# program reads this node before a change, also one that knows nothing of promotions.
PROMOTED_TO = b"\xff\xff\xff\xfe"
PROMOTED_FROM = b"\xff\xff\xff\xfd"
PURGED = b"\xff\xff\xff\xfc"  # as PROMOTED_TO; the segments here are being deleted, or are deleted
INITIAL_MAX_TXID = b"0"
INITIAL_MAX_SEQNO = b"0"
ALLOCATION_KEY = "dlog.allocation"
_DECIMAL = re.compile(rb"-?[0-9]{1,19}")
_STAMP = re.compile(rb"([0-9]{1,19}):([0-9]{1,10})")


@attrs.frozen(kw_only=True)
class LogMetadata:
    """The values of a log's nodes, as a writer knows them. Each transaction returns the next one."""

    log: LogNodes
    max_txid: int  # greatest transaction id of completed segments; MAX_TXID once sealed
    max_txid_version: int
    max_segment_seqno: int
    max_segment_seqno_version: int
    allocated_ledger_id: int | None  # created for a segment and not used yet; perhaps by an earlier writer
    allocation_version: int
    marks_version: int  # of the layout's node: it is written, unchanged, with each change of marks
    allocation_created_ms: int = attrs.field(default=0, eq=False)  # another log of this name has another
    log_id: str | None = attrs.field(
        default=None, eq=False
    )  # None: it has no identity yet (``log_identity``)
    keeps_chain: bool = attrs.field(default=False, eq=False)  # every writer continues with its hash chain

    @property
    def allocation_stamp(self) -> dict[str, bytes]:
        """Custom metadata of a ledger: the state of ``allocation`` that its creator will register it over.

        Once the node has a greater version, the ledger can never get into the log (docs/metadata.md 16.13).
        """
        return {ALLOCATION_KEY: b"%d:%d" % (self.allocation_created_ms, self.allocation_version)}

    @property
    def sealed(self) -> bool:
        """True if a completed segment holds the end-of-stream record."""
        return self.max_txid == MAX_TXID


def initial_nodes(log: LogNodes) -> list[tuple[str, bytes]]:
    """The nodes of a new log with their data, in the order of their creation."""
    return [
        (log.log_path, b""),
        (log.root_path, b""),
        (log.max_txid_path, INITIAL_MAX_TXID),
        (log.version_path, LAYOUT_VERSION),
        (log.lock_path, b""),
        (log.read_lock_path, b""),
        (log.segments_path, INITIAL_MAX_SEQNO),
        (log.allocation_path, b""),
    ]


def log_metadata_from(
    log: LogNodes, nodes: Mapping[str, Node | None], *, closed_too: bool = False
) -> LogMetadata:
    """Read a log's nodes.

    Args:
        nodes: By path; all paths of ``initial_nodes``.
        closed_too: Also if a promotion has closed the log to all other changes.

    Raises:
        LogNotFoundError: A node is missing.
        LogMetadataError: A node holds invalid data.
        LogMovedError: The log is in another namespace now.
        PromotionError: The log is being copied here.
    """
    found: dict[str, Node] = {}
    for path, _ in initial_nodes(log):
        node = nodes[path]
        if node is None:
            raise LogNotFoundError(log.name, f"there is no node {path}")
        found[path] = node
    version = found[log.version_path]
    closed = closed_by_move(log.name, version.value)
    if closed is not None and not closed_too:
        raise closed
    if version.value != LAYOUT_VERSION and closed is None:
        raise _damaged(log.name, f"layout version {version.value.hex() or 'empty'} is not ffffffff")
    segments = found[log.segments_path]
    max_seqno = _decimal(segments.value)
    if max_seqno is None:
        raise _damaged(log.name, f"greatest segment number {segments.value[:40]!r} is not a number")
    max_txid = found[log.max_txid_path]
    allocation = found[log.allocation_path]
    ledger_id = ledger_in_allocation(allocation.value)
    if allocation.value and ledger_id is None:
        raise _damaged(log.name, f"allocated ledger {allocation.value[:40]!r} is not a number")
    parsed_txid = _decimal(max_txid.value)
    root = found[log.root_path].value
    return LogMetadata(
        log=log,
        # Java ignores a number that it cannot parse. So this reader must ignore it, too.
        max_txid=INVALID_TXID if parsed_txid is None else parsed_txid,
        max_txid_version=max_txid.stat.version,
        max_segment_seqno=max_seqno,
        max_segment_seqno_version=segments.stat.version,
        allocated_ledger_id=ledger_id,
        allocation_version=allocation.stat.version,
        marks_version=version.stat.version,
        allocation_created_ms=allocation.stat.created_ms,
        log_id=log_id_in(root),
        keeps_chain=keeps_chain_in(root),
    )


def ledger_in_allocation(data: bytes) -> int | None:
    """The ledger that the data of an ``allocation`` node name; None if they name none."""
    return _decimal(data)


def allocation_stamp_of(custom: Mapping[str, bytes]) -> tuple[int, int] | None:
    """(creation in epoch ms, version) of the ``allocation`` node in a stamp; None without a valid one."""
    found = _STAMP.fullmatch(custom.get(ALLOCATION_KEY, b""))
    return None if found is None else (int(found[1]), int(found[2]))


def check_start_txid(metadata: LogMetadata, txid: int, *, sealing: bool = False) -> None:
    """Raise unless a segment may start with the transaction id.

    Args:
        sealing: The segment is for the end-of-stream record, whose id is ``MAX_TXID``.

    Raises:
        ValueError: An application's record cannot have this id.
        EndOfStreamError: The log is sealed.
        TxidOutOfOrderError: A completed segment holds a greater id.
    """
    if not 0 <= txid < MAX_TXID and not (sealing and txid == MAX_TXID):
        raise ValueError(f"log {metadata.log.name!r}: invalid transaction id {txid}")
    if txid < metadata.max_txid:
        if metadata.sealed:
            raise EndOfStreamError(metadata.log.name)
        raise TxidOutOfOrderError(metadata.log.name, txid, metadata.max_txid)


def next_segment_seqno(
    metadata: LogMetadata, segments: Sequence[LogSegment], *, first_seqno: int = FIRST_SEGMENT_SEQNO
) -> int:
    """The sequence number of the next segment.

    Args:
        segments: All segments of the log, in order, after the recovery.
        first_seqno: The number of a new log's first segment, from the namespace's binding.

    Raises:
        LogMetadataError: The stored numbers contradict each other; a segment may be lost.
    """
    stored = metadata.max_segment_seqno
    following = segments[-1].segment_seqno + 1 if segments else first_seqno
    # The stored number may be that of the next segment already: a recovery deletes an empty segment, and its
    # number is used again.
    if (not segments and stored == UNASSIGNED_SEGMENT_SEQNO) or stored in (following - 1, following):
        return following
    raise _damaged(
        metadata.log.name,
        f"greatest segment number stored is {stored}, but the next segment would be {following}",
    )


def closed_by_move(log_name: str, layout: bytes) -> LogMovedError | PromotionError | LogMetadataError | None:
    """The error of a change of a log that a promotion has closed; None if it has not.

    Args:
        layout: The data of the log's layout node.
    """
    kind, uri = layout[: len(LAYOUT_VERSION)], layout[len(LAYOUT_VERSION) :].decode("utf-8", "replace")
    if kind not in (PROMOTED_TO, PURGED, PROMOTED_FROM):
        return None
    try:
        parse_namespace_uri(uri)
    except InvalidUriError as exc:
        return _damaged(log_name, f"its layout node says that it was promoted, but names no namespace: {exc}")
    if kind in (PROMOTED_TO, PURGED):
        return LogMovedError(log_name, uri, is_purged=kind == PURGED)
    return PromotionError(
        log_name,
        f"it is being promoted from {uri} and takes no change here before the hand-over. `dlog promote"
        f" {uri} --log {log_name} --resume` continues, `--undo` instead gives up",
    )


def _damaged(log_name: str, evidence: str) -> LogMetadataError:
    return LogMetadataError(f"log {log_name!r}: {evidence}; nothing was changed")


def _decimal(data: bytes) -> int | None:
    if not _DECIMAL.fullmatch(data) or not -(2**63) <= (number := int(data)) < 2**63:
        return None
    return number
