"""Archive and log as one table: archived segments from the archive, later ones from the log.

Always: the position decides, so no record is there twice or missing, although archiving and truncation
continue. The manifest is read before the log; both are fixed when the table is made.

Source: our own; docs/pipelines.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import array, coalesce, lit

from spark_integration.client import with_namespace
from spark_integration.errors import PipelineError
from spark_integration.pipelines.archives.archiving import named_log
from spark_integration.pipelines.archives.directory import ArchiveDirectory
from spark_integration.pipelines.archives.manifest import Manifest
from spark_integration.pipelines.archives.plan import check_joined

_FILE_COLUMNS = "segment BIGINT, entry BIGINT, slot BIGINT, txid BIGINT, sequence BIGINT, payload BINARY"
_ATTRIBUTES = "key BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"  # not in older files
COLUMNS = ["stream", "segment", "entry", "slot", "txid", "payload", "sequence", "key", "headers"]
_GLOB = set("*?[]{}\\")


def table(
    spark: SparkSession,
    uri: str,
    log: str,
    *,
    archive: str | Path,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """All records of a log, from its archive and from the log itself, up to the log's present end.

    The columns are those of the data source with ``includeSequence`` and ``includeHeaders``. The rows have no
    order; sort by ``segment, entry, slot`` or by ``sequence``. Every action on the DataFrame reads the same
    records, or fails: if the log is truncated beyond its archive later, make the table again.

    Args:
        spark: A session with the data source (``spark_integration.register``).
        archive: The directory of the archive, or its ``file:`` URI.
        options: Of the client, as for ``archive``.

    Raises:
        ArchiveGapError: Records between the archive and the log were truncated.
        ArchiveDamagedError: A part of the manifest or a file is missing or has another size.
        PipelineError: There is no archive, or it is of another log.
        OptionError: An option is wrong.
        dlog.LogNotFoundError, dlog.DLogError
    """
    named = named_log(uri, log, options)
    directory, manifest = _opened(archive)
    check_joined(manifest, with_namespace(uri, named.options, lambda namespace: namespace.describe_log(log)))
    # Not after the last archived record: that position may be truncated, this one is the log's first then.
    following = [(manifest.last_segment or 0) + 1, -1, -1] if manifest.segments else "earliest"
    live = (
        spark.read.format("dlog")
        .options(
            **{
                **(options or {}),
                "uri": uri,
                "stream": log,
                "includeSequence": "true",
                "includeHeaders": "true",
            }
        )
        .option("startingOffsets", str(following))
        .load()
    )
    archived = _archived(spark, directory, manifest)
    return live.select(COLUMNS) if archived is None else archived.unionByName(live)


def archived_table(spark: SparkSession, *, archive: str | Path) -> DataFrame:
    """The records of an archive alone, with the columns of ``table``. The log need not exist.

    Raises:
        ArchiveDamagedError: A part of the manifest or a file is missing or has another size.
        PipelineError: There is no archive.
    """
    directory, manifest = _opened(archive)
    found = _archived(spark, directory, manifest)
    if found is None:
        found = (
            spark.createDataFrame([], f"{_FILE_COLUMNS}, {_ATTRIBUTES}")
            .withColumn("stream", lit(manifest.log))
            .select(COLUMNS)
        )
    return found


def _opened(archive: str | Path) -> tuple[ArchiveDirectory, Manifest]:
    directory = ArchiveDirectory.at(archive)
    if odd := sorted(_GLOB & set(str(directory.path))):
        raise PipelineError(
            f"{directory.path}: Spark takes {' '.join(odd)} in a path for a pattern; rename it"
        )
    manifest = directory.manifest()
    if manifest is None:
        raise PipelineError(f"there is no archive in {directory.path}: it has no manifest")
    directory.check_files(manifest)
    return directory, manifest


def _archived(spark: SparkSession, directory: ArchiveDirectory, manifest: Manifest) -> DataFrame | None:
    if not manifest.files:
        return None
    files = [f"file://{directory.path / name}" for name in sorted(manifest.files)]  # Spark decodes nothing
    # A session may be set to leave out such files, which would be a silent gap.
    strict = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
    rows = spark.read.schema(f"{_FILE_COLUMNS}, {_ATTRIBUTES}").options(**strict).parquet(*files)
    rows = rows.withColumn("headers", coalesce("headers", array().cast(rows.schema["headers"].dataType)))
    return rows.withColumn("stream", lit(manifest.log)).select(COLUMNS)
