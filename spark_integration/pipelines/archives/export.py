"""The table over archive and log as Parquet files, for programs without a Spark session of their own.

A directory holds one export: the rows in files of a directory in it, and ``export.json``, which names that
directory and what was asked for. Without that file there is no export.
Always: it is written after all rows are on disk, and never replaced; one program at a time writes a
directory; what a dead attempt left is deleted by the next one.

Source: our own; docs/pipelines.md.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

import attrs
from pyspark.sql import SparkSession

from spark_integration.errors import PipelineError
from spark_integration.pipelines.archives.union import table
from spark_integration.pipelines.output_directory import locked, sync, sync_all
from spark_integration.pipelines.progress import Progress, Report, ignore_progress
from spark_integration.pipelines.tasks import failed_task

EXPORT = "export.json"
VERSION = 1
_ROWS = "rows-"  # and a name of chance: the directory of an attempt


@attrs.frozen(kw_only=True)
class Export:
    """The rows of archive and log in Parquet files."""

    rows: Path  # the directory of the files, for ``spark.read.parquet``
    records: int
    is_repeated: bool = False  # it was there when the call began


def export_table(
    spark: SparkSession,
    uri: str,
    log: str,
    *,
    archive: str | Path,
    directory: str | Path,
    where: str | None = None,
    options: Mapping[str, str] | None = None,
    report: Report = ignore_progress,
) -> Export:
    """Write the records of ``table``, up to the log's present end, to Parquet files; once.

    A call that is repeated after any failure begins again; one that is repeated after a success returns what
    is there, also if the log has continued.

    Args:
        archive: The directory of the archive.
        directory: Of the export. The driver and all executors have it under the same path.
        where: A condition of Spark SQL on the columns of ``table``.

    Raises:
        PipelineError: The directory has another export, or another program writes it; or as of ``table``.
        OSError: The directory cannot be written.
        OptionError, dlog.LogNotFoundError, dlog.DLogError
    """
    home = Path(directory).absolute()
    asked = {"v": VERSION, "uri": uri, "log": log, "archive": str(archive), "where": where}

    def tell(step: str, records: int) -> None:
        report(Progress(pipeline="table", log=log, step=step, records=records))

    home.mkdir(parents=True, exist_ok=True)
    with locked(home):
        if (found := _stored(home, asked)) is not None:
            return found
        for left in home.glob(f"{_ROWS}*"):
            shutil.rmtree(left)
        rows = home / f"{_ROWS}{secrets.token_hex(8)}"
        frame = table(spark, uri, log, archive=archive, options=options)
        tell("writing the table", 0)
        try:
            (frame if where is None else frame.where(where)).write.parquet(rows.as_uri())
            count = spark.read.parquet(rows.as_uri()).count()
        except Exception as exc:  # PySpark raises errors of py4j with the trace of the worker as text
            raise failed_task(exc) from exc
        sync_all(rows)
        tell("wrote the table", count)
        temporary = home / f"{EXPORT}.new"
        temporary.write_text(json.dumps({**asked, "rows_in": rows.name, "records": count}), "utf-8")
        sync(temporary)
        os.replace(temporary, home / EXPORT)  # the lock is held, and there was none
        for path in (home, home.parent):
            sync(path)
        return Export(rows=rows, records=count)


def _stored(home: Path, asked: Mapping[str, object]) -> Export | None:
    try:
        found = json.loads((home / EXPORT).read_text("utf-8"))
        same = {name: found[name] for name in asked} == asked
        rows, records = home / str(found["rows_in"]), int(found["records"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError) as exc:
        raise PipelineError(f"{home / EXPORT} is no export of this release: {exc!r}") from exc
    if not same:
        raise PipelineError(f"{home} has another export: {found}; nothing was written. Give a new directory")
    if not rows.is_dir():
        raise PipelineError(f"{home}: the rows of the export are gone: {rows.name!r}")
    return Export(rows=rows, records=records, is_repeated=True)
