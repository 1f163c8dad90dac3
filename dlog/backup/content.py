"""What the nodes of a namespace say: which logs there are, and which ledgers their segments and blobs name.

Inside: paths and data of nodes to values. Not inside: reading nodes (``source``).

Source: our own; docs/metadata.md 16.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable

import attrs

from dlog.backup.format import BackupManifest
from ledger.metadata import LedgerMetadata
from namespace.blob_nodes import BLOBS_NODE, ledgers_in_node
from namespace.log_nodes import UNPARTITIONED
from namespace.segments.segment import LogSegment, decode_segment, is_segment_name

_LOG = f"/{UNPARTITIONED}/ledgers"
_SEGMENTS = f"{_LOG}/"


def logs_in(manifest: BackupManifest) -> list[str]:
    """The names of the logs in a manifest, sorted."""
    return sorted(path.removesuffix(_LOG) for path in manifest.nodes if path.endswith(_LOG))


@attrs.frozen
class NamedSegment:
    """A segment that the nodes of a namespace name."""

    log: str
    segment: LogSegment


def segments_in(nodes: Iterable[tuple[str, bytes]]) -> list[NamedSegment]:
    """The segments that the nodes of a namespace name, by log and number.

    Args:
        nodes: Paths below the namespace, with data.

    Raises:
        LogMetadataError: One does not parse.
    """
    found = []
    for path, value in nodes:
        log, is_segment, name = path.partition(_SEGMENTS)
        if is_segment and is_segment_name(name):
            found.append(NamedSegment(log, decode_segment(value, name)))
    return sorted(
        found, key=lambda each: (each.log, each.segment.segment_seqno, not each.segment.in_progress)
    )


def blobs_in(nodes: Iterable[tuple[str, bytes]]) -> dict[int, str]:
    """The ledgers of blobs that the nodes of a namespace name, with the name of the node.

    Raises:
        LogMetadataError: One does not parse.
    """
    named = ((path, ledgers_in_node(f"/{path}", value)) for path, value in nodes)
    return {ledger_id: path for path, found in named for ledger_id in found or ()}


def is_upload(path: str) -> bool:
    """True for a node of blobs that belongs to no blob. A backup does not have it, nor its ledgers."""
    return path.startswith((f"{BLOBS_NODE}/uploads/", f"{BLOBS_NODE}/owners/"))


def log_of(path: str) -> str | None:
    """The log of a node, by its path below the namespace; None if it belongs to no log."""
    log, is_log, rest = path.partition(f"/{UNPARTITIONED}")
    return log if is_log and (not rest or rest.startswith("/")) else None


def belongs_to(path: str, logs: Collection[str]) -> bool:
    """True for a node of one of the logs, one above it, or one of the namespace itself; not for a blob."""
    log = log_of(path)
    if log is not None:
        return log in logs
    is_blob = f"{path}/".startswith(f"{BLOBS_NODE}/")
    return (path.startswith(".") and not is_blob) or any(f"{each}/".startswith(f"{path}/") for each in logs)


def identity_of(metadata: LedgerMetadata) -> str:
    """What tells a ledger from another one of the same id, such as one of a copy of its directory."""
    made = [
        str(metadata.ctime_ms).encode(),
        metadata.digest_type.value.encode(),
        metadata.password or b"",
        *(each for name, value in sorted(metadata.custom.items()) for each in (name.encode(), value)),
    ]
    return hashlib.sha256(b"".join(len(each).to_bytes(4, "big") + each for each in made)).hexdigest()[:32]
