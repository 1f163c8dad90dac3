"""Archiving the completed segments of a log, and truncating what the archive holds.

A run goes in steps, each for a group of segments: tasks write files, the driver compares what they wrote with
the metadata of the log, then the manifest gets a part that names the files. Afterwards, if asked, tasks read
back what is in both the archive and the log, and the log is truncated.
Always: a run may die anywhere and start again; a segment is in the manifest once, after its file is durable;
nothing is truncated that the manifest does not name, or that was not read back from it.

Source: our own; docs/pipelines.md.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import attrs
from pyspark.sql import SparkSession

import dlog
import dlog.blocking
from spark_integration.client import NamedLog, with_namespace
from spark_integration.errors import PipelineError
from spark_integration.option_names import by_lower_name
from spark_integration.options import client_options, positive, uri_of
from spark_integration.pipelines.archives.directory import ArchiveDirectory
from spark_integration.pipelines.archives.manifest import ArchivedSegment, Manifest
from spark_integration.pipelines.archives.plan import PlannedSegment, check_written, planned, truncation
from spark_integration.pipelines.archives.segment_files import (
    ReadSegment,
    WriteSegment,
    check_segment,
    write_segment,
)
from spark_integration.pipelines.progress import Progress, Report, ignore_progress
from spark_integration.pipelines.tasks import RunTasks, through_spark

T = TypeVar("T")
READ_TIMEOUT_MS = 120_000
SEGMENTS_PER_STEP = 32
CLIENT_OPTIONS = ("uri", "readTimeoutMs", "keyFile", "bookieSecurity", "configFile")


@attrs.frozen(kw_only=True)
class ArchiveResult:
    """The result of a run of ``archive``, and the totals of the archive."""

    log: str
    archive: str  # the directory
    segments: int  # added by this run
    records: int
    size_bytes: int  # of the files added
    segments_total: int  # in the archive
    records_total: int
    last_segment: int | None  # in the archive
    truncated_before: dlog.DLSN | None  # by this run


def archive(
    spark: SparkSession,
    uri: str,
    log: str,
    *,
    into: str | Path,
    truncate: bool = False,
    keep_segments: int = 0,
    truncate_unread: bool = False,
    options: Mapping[str, str] | None = None,
    report: Report = ignore_progress,
) -> ArchiveResult:
    """Archive the completed segments of a log that are not in the archive yet.

    Payloads are archived as a reader sees them: those of an encrypted log in clear, if the keys are given.
    A call that failed, was cancelled or died is repeated as it was: it continues with what is missing.

    Args:
        into: A directory, or its ``file:`` URI, which the driver and all executors have under this path. It
            is made if it does not exist. One archive is for one log.
        truncate: Then truncate the archived segments, after they were read back.
        keep_segments: So many of the newest archived segments stay in the log.
        truncate_unread: Truncate also what a cursor of the log has not consumed.
        options: Of the client, as for the data source: ``configFile``, ``bookieSecurity``, ``keyFile``,
            ``readTimeoutMs``, ``client.*``.
        report: Called with the progress after each step.

    Raises:
        ArchiveGapError: Records that are not in the archive were truncated.
        ArchiveDamagedError: The archive is damaged.
        PipelineError: The archive is of another log; another run added to it meanwhile; a segment was not
            what the log's metadata says. The log is unchanged.
        OptionError: An option is wrong.
        dlog.LogNotFoundError, dlog.DLogError
    """
    if keep_segments < 0:
        raise ValueError(f"keep_segments is {keep_segments}; it must be at least 0")
    run = ArchiveRun(named_log(uri, log, options), ArchiveDirectory.at(into), through_spark(spark), report)
    return run.do(truncate=truncate, keep_segments=keep_segments, truncate_unread=truncate_unread)


def named_log(uri: str, log: str, options: Mapping[str, str] | None) -> NamedLog:
    """A log for tasks.

    Raises:
        OptionError: An option is unknown or wrong.
    """
    given = by_lower_name({**(options or {}), "uri": uri}, CLIENT_OPTIONS)
    timeout_ms = positive(given, "readTimeoutMs") or READ_TIMEOUT_MS
    return NamedLog(uri_of(given), log, timeout_ms, client_options(given))


class ArchiveRun:
    """One run of ``archive``."""

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
        self._before = 0
        self._total: int | None = None
        self._size_bytes = 0

    def do(self, *, truncate: bool, keep_segments: int = 0, truncate_unread: bool = False) -> ArchiveResult:
        """Archive, and truncate if asked; see ``archive``."""
        log = self._log
        # The manifest before the log: what is truncated meanwhile is in a later manifest.
        manifest = self._directory.manifest()
        description = self._call(lambda namespace: namespace.describe_log(log.stream))
        if manifest is None:
            manifest = Manifest.empty(secrets.token_hex(8), log.stream, log.uri)
        todo = planned(manifest, description)
        begun = manifest
        self._before = manifest.records
        self._total = manifest.records + sum(each.description.record_count or 0 for each in todo)
        self._tell("planned", manifest)
        for at in range(0, len(todo), self._segments_per_step):
            manifest = self._add(manifest, todo[at : at + self._segments_per_step])
        if manifest.parts:
            self._directory.sweep(manifest)
        before = None
        if truncate:
            before = self._truncate(manifest, keep_segments, truncate_unread=truncate_unread)
        return ArchiveResult(
            log=log.stream,
            archive=str(self._directory.path),
            segments=len(manifest.segments) - len(begun.segments),
            records=manifest.records - begun.records,
            size_bytes=self._size_bytes,
            segments_total=len(manifest.segments),
            records_total=manifest.records,
            last_segment=manifest.last_segment,
            truncated_before=before,
        )

    def _add(self, manifest: Manifest, todo: Sequence[PlannedSegment]) -> Manifest:
        """Add a group of segments; return the manifest with them."""
        attempt = self._directory.new_attempt(manifest.parts + 1)
        tasks = [WriteSegment(self._log, each, self._directory, attempt) for each in todo]
        written: list[ArchivedSegment] = self._run_tasks(write_segment, tasks)
        for each, segment in zip(todo, written, strict=True):
            check_written(each, segment.content, self._expected(each))
        self._tell("wrote files", manifest)
        part = manifest.next_part(written)
        following = manifest.extended(part)
        if not self._directory.has_part(part.number):
            # The files are where this process looks for them, and not on a disk that only an executor has.
            self._directory.check_files(following, {segment.segment for segment in written})
        if not self._directory.add_part(part.number, part.encoded()):
            raise PipelineError(
                f"another run added part {part.number} to the archive in {self._directory.path} meanwhile;"
                " this one added nothing more and truncated nothing. Start it again when the other has ended"
            )
        self._size_bytes += sum(segment.size_bytes for segment in written)
        self._tell("added to the manifest", following)
        return following

    def _expected(self, planned_segment: PlannedSegment) -> int:
        """The number of records that the log has from the segment's first position on."""
        known = planned_segment.description.record_count
        if planned_segment.is_whole and known is not None:
            return known
        stop = dlog.DLSN(planned_segment.segment + 1, 0, 0)
        return self._call(
            lambda namespace: namespace.count_records(self._log.stream, start=planned_segment.first, end=stop)
        )

    def _truncate(self, manifest: Manifest, keep_segments: int, *, truncate_unread: bool) -> dlog.DLSN | None:
        """Read back what may be truncated, then truncate it."""
        log = self._log.stream
        cursors = [] if truncate_unread else self._call(lambda namespace: namespace.cursors(log).list())
        found = truncation(
            manifest,
            self._call(lambda namespace: namespace.describe_log(log)),
            keep_segments=keep_segments,
            cursors=[cursor.position for cursor in cursors],
        )
        if found is None:
            return None
        tasks = [ReadSegment(self._directory, segment) for segment in found.segments]
        for at in range(0, len(tasks), self._segments_per_step):
            self._run_tasks(check_segment, tasks[at : at + self._segments_per_step])
        self._tell("read back", manifest)
        self._call(lambda namespace: namespace.truncate_log(log, found.before))
        self._tell("truncated", manifest)
        return found.before

    def _call(self, request: Callable[[dlog.blocking.Namespace], T]) -> T:
        return with_namespace(self._log.uri, self._log.options, request)

    def _tell(self, step: str, manifest: Manifest) -> None:
        self._report(
            Progress(
                pipeline="archive",
                log=self._log.stream,
                step=step,
                records=manifest.records,
                records_before=self._before,
                records_total=self._total,
                size_bytes=self._size_bytes,
            )
        )
