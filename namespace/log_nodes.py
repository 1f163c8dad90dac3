"""The nodes of one log: the store that has them, and their paths.

Inside: paths only. Not inside: reading and writing nodes (``logs``, ``segment_nodes``), the names of segments
(``segment``).
Always: the caller has checked the namespace's path and the log's name (``namespace_uri``, ``log_name``).

Source: DistributedLog, LogMetadata.java, LogMetadataForReader.java, LogMetadataForWriter.java.
"""

from __future__ import annotations

from urllib.parse import quote

import attrs

from ledger.metadata_store.store import MetadataStore
from ledger.policy import POLICY_NODE

# Logs once could have several partitions. Every log has this one; its name is part of the format.
UNPARTITIONED = "<default>"
LOCK = "lock"
READ_LOCK = "readLock"
SUBSCRIBERS = "subscribers"
ORIGIN = "dlog-origin"
RENAMED_NODE = ".dlog-renamed"
PROXIES_NODE = ".dlog-proxies"


def policy_path(namespace_path: str) -> str:
    """The policy of the namespace. No log has this name: those with a dot are reserved."""
    return f"{namespace_path}/{POLICY_NODE}"


def renamed_parent_path(namespace_path: str) -> str:
    """The parent of all names that logs once had (``origin``). Ours."""
    return f"{namespace_path}/{RENAMED_NODE}"


def proxies_path(namespace_path: str) -> str:
    """The parent of the nodes of all proxies (``dlog.proxies``). Ours."""
    return f"{namespace_path}/{PROXIES_NODE}"


@attrs.frozen
class LogNodes:
    """A log as its nodes: what each call on them needs.

    Args:
        store: That has the nodes.
        namespace_path: Of the namespace's node.
        name: Of the log.
    """

    store: MetadataStore = attrs.field(eq=False, repr=False)
    namespace_path: str
    name: str

    @property
    def log_path(self) -> str:
        """The log's own node. Its data belongs to the application."""
        return f"{self.namespace_path}/{self.name}"

    @property
    def root_path(self) -> str:
        """The parent of all other nodes of the log."""
        return f"{self.log_path}/{UNPARTITIONED}"

    @property
    def max_txid_path(self) -> str:
        """The greatest transaction id of completed segments, in decimal."""
        return f"{self.root_path}/maxtxid"

    @property
    def version_path(self) -> str:
        """The layout version: four bytes, -1."""
        return f"{self.root_path}/version"

    @property
    def lock_path(self) -> str:
        """The writers' lock."""
        return f"{self.root_path}/{LOCK}"

    @property
    def read_lock_path(self) -> str:
        """The lock of readers without a subscriber id."""
        return f"{self.root_path}/{READ_LOCK}"

    @property
    def segments_path(self) -> str:
        """The parent of the log segments' nodes; its data is the greatest sequence number, in decimal."""
        return f"{self.root_path}/ledgers"

    def segment_path(self, segment_name: str) -> str:
        """One log segment."""
        return f"{self.segments_path}/{segment_name}"

    @property
    def allocation_path(self) -> str:
        """The id of a ledger created for the next segment and not used yet, in decimal; else empty."""
        return f"{self.root_path}/allocation"

    @property
    def retention_path(self) -> str:
        """How long records are kept (``retention``). Ours: Apache's programs do not know it."""
        return f"{self.root_path}/dlog-retention"

    @property
    def heal_path(self) -> str:
        """Which ledgers of segments were replaced by copies (``heal_node``). Ours."""
        return f"{self.root_path}/dlog-heal"

    @property
    def properties_path(self) -> str:
        """The properties (``properties``). Ours: Apache's programs do not know it."""
        return f"{self.root_path}/dlog-properties"

    @property
    def owner_path(self) -> str:
        """Where the owner of a shared log takes records of other programs; ephemeral. Ours."""
        return f"{self.root_path}/dlog-owner"

    @property
    def origin_path(self) -> str:
        """The name that the log's records are bound to, if not its own (``origin``). Ours."""
        return f"{self.root_path}/{ORIGIN}"

    @property
    def renamed_path(self) -> str:
        """The record of the renames away from this name (``origin``). Ours."""
        return f"{renamed_parent_path(self.namespace_path)}/{quote(self.name, safe='')}"

    @property
    def subscribers_path(self) -> str:
        """The parent of the subscribers."""
        return f"{self.root_path}/{SUBSCRIBERS}"

    def subscriber_path(self, subscriber_id: str) -> str:
        """A subscriber: its last committed DLSN, as text."""
        return f"{self.subscribers_path}/{subscriber_id}"

    def subscriber_read_lock_path(self, subscriber_id: str) -> str:
        """The lock of the readers of one subscriber."""
        return f"{self.subscriber_path(subscriber_id)}/{READ_LOCK}"
