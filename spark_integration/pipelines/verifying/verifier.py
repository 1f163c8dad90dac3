"""The verification of logs: their segments in rounds of tasks, and the report after each round.

Inside: which segments, the rounds, the report's file. Not inside: the check of a range (``parts``), the lines
(``report``).
Always: nothing is changed; a segment is in the report only if all of it was read; the summary is the last
line, and is written only when every segment is in the report.

Source: our own; docs/pipelines.md.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

import dlog
import dlog.blocking
from dlog import EntryFault, FaultKind, SegmentDescription
from namespace.segments.segment import TruncationStatus
from spark_integration.errors import PipelineError
from spark_integration.pipelines.places import Place, place_of
from spark_integration.pipelines.progress import Progress, Report, ignore_progress
from spark_integration.pipelines.tasks import RunTasks, cores_of, tasks_of
from spark_integration.pipelines.verifying.parts import ENTRIES_MAX, VerifiedPart, verify_part
from spark_integration.pipelines.verifying.parts import tasks_of as tasks_of_segment
from spark_integration.pipelines.verifying.report import (
    LogReport,
    SegmentReport,
    VerificationSummary,
    between_segments,
    first_line,
    joined,
    parse_report,
    summary_of,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASKS_PER_CORE = 8  # in a round


@attrs.frozen
class _Segment:
    """A segment that is to be verified."""

    log: str
    described: SegmentDescription


def verify_logs(
    spark: SparkSession | RunTasks,
    uri: str,
    report_path: str | Path,
    *,
    logs: Iterable[str] = (),
    pattern: str | None = None,
    options: Mapping[str, str] | None = None,
    report: Report = ignore_progress,
    entries_per_task: int = ENTRIES_MAX,
) -> VerificationSummary:
    """Verify logs: every entry on each bookie that should have it, and the records in it.

    It checks the digest of each replica, that the replicas of an entry are equal, that positions and
    transaction ids ascend without a hole, and that the metadata fit. The findings go into the report. A later
    call with the same report skips the segments that it has as sound and that cannot have changed, so a
    verification that died is continued. For a new verification give a new file.

    Args:
        spark: The session whose tasks verify, or another way to run them.
        report_path: A file of this machine.
        logs: Names of logs.
        pattern: Further logs, as of ``Namespace.list_logs``; without both, all logs of the namespace.
        options: Of the client, as for the data source: ``client.*`` and files.

    Raises:
        PipelineError: There is no such log; or the file is of another verification; or Spark gave up a task,
            because the metadata store was out of reach.
        OptionError: An option is wrong.
        OSError: The report cannot be written.
        dlog.DLogError: The namespace cannot be opened or listed.
    """
    place = place_of(uri, options)
    names = set(logs)
    if pattern is not None or not names:
        names |= set(place.call(lambda namespace: namespace.list_logs(pattern=pattern)))
    if not names:
        raise PipelineError(f"{uri}: there is no log to verify")
    with open_report_file(report_path) as file:
        known = parse_report(str(report_path), uri, file.lines)
        if not file.lines:
            file.append([first_line(uri)])
        run = _Verification(place, tasks_of(spark), cores_of(spark), file, known, report, entries_per_task)
        return run.verify(sorted(names))


@attrs.define
class _Verification:
    place: Place
    run_tasks: RunTasks
    cores: int
    file: ReportFile
    found: dict[tuple[str, int], SegmentReport]
    report: Report
    entries_per_task: int
    records_before: int = 0  # of segments that earlier runs found sound
    records: int = 0

    def verify(self, names: Sequence[str]) -> VerificationSummary:
        listed: dict[str, list[SegmentDescription]] = {}
        bad: list[LogReport] = []
        for name in names:
            try:
                segments = self.place.call(partial(_segments, name))
            except dlog.LogUnavailableError:
                raise
            except dlog.DLogError as exc:
                bad.append(_unusable(name, str(exc)))
            else:
                listed[name] = [
                    each for each in segments if each.truncation is not TruncationStatus.TRUNCATED
                ]
        wanted = [_Segment(name, each) for name, segments in listed.items() for each in segments]
        todo = [each for each in wanted if not self._is_done(each)]
        done = [each for each in wanted if self._is_done(each)]
        self.records_before = sum(self.found[each.log, each.described.segment_seqno].records for each in done)
        for chunk in self._rounds(todo):
            bad += self._verify_round(chunk)
        return self._finish(listed, bad, len(done))

    def _is_done(self, segment: _Segment) -> bool:
        known = self.found.get((segment.log, segment.described.segment_seqno))
        return known is not None and known.is_done(segment.described)

    def _rounds(self, todo: Sequence[_Segment]) -> Iterator[list[_Segment]]:
        """Whole segments with about this many tasks that every core is busy."""
        chunk: list[_Segment] = []
        tasks = 0
        for each in todo:
            chunk.append(each)
            tasks += len(tasks_of_segment(self.place, each.log, each.described, self.entries_per_task))
            if tasks >= TASKS_PER_CORE * self.cores:
                yield chunk
                chunk, tasks = [], 0
        if chunk:
            yield chunk

    def _verify_round(self, segments: Sequence[_Segment]) -> list[LogReport]:
        cut = [
            tasks_of_segment(self.place, each.log, each.described, self.entries_per_task) for each in segments
        ]
        results = iter(self.run_tasks(verify_part, [task for tasks in cut for task in tasks]))
        lines, bad = [], list[LogReport]()
        for each, tasks in zip(segments, cut, strict=True):
            parts = [next(results) for _ in tasks]
            if (error := _error_in(parts)) is not None:
                bad.append(_unusable(each.log, f"segment {each.described.segment_seqno}: {error}"))
                continue
            found = joined(each.described, [part.found for part in parts if part.found is not None])
            self.found[found.log, found.segment] = found
            self.records += found.records
            lines.append(found.line())
        self.file.append(lines)
        self.report(
            Progress(
                pipeline="verify",
                log=segments[-1].log,
                step="verifying",
                records=self.records_before + self.records,
                records_before=self.records_before,
            )
        )
        return bad

    def _finish(
        self, listed: dict[str, list[SegmentDescription]], bad: Sequence[LogReport], skipped: int
    ) -> VerificationSummary:
        segments: list[SegmentReport] = []
        logs: list[LogReport] = []
        for name, described in listed.items():
            mine = [
                found
                for each in described
                if (found := self.found.get((name, each.segment_seqno))) is not None
            ]
            segments += mine
            logs.append(between_segments(name, mine))
        for each in bad:
            same = [log for log in logs if log.log == each.log]
            for log in same:
                logs[logs.index(log)] = attrs.evolve(log, faults=(*log.faults, *each.faults))
            if not same:
                logs.append(each)
        summary = summary_of(segments, logs, segments_skipped=skipped)
        self.file.append([*(log.line() for log in logs), summary.line()])
        return summary


def _segments(name: str, namespace: dlog.blocking.Namespace) -> list[SegmentDescription]:
    return namespace.segments(name)


def _unusable(log: str, evidence: str) -> LogReport:
    return LogReport(log=log, segments=0, faults=(EntryFault(-1, None, FaultKind.METADATA, evidence),))


def _error_in(parts: Sequence[VerifiedPart]) -> str | None:
    return next((part.error for part in parts if part.error is not None), None)


class ReportFile:
    """The file of a report: lines are appended, and synced before they count. ``open_report_file`` makes it.

    A line that a crash cut is removed before the next one is written; one program at a time writes the file.
    """

    def __init__(self, descriptor: int, lines: list[str]) -> None:
        self._descriptor = descriptor
        self.lines = lines  # that were there when it was opened

    def append(self, lines: Iterable[str]) -> None:
        """Add lines, given without their ends. They are durable when this returns.

        Raises:
            OSError: The disk is full, or failed. A part of the lines may be there.
        """
        data = "".join(f"{line}\n" for line in lines).encode()
        while data:
            data = data[os.write(self._descriptor, data) :]
        os.fsync(self._descriptor)


@contextmanager
def open_report_file(path: str | Path) -> Iterator[ReportFile]:
    """Open a report for the duration of the block; make it if it does not exist.

    Raises:
        PipelineError: Another program has it open.
        OSError: It cannot be opened.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PipelineError(f"{path}: another verification writes this report") from None
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            os.ftruncate(descriptor, len(whole))
        yield ReportFile(descriptor, whole.decode(errors="replace").splitlines())
    finally:
        os.close(descriptor)
