"""Archives: completed segments of a log as Parquet files with a manifest; reading them, restoring from them.

Inside: the directory of an archive, its manifest, the files of segments, archiving, the table over archive
and log, restoring.
Not inside: the commands (``spark_integration.commands``).
Entry points: ``archive``, ``table``, ``export_table``, ``restore``, ``read_manifest``.
"""

from spark_integration.pipelines.archives.archiving import ArchiveResult, archive
from spark_integration.pipelines.archives.directory import read_manifest
from spark_integration.pipelines.archives.export import Export, export_table
from spark_integration.pipelines.archives.manifest import ArchivedSegment, Manifest
from spark_integration.pipelines.archives.restoring import RestoreResult, restore
from spark_integration.pipelines.archives.union import archived_table, table

__all__ = [
    "ArchiveResult",
    "ArchivedSegment",
    "Export",
    "Manifest",
    "RestoreResult",
    "archive",
    "archived_table",
    "export_table",
    "read_manifest",
    "restore",
    "table",
]
