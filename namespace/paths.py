"""The paths of a log's nodes: one function for each.

Inside: paths only. Not inside: reading and writing nodes (``logs``, ``segment_nodes``), the names of segments
(``segment``).
Always: the caller has checked the arguments (``namespace_uri``, ``log_name``).

Source: DistributedLog, LogMetadata.java, LogMetadataForReader.java, LogMetadataForWriter.java.
"""

from __future__ import annotations

from urllib.parse import quote

from ledger.policy import POLICY_NODE

# Logs once could have several partitions. Every log has this one; its name is part of the format.
UNPARTITIONED = "<default>"
LOCK = "lock"
READ_LOCK = "readLock"
SUBSCRIBERS = "subscribers"
ORIGIN = "dlog-origin"
RENAMED_NODE = ".dlog-renamed"


def policy_path(namespace_path: str) -> str:
    """The policy of the namespace. No log has this name: those with a dot are reserved."""
    return f"{namespace_path}/{POLICY_NODE}"


def renamed_path(namespace_path: str, log_name: str | None = None) -> str:
    """A name that logs once had (``origin``); without one, the parent of all such names. Ours."""
    parent = f"{namespace_path}/{RENAMED_NODE}"
    return parent if log_name is None else f"{parent}/{quote(log_name, safe='')}"


def log_path(namespace_path: str, log_name: str) -> str:
    """The log's own node. Its data belongs to the application."""
    return f"{namespace_path}/{log_name}"


def log_root_path(namespace_path: str, log_name: str) -> str:
    """The parent of all other nodes of the log."""
    return f"{namespace_path}/{log_name}/{UNPARTITIONED}"


def max_txid_path(namespace_path: str, log_name: str) -> str:
    """The greatest transaction id of completed segments, in decimal."""
    return f"{log_root_path(namespace_path, log_name)}/maxtxid"


def version_path(namespace_path: str, log_name: str) -> str:
    """The layout version: four bytes, -1."""
    return f"{log_root_path(namespace_path, log_name)}/version"


def lock_path(namespace_path: str, log_name: str) -> str:
    """The writers' lock."""
    return f"{log_root_path(namespace_path, log_name)}/{LOCK}"


def read_lock_path(namespace_path: str, log_name: str) -> str:
    """The lock of readers without a subscriber id."""
    return f"{log_root_path(namespace_path, log_name)}/{READ_LOCK}"


def segments_path(namespace_path: str, log_name: str) -> str:
    """The parent of the log segments' nodes; its data is the greatest sequence number, in decimal."""
    return f"{log_root_path(namespace_path, log_name)}/ledgers"


def segment_path(namespace_path: str, log_name: str, segment_name: str) -> str:
    """One log segment."""
    return f"{segments_path(namespace_path, log_name)}/{segment_name}"


def allocation_path(namespace_path: str, log_name: str) -> str:
    """The id of a ledger created for the next segment and not used yet, in decimal; else empty."""
    return f"{log_root_path(namespace_path, log_name)}/allocation"


def retention_path(namespace_path: str, log_name: str) -> str:
    """How long records are kept (``retention``). Ours: Apache's programs do not know it."""
    return f"{log_root_path(namespace_path, log_name)}/dlog-retention"


def heal_path(namespace_path: str, log_name: str) -> str:
    """Which ledgers of segments were replaced by copies (``heal_node``). Ours."""
    return f"{log_root_path(namespace_path, log_name)}/dlog-heal"


def promoted_to_path(namespace_path: str, log_name: str) -> str:
    """Where the log is being moved or was moved (``dlog.promotion.record``). Ours."""
    return f"{log_root_path(namespace_path, log_name)}/dlog-promoted-to"


def promotion_lock_path(namespace_path: str, log_name: str) -> str:
    """The lock of the process that moves the log."""
    return f"{log_root_path(namespace_path, log_name)}/dlog-promotion-lock"


def promoted_cursors_path(namespace_path: str, log_name: str) -> str:
    """The parent of the cursors that the hand-over took from ``subscribers``."""
    return f"{promoted_to_path(namespace_path, log_name)}/cursors"


def promoted_from_path(namespace_path: str, log_name: str) -> str:
    """Where the log comes from, if it was promoted. Ours."""
    return f"{log_root_path(namespace_path, log_name)}/dlog-promoted-from"


def properties_path(namespace_path: str, log_name: str) -> str:
    """The properties (``properties``). Ours: Apache's programs do not know it."""
    return f"{log_root_path(namespace_path, log_name)}/dlog-properties"


def origin_path(namespace_path: str, log_name: str) -> str:
    """The name that the log's records are bound to, if it is another than the log's (``origin``). Ours."""
    return f"{log_root_path(namespace_path, log_name)}/{ORIGIN}"


def subscribers_path(namespace_path: str, log_name: str) -> str:
    """The parent of the subscribers."""
    return f"{log_root_path(namespace_path, log_name)}/{SUBSCRIBERS}"


def subscriber_path(namespace_path: str, log_name: str, subscriber_id: str) -> str:
    """A subscriber: its last committed DLSN, as text."""
    return f"{subscribers_path(namespace_path, log_name)}/{subscriber_id}"


def subscriber_read_lock_path(namespace_path: str, log_name: str, subscriber_id: str) -> str:
    """The lock of the readers of one subscriber."""
    return f"{subscriber_path(namespace_path, log_name, subscriber_id)}/{READ_LOCK}"
