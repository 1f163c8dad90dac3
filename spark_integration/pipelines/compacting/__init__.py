"""Compactions: the last record of each key of a log, as a snapshot that readers begin with.

Inside: the manifest of a snapshot, the query, the tasks that write, snapshots as logs and as Parquet files.
Not inside: the transaction that attaches a snapshot (``dlog.bulk``). Entry point: ``compact``.
"""

from spark_integration.pipelines.compacting.compactor import Snapshot, compact, read_snapshot
from spark_integration.pipelines.compacting.files import FileSnapshot, compact_to_files, read_file_snapshot
from spark_integration.pipelines.compacting.manifest import SnapshotManifest

__all__ = [
    "FileSnapshot",
    "Snapshot",
    "SnapshotManifest",
    "compact",
    "compact_to_files",
    "read_file_snapshot",
    "read_snapshot",
]
