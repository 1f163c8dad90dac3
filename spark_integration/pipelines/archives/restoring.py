"""Restoring a log from its archive: the same records in the same order, under the same transaction ids.

A run goes in steps, each for a group of archived segments: tasks compare the rows of a file with the manifest
and write them as a segment that no log names; one transaction then puts the segments of the step into the
log, with the number of the last one in the series of this archive.
Always: a run may die anywhere and start again; a segment is restored once; a log with records of other origin
is refused, and unchanged.

Source: our own; docs/pipelines.md, docs/bulk.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

import attrs
import pyarrow as pa
from pyspark.sql import SparkSession

import dlog
import dlog.blocking
from dlog.bulk import BatchOvertakenError, BatchPlan, DetachedSegment
from spark_integration.client import NamedLog, with_namespace
from spark_integration.errors import PipelineError
from spark_integration.pipelines.archives.archiving import SEGMENTS_PER_STEP, named_log
from spark_integration.pipelines.archives.directory import ArchiveDirectory
from spark_integration.pipelines.archives.manifest import ArchivedSegment, Manifest
from spark_integration.pipelines.archives.segment_files import ReadSegment, read_segment
from spark_integration.pipelines.progress import Progress, Report, ignore_progress
from spark_integration.pipelines.tasks import RunTasks, through_spark

T = TypeVar("T")
LOCK_TIMEOUT_S = 10.0


@attrs.frozen(kw_only=True)
class RestoreResult:
    """The result of a run of ``restore``."""

    log: str
    archive: str  # the directory
    segments: int  # restored by this run
    records: int
    records_before: int  # restored by earlier runs


@attrs.frozen
class RestoreSegment:
    """The task of restoring one segment."""

    log: NamedLog
    plan: BatchPlan
    source: ReadSegment


def restore(
    spark: SparkSession,
    archive: str | Path,
    uri: str,
    log: str,
    *,
    options: Mapping[str, str] | None = None,
    report: Report = ignore_progress,
) -> RestoreResult:
    """Restore a log from an archive into a new or an empty log.

    Records keep their payloads, keys, headers, transaction ids and order; they get new positions. A call that
    failed, was cancelled or died is repeated as it was: it continues with what is missing. If the archive has
    grown since, its new segments are restored too.

    Args:
        archive: The directory of the archive, or its ``file:`` URI.
        log: It is created if it does not exist.
        options: Of the client, as for ``archive``; settings that ask for encryption are refused.
        report: Called with the progress after each step.

    Raises:
        PipelineError: There is no archive, or the log has records that are not of this archive. The log is
            unchanged.
        ArchiveDamagedError: The archive is damaged; the steps before are in the log.
        OptionError: An option is wrong.
        dlog.LogLockedError: The log has a writer.
        dlog.ConfigError, dlog.DLogError
    """
    directory = ArchiveDirectory.at(archive)
    return RestoreRun(named_log(uri, log, options), directory, through_spark(spark), report).do()


def restore_segment(task: RestoreSegment) -> DetachedSegment | None:
    """Write the rows of an archived segment to a segment that no log names; None if it has no rows.

    Raises:
        ArchiveDamagedError: The file is damaged. What was written is deleted.
        dlog.DLogError: Bookies are out of reach.
    """
    log = task.log

    def write(namespace: dlog.blocking.Namespace) -> DetachedSegment | None:
        with namespace.batches.open_segment(task.plan, log.stream) as segment:
            # If a row is wrong, this ends with an error, and so does the block, which gives the segment up.
            for rows in read_segment(task.source):
                keys, headers = _keys_and_headers(rows)
                segment.append_many(
                    rows.column("payload").to_pylist(), txids=_ids(rows), keys=keys, headers=headers
                )
        return segment.result

    return with_namespace(log.uri, log.options, write)


def _ids(rows: pa.RecordBatch) -> list[int]:
    ids: list[int] = rows.column("txid").to_pylist()
    return ids


def _keys_and_headers(
    rows: pa.RecordBatch,
) -> tuple[list[bytes | None], list[dict[str, bytes]]] | tuple[None, None]:
    if "key" not in rows.schema.names:  # of an older archive
        return None, None
    headers = rows.column("headers").to_pylist()
    return rows.column("key").to_pylist(), [
        {item["key"]: item["value"] for item in each or ()} for each in headers
    ]


class RestoreRun:
    """One run of ``restore``."""

    def __init__(
        self,
        log: NamedLog,
        directory: ArchiveDirectory,
        run_tasks: RunTasks,
        report: Report = ignore_progress,
        *,
        segments_per_step: int = SEGMENTS_PER_STEP,
    ) -> None:
        self._log, self._directory, self._run_tasks, self._report = log, directory, run_tasks, report
        self._segments_per_step = segments_per_step

    def do(self) -> RestoreResult:
        """Restore what is missing; see ``restore``."""
        log, manifest = self._log, self._directory.manifest()
        if manifest is None:
            raise PipelineError(f"there is no archive in {self._directory.path}: it has no manifest")
        self._directory.check_files(manifest)
        # The number of a batch is that of its last segment in the archive, counted from 1. Segments are only
        # added to an archive, so the count of a segment never changes.
        series = series_of(manifest)
        self._call(lambda namespace: namespace.create_log(log.stream, exist_ok=True))
        before = done = self._call(lambda namespace: namespace.batches.last(series, log.stream)) or 0
        if done > len(manifest.segments):
            raise PipelineError(
                f"log {log.stream!r} has {done} segments of the archive {manifest.archive_id}, but the"
                f" archive in {self._directory.path} has {len(manifest.segments)}; restore from the newer one"
            )
        totals = [0, *accumulate(segment.records for segment in manifest.segments)]
        if done < len(manifest.segments):
            self._check_target(manifest, totals[done])
        self._tell("planned", manifest, totals, before, done)
        while done < len(manifest.segments):
            stop = min(done + self._segments_per_step, len(manifest.segments))
            self._add(manifest, series, manifest.segments[done:stop], stop, totals[done])
            done = stop
            self._tell("added to the log", manifest, totals, before, done)
        return RestoreResult(
            log=log.stream,
            archive=str(self._directory.path),
            segments=done - before,
            records=totals[done] - totals[before],
            records_before=totals[before],
        )

    def _add(
        self, manifest: Manifest, series: str, segments: Sequence[ArchivedSegment], number: int, before: int
    ) -> None:
        """Restore a group of segments."""
        log = self._log
        plan = self._call(
            lambda namespace: namespace.batches.begin(
                [log.stream], series=series, number=number, lock_timeout_s=LOCK_TIMEOUT_S
            )
        )
        if plan is None:
            raise PipelineError(
                f"another run restores log {log.stream!r} from this archive; this one added nothing more"
            )
        # After the plan: from here on, attaching fails if anything else was written.
        self._check_target(manifest, before)
        tasks = [RestoreSegment(log, plan, ReadSegment(self._directory, each)) for each in segments]
        written = [each for each in self._run_tasks(restore_segment, tasks) if each is not None]
        counts = [each.record_count for each in written]
        if counts != [each.records for each in segments if each.records]:
            raise PipelineError(
                f"log {log.stream!r}: tasks wrote {counts} records; nothing of this step is in it"
            )
        try:
            attached = self._call(
                lambda namespace: namespace.batches.attach(plan, written, lock_timeout_s=LOCK_TIMEOUT_S)
            )
        except BatchOvertakenError as exc:
            self._call(lambda namespace: namespace.batches.abandon(plan, written))
            raise PipelineError(
                f"log {log.stream!r} got other records while it was restored; this step added nothing: {exc}"
            ) from exc
        if attached.is_repeated:
            self._call(lambda namespace: namespace.batches.abandon(plan, written))

    def _check_target(self, manifest: Manifest, records: int) -> None:
        """Raise unless the log has just the records that earlier runs restored."""
        found = self._call(lambda namespace: namespace.describe_log(self._log.stream)).record_count
        if found != records:
            raise PipelineError(
                f"log {self._log.stream!r} has {found} records, but {records} were restored from the archive"
                f" of log {manifest.log!r}; restore into a new log. Nothing was changed"
            )

    def _call(self, request: Callable[[dlog.blocking.Namespace], T]) -> T:
        return with_namespace(self._log.uri, self._log.options, request)

    def _tell(self, step: str, manifest: Manifest, totals: Sequence[int], before: int, done: int) -> None:
        self._report(
            Progress(
                pipeline="restore",
                log=self._log.stream,
                step=step,
                records=totals[done],
                records_before=totals[before],
                records_total=manifest.records,
            )
        )


def series_of(manifest: Manifest) -> str:
    """The series of batches that restores an archive."""
    return f"restore-{manifest.archive_id}"
