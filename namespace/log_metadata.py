"""A log's own nodes: what they hold, and what must be remembered of them to write conditionally.

Inside: the initial data of a log's nodes, reading them into a ``LogMetadata``, and the rules a new segment
must obey. Not inside: the store (``logs``).
Always: a ``LogMetadata`` holds each value together with the version at which it was read or written, so a
transaction built from it fails once anybody else has written.

Source: DistributedLog, LogMetadataForWriter.java, ZKLogStreamMetadataStore.java, MaxTxId.java,
MaxLogSegmentSequenceNo.java.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import attrs

from namespace import paths
from namespace.errors import LogMetadataError, LogNotFoundError, LogSealedError, TxidOutOfOrderError
from namespace.segment import (
    FIRST_SEGMENT_SEQNO,
    INVALID_TXID,
    MAX_TXID,
    UNASSIGNED_SEGMENT_SEQNO,
    LogSegment,
)
from namespace.store import Node

LAYOUT_VERSION = b"\xff\xff\xff\xff"  # -1; there never was another
INITIAL_MAX_TXID = b"0"
INITIAL_MAX_SEQNO = b"0"
_DECIMAL = re.compile(rb"-?[0-9]{1,19}")


@attrs.frozen(kw_only=True)
class LogMetadata:
    """What a writer remembers of its log's nodes. New versions follow each transaction."""

    namespace_path: str
    log_name: str
    max_txid: int  # greatest transaction id of completed segments; MAX_TXID once sealed
    max_txid_version: int
    max_segment_seqno: int
    max_segment_seqno_version: int
    allocated_ledger_id: int | None  # created for a segment and not used: a previous owner's left-over
    allocation_version: int

    @property
    def sealed(self) -> bool:
        """Whether the end-of-stream record is in a completed segment."""
        return self.max_txid == MAX_TXID


def initial_nodes(namespace_path: str, log_name: str) -> list[tuple[str, bytes]]:
    """The nodes of a log with their first data, in the order in which they are created."""
    return [
        (paths.log_path(namespace_path, log_name), b""),
        (paths.log_root_path(namespace_path, log_name), b""),
        (paths.max_txid_path(namespace_path, log_name), INITIAL_MAX_TXID),
        (paths.version_path(namespace_path, log_name), LAYOUT_VERSION),
        (paths.lock_path(namespace_path, log_name), b""),
        (paths.read_lock_path(namespace_path, log_name), b""),
        (paths.segments_path(namespace_path, log_name), INITIAL_MAX_SEQNO),
        (paths.allocation_path(namespace_path, log_name), b""),
    ]


def log_metadata_from(namespace_path: str, log_name: str, nodes: Mapping[str, Node | None]) -> LogMetadata:
    """Read a log's nodes.

    Args:
        nodes: By path; all of ``initial_nodes``.

    Raises:
        LogNotFoundError: One of them is missing.
        LogMetadataError: One of them holds what it cannot.
    """
    found: dict[str, Node] = {}
    for path, _ in initial_nodes(namespace_path, log_name):
        node = nodes[path]
        if node is None:
            raise LogNotFoundError(log_name, f"does not exist or has been deleted (no node {path})")
        found[path] = node
    version = found[paths.version_path(namespace_path, log_name)]
    if version.value != LAYOUT_VERSION:
        raise LogMetadataError(log_name, f"layout version {version.value.hex() or 'empty'} is not ffffffff")
    segments = found[paths.segments_path(namespace_path, log_name)]
    max_seqno = _decimal(segments.value)
    if max_seqno is None:
        raise LogMetadataError(log_name, f"greatest segment number {segments.value[:40]!r} is not a number")
    max_txid = found[paths.max_txid_path(namespace_path, log_name)]
    allocation = found[paths.allocation_path(namespace_path, log_name)]
    ledger_id = _decimal(allocation.value)
    if allocation.value and ledger_id is None:
        raise LogMetadataError(log_name, f"allocated ledger {allocation.value[:40]!r} is not a number")
    parsed_txid = _decimal(max_txid.value)
    return LogMetadata(
        namespace_path=namespace_path,
        log_name=log_name,
        # Java reads on over a number it cannot parse, and so must whoever shares a log with it.
        max_txid=INVALID_TXID if parsed_txid is None else parsed_txid,
        max_txid_version=max_txid.stat.version,
        max_segment_seqno=max_seqno,
        max_segment_seqno_version=segments.stat.version,
        allocated_ledger_id=ledger_id,
        allocation_version=allocation.stat.version,
    )


def check_start_txid(metadata: LogMetadata, txid: int, *, sealing: bool = False) -> None:
    """Raise unless a segment may start with the transaction id.

    Args:
        sealing: The segment is started for the end-of-stream record, whose id is ``MAX_TXID``.

    Raises:
        ValueError: Not a transaction id for an application's record.
        LogSealedError, TxidOutOfOrderError
    """
    if not 0 <= txid < MAX_TXID and not (sealing and txid == MAX_TXID):
        raise ValueError(f"log {metadata.log_name!r}: invalid transaction id {txid}")
    if txid < metadata.max_txid:
        if metadata.sealed:
            raise LogSealedError(metadata.log_name)
        raise TxidOutOfOrderError(metadata.log_name, txid, metadata.max_txid)


def next_segment_seqno(
    metadata: LogMetadata, segments: Sequence[LogSegment], *, first_seqno: int = FIRST_SEGMENT_SEQNO
) -> int:
    """The sequence number of the segment to start now.

    Args:
        segments: All of the log's, in order; recovery has finished.
        first_seqno: Of a new log, as the namespace's binding says.

    Raises:
        LogMetadataError: The numbers stored contradict each other; a segment may have been lost.
    """
    stored = metadata.max_segment_seqno
    following = segments[-1].segment_seqno + 1 if segments else first_seqno
    # The stored number may be the next one's already: recovery deletes an empty segment and its number
    # is used again.
    if (not segments and stored == UNASSIGNED_SEGMENT_SEQNO) or stored in (following - 1, following):
        return following
    raise LogMetadataError(
        metadata.log_name,
        f"greatest segment number stored is {stored}, but the next segment would be {following}",
    )


def _decimal(data: bytes) -> int | None:
    if not _DECIMAL.fullmatch(data) or not -(2**63) <= (number := int(data)) < 2**63:
        return None
    return number
