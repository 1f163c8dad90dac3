"""Pipelines over whole logs, each restartable and exactly once: they are libraries and commands.

Inside: what each pipeline does, its progress, the Spark session of a command.
Not inside: the data source and the sink (``spark_integration``), the commands
(``spark_integration.commands``).
Entry points: ``archive``, ``table``, ``export_table``, ``restore``, ``copy_logs``, ``verify_logs``,
``compact``; all but ``table`` report ``Progress``.
"""

from spark_integration.pipelines.archives import (
    ArchiveResult,
    Export,
    RestoreResult,
    archive,
    archived_table,
    export_table,
    read_manifest,
    restore,
    table,
)
from spark_integration.pipelines.compacting import (
    FileSnapshot,
    Snapshot,
    SnapshotManifest,
    compact,
    compact_to_files,
    read_file_snapshot,
    read_snapshot,
)
from spark_integration.pipelines.copying import CopiedLog, copy_logs
from spark_integration.pipelines.progress import Progress, Report, ignore_progress
from spark_integration.pipelines.session import open_session
from spark_integration.pipelines.verifying import VerificationSummary, verify_logs

__all__ = [
    "ArchiveResult",
    "CopiedLog",
    "Export",
    "FileSnapshot",
    "Progress",
    "Report",
    "RestoreResult",
    "Snapshot",
    "SnapshotManifest",
    "VerificationSummary",
    "archive",
    "archived_table",
    "compact",
    "compact_to_files",
    "copy_logs",
    "export_table",
    "ignore_progress",
    "open_session",
    "read_file_snapshot",
    "read_manifest",
    "read_snapshot",
    "restore",
    "table",
    "verify_logs",
]
