"""Snapshots as Parquet files.

A directory holds one snapshot: the rows in files of a directory in it, and ``manifest.json``, which names
that directory. Without the manifest there is no snapshot.
Always: the manifest is written after all rows are on disk, and never replaced; one program at a time writes a
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
from typing import TYPE_CHECKING

import attrs

from spark_integration.errors import PipelineError
from spark_integration.pipelines.compacting.compactor import Compaction
from spark_integration.pipelines.compacting.manifest import SnapshotManifest, decode_manifest
from spark_integration.pipelines.compacting.parts import CONTENT, ORDER
from spark_integration.pipelines.compacting.rows import last_of_each_key
from spark_integration.pipelines.output_directory import locked, sync, sync_all
from spark_integration.pipelines.places import place_of
from spark_integration.pipelines.progress import Report, ignore_progress
from spark_integration.pipelines.tasks import failed_task

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MANIFEST = "manifest.json"
COLUMNS = (*ORDER, *CONTENT)
_ROWS = "rows-"  # and a name of chance: the directory of an attempt


@attrs.frozen(kw_only=True)
class FileSnapshot:
    """A snapshot of Parquet files."""

    rows: Path  # the directory of the files, for ``spark.read.parquet``
    manifest: SnapshotManifest
    is_repeated: bool = False  # it was there when the call began


def compact_to_files(
    spark: SparkSession,
    uri: str,
    log: str,
    *,
    key: str = "key",
    directory: str | Path,
    base: str | None = None,
    drop_tombstones: bool = False,
    drop_null_keys: bool = False,
    allow_truncated: bool = False,
    options: Mapping[str, str] | None = None,
    report: Report = ignore_progress,
) -> FileSnapshot:
    """Write the last record of each key of a log to Parquet files; see ``compact``.

    The files have the columns ``generation`` (0 for records of ``base``), ``segment``, ``entry``, ``slot``,
    ``txid``, ``payload``, ``key`` and ``headers``.

    Args:
        directory: Of the snapshot. The driver and all executors have it under the same path.

    Raises:
        PipelineError: As of ``compact``; or another program writes the directory.
        OSError: The directory cannot be written.
        OptionError: An option is wrong.
        dlog.LogNotFoundError, dlog.DLogError
    """
    home = Path(directory).absolute()
    run = Compaction(
        place=place_of(uri, options),
        log=log,
        key=key,
        into="",
        base=base,
        drops_tombstones=drop_tombstones,
        drops_null_keys=drop_null_keys,
        allows_truncated=allow_truncated,
        options=dict(options or {}),
        write=lambda wanted, target: [],
        report=report,
    )
    home.mkdir(parents=True, exist_ok=True)
    with locked(home):
        if (found := read_file_snapshot(home)) is not None:
            run.check_same(str(home), found.manifest)
            return attrs.evolve(found, is_repeated=True)
        for left in home.glob(f"{_ROWS}*"):
            shutil.rmtree(left)
        rows = home / f"{_ROWS}{secrets.token_hex(8)}"
        covered = run.covered()
        run.tell("writing the snapshot", covered.mark, 0)
        try:
            wanted = last_of_each_key(spark, run.wanted(covered))
            wanted.select(*COLUMNS).write.parquet(rows.as_uri())
            count = spark.read.parquet(rows.as_uri()).count()
        except Exception as exc:  # PySpark raises errors of py4j with the trace of the worker as text
            raise failed_task(exc) from exc
        sync_all(rows)
        manifest = run.manifest(covered.mark, count)
        _store(home, rows.name, manifest)
        run.tell("the snapshot is there", covered.mark, count)
        return FileSnapshot(rows=rows, manifest=manifest)


def read_file_snapshot(directory: str | Path) -> FileSnapshot | None:
    """The snapshot in a directory; None if there is none.

    Raises:
        PipelineError: The manifest does not parse, or the rows that it names are gone.
    """
    home = Path(directory).absolute()
    try:
        text = (home / MANIFEST).read_text("utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as exc:
        raise PipelineError(f"{home / MANIFEST} is not UTF-8: {exc}") from exc
    manifest = decode_manifest(str(home), text)
    name = json.loads(text).get("rows_in")  # ``decode_manifest`` has parsed the text
    if not isinstance(name, str) or not name.startswith(_ROWS) or not (home / name).is_dir():
        raise PipelineError(f"{home}: the rows of the snapshot are gone: {name!r}")
    return FileSnapshot(rows=home / name, manifest=manifest)


def _store(home: Path, rows: str, manifest: SnapshotManifest) -> None:
    text = json.dumps({**json.loads(manifest.encode()), "rows_in": rows})  # encoded on this line
    temporary = home / f"{MANIFEST}.new"
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, home / MANIFEST)  # the lock is held, and there was none
    for path in (home, home.parent):
        sync(path)
