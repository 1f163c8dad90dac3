"""The copy of logs, step by step: each step is attached to its log with the note of how far the copy is.

Inside: which logs, the steps of each, attaching. Not inside: the note (``note``), the tasks (``parts``).
Always: a step begins at the position of the note that its transaction replaces, and that transaction is
refused if another copy has moved the note; so records are neither repeated nor left out, whenever a copy dies
and however many run. A log that cannot be copied does not keep the others back.

Source: our own; docs/pipelines.md, docs/bulk.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import attrs

import dlog
import dlog.blocking
from dlog.bulk import BatchOvertakenError, BatchPlan, DetachedSegment
from ledger.runtime.log_lines import get_logger
from spark_integration.errors import PipelineError, SparkDlogError
from spark_integration.measuring import Measures
from spark_integration.offsets import BEFORE_EVERYTHING, Position
from spark_integration.pipelines.copying.note import PROPERTY, SERIES, CopyNote, decode_note
from spark_integration.pipelines.copying.parts import CopiedPart, CopyTask, copy_part
from spark_integration.pipelines.copying.state import StateCopy, not_a_copy
from spark_integration.pipelines.copying.steps import PART_BYTES, next_parts, parts_per_log
from spark_integration.pipelines.places import Place, place_of
from spark_integration.pipelines.progress import Progress, Report, ignore_progress
from spark_integration.pipelines.resuming import first_after, position_after
from spark_integration.pipelines.tasks import RunTasks, cores_of, tasks_of
from spark_integration.planning import Range

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = get_logger(__name__)
LOCK_TIMEOUT_S = 10.0
OVERTAKEN_MAX = 5  # steps in a row of one log that another writer was faster than


@attrs.frozen(kw_only=True)
class CopiedLog:
    """The result of a copy for one log."""

    log: str
    into: str
    records: int = 0  # copied by this call
    records_before: int = 0  # copied by earlier calls
    position: Position | None = None  # all records of the source through it are copied; None: there are none
    is_sealed: bool = False  # as the source: no record can follow
    error: Exception | None = None  # why the copy of this log ended early; what was copied stays

    @property
    def is_complete(self) -> bool:
        """True if all records are copied that the source had when the call began."""
        return self.error is None


@attrs.frozen(kw_only=True)
class _Step:
    """A step of one log that was begun."""

    plan: BatchPlan
    note: CopyNote | None  # before it
    parts: tuple[Range, ...]
    ledgers: Mapping[int, int]  # of the source, by the numbers of segments
    is_last: bool


@attrs.define(kw_only=True)
class _Log:
    """A log whose copy is not finished."""

    name: str
    into: str
    end: Position  # the last record of the source when the copy began
    copied: CopiedLog
    records_total: int | None = None
    overtaken: int = 0


def copy_logs(
    spark: SparkSession | RunTasks,
    source_uri: str,
    target_uri: str,
    *,
    logs: Iterable[str] = (),
    pattern: str | None = None,
    prefix: str = "",
    source_name: str | None = None,
    cursors: bool = False,
    source_options: Mapping[str, str] | None = None,
    target_options: Mapping[str, str] | None = None,
    report: Report = ignore_progress,
    part_bytes: int = PART_BYTES,
    cores: int | None = None,
) -> list[CopiedLog]:
    """Copy logs, up to the ends that they have now: the same records with the same transaction ids.

    The first call makes the copies; a later one copies what was written since. It continues where an earlier
    one stopped, also if that one died. Records in front of the truncation point of a source are not copied.
    A copy gets the properties of its source, and its seal when it has the last record.

    Args:
        spark: The session whose tasks copy, or another way to run them.
        logs: Names of logs of the source.
        pattern: Further logs, as of ``Namespace.list_logs``.
        prefix: The copy of a log has its name after this text.
        source_name: The name of the source in the copies; None: ``source_uri``. A copy accepts records of
            this source only, so keep the name if the URI changes.
        cursors: The copies get the cursors of the sources, at the same records. A cursor never goes back.
        source_options, target_options: Of the client, as for the data source: ``client.*`` and files.
        part_bytes: About the size of the segments of a copy.
        cores: As many tasks run at the same time; None: those of the session.

    Returns:
        What was done to each log, in the order of names; errors of single logs are in it.

    Raises:
        PipelineError: There is no log to copy, or the copies would be the sources.
        OptionError: An option is wrong.
        dlog.DLogError: A namespace cannot be opened or listed.
    """
    copier = _Copier(
        run_tasks=tasks_of(spark),
        source=place_of(source_uri, source_options),
        target=place_of(target_uri, target_options),
        name=source_uri if source_name is None else source_name,
        prefix=prefix,
        cursors=cursors,
        report=report,
        part_bytes=part_bytes,
        cores=cores_of(spark) if cores is None else cores,
    )
    return copier.copy(logs, pattern)


@attrs.frozen(kw_only=True)
class _Copier:
    run_tasks: RunTasks
    source: Place
    target: Place
    name: str
    prefix: str
    cursors: bool
    report: Report
    part_bytes: int
    cores: int

    def copy(self, names: Iterable[str], pattern: str | None) -> list[CopiedLog]:
        wanted = set(names)
        if pattern is not None:
            wanted |= set(self.source.call(lambda namespace: namespace.list_logs(pattern=pattern)))
        if not wanted:
            raise PipelineError(f"{self.source.uri}: there is no log to copy; name logs, or give a pattern")
        if self.source.uri == self.target.uri and not self.prefix:
            raise PipelineError(f"{self.source.uri}: a copy in the same namespace needs a prefix")
        done: dict[str, CopiedLog] = {}
        left: list[_Log] = []
        for name in sorted(wanted):
            copied = CopiedLog(log=name, into=self.prefix + name)
            try:
                end = self.source.log(name).tail()
            except dlog.DLogError as exc:
                done[name] = attrs.evolve(copied, error=exc)
            else:
                left.append(_Log(name=name, into=copied.into, end=end, copied=copied))
        while left:
            left = self._round(left, done)
        return [done[name] for name in sorted(done)]

    def _round(self, logs: Sequence[_Log], done: dict[str, CopiedLog]) -> list[_Log]:
        """Make one step of each log; return those that are not finished."""
        begun: list[tuple[_Log, _Step]] = []
        for log in logs:
            try:
                step = self._begin(log, parts_per_log(len(logs), self.cores))
            except (dlog.DLogError, SparkDlogError) as exc:
                done[log.name] = attrs.evolve(log.copied, error=exc)
                continue
            if step is None:
                done[log.name] = self._finished(log)
            else:
                begun.append((log, step))
        tasks = [
            CopyTask(
                source=self.source,
                log=log.name,
                range=part,
                target=self.target,
                into=log.into,
                plan=step.plan,
            )
            for log, step in begun
            for part in step.parts
        ]
        results = iter(self.run_tasks(copy_part, tasks))
        left: list[_Log] = []
        for log, step in begun:
            parts = [next(results) for _ in step.parts]
            try:
                is_finished = self._attach(log, step, parts)
            except (dlog.DLogError, SparkDlogError) as exc:
                done[log.name] = attrs.evolve(log.copied, error=exc)
                continue
            if is_finished:
                done[log.name] = self._finished(log)
            else:
                left.append(log)
        return left

    def _begin(self, log: _Log, parts_max: int) -> _Step | None:
        """Plan the next step of a log; None if all is copied."""
        self.target.call(lambda namespace: namespace.create_log(log.into, exist_ok=True))
        for _ in range(OVERTAKEN_MAX):
            properties = self.target.call(lambda namespace: namespace.properties.get(log.into))
            note = decode_note(log.into, properties.values)
            start = self._start(log, note)
            if log.records_total is None:
                self._note_before(log, note, start)
            if (whole := Range(start, log.end)).is_empty or start == BEFORE_EVERYTHING:
                return None
            plan = self.target.call(partial(_begin_batch, into=log.into, note=note))
            if plan is None:
                continue  # another copy has made this step meanwhile; its note is there
            if note is None and self.target.call(lambda namespace: namespace.segments(log.into)):
                raise not_a_copy(log.into, self.target)
            view = self.source.log(log.name)
            measured = Measures(view).range(whole, view.extents())
            parts = next_parts(whole, measured, part_bytes=self.part_bytes, parts_max=parts_max)
            described = self.source.call(lambda namespace: namespace.segments(log.name))
            return _Step(
                plan=plan,
                note=note,
                parts=tuple(parts),
                ledgers={each.segment_seqno: each.ledger_id for each in described},
                is_last=parts[-1].end >= whole.end,
            )
        raise PipelineError(
            f"log {log.into!r} in {self.target.uri}: its properties do not show the last copied batch, or"
            " other copies are always faster. Nothing was copied; `dlog log properties` shows them"
        )

    def _finished(self, log: _Log) -> CopiedLog:
        """Take over what a copy has besides records."""
        state = StateCopy(source=self.source, log=log.name, target=self.target, into=log.into, end=log.end)
        try:
            is_sealed = state.take_over(cursors=self.cursors)
        except (dlog.DLogError, SparkDlogError) as exc:
            return attrs.evolve(log.copied, error=exc)
        return attrs.evolve(log.copied, is_sealed=is_sealed)

    def _start(self, log: _Log, note: CopyNote | None) -> Position:
        """The position that the next step begins at."""
        if note is None:
            return self.source.log(log.name).earliest()
        note.check_source(log.into, self.name, log.name)
        return position_after(self.source, note.mark)

    def _note_before(self, log: _Log, note: CopyNote | None, start: Position) -> None:
        following = None if start == BEFORE_EVERYTHING else first_after(start)
        more = self.source.call(lambda namespace: namespace.count_records(log.name, start=following))
        before = 0 if note is None else note.records
        log.records_total = before + more
        log.copied = attrs.evolve(
            log.copied, records_before=before, position=None if note is None else note.position
        )
        self._report(log, "copying" if more else "nothing new")

    def _attach(self, log: _Log, step: _Step, parts: Sequence[CopiedPart]) -> bool:
        """Attach a step; return True if the log is finished."""
        segments = [part.segment for part in parts if part.segment is not None]
        if errors := [part.error for part in parts if part.error is not None]:
            self._abandon(step.plan, segments)
            raise PipelineError(f"log {log.name!r} in {self.source.uri}: {errors[0]}")
        note = self._note_after(log, step, parts, segments)
        try:
            attached = self.target.call(
                lambda namespace: namespace.batches.attach(
                    step.plan, segments, properties={PROPERTY: note.encode()}, lock_timeout_s=LOCK_TIMEOUT_S
                )
            )
            is_overtaken = attached.is_repeated
        except BatchOvertakenError:
            is_overtaken = True
            if log.overtaken == OVERTAKEN_MAX:
                self._abandon(step.plan, segments)
                raise
        if is_overtaken:
            log.overtaken += 1
            self._abandon(step.plan, segments)
            return False
        log.overtaken = 0
        copied = log.copied.records + sum(segment.record_count for segment in segments)
        log.copied = attrs.evolve(log.copied, records=copied, position=note.position)
        self._report(log, "copied" if step.is_last else "copying")
        return step.is_last

    def _note_after(
        self, log: _Log, step: _Step, parts: Sequence[CopiedPart], segments: Sequence[DetachedSegment]
    ) -> CopyNote:
        before, end = step.note, step.parts[-1].end
        sequences = [part.sequence for part in parts if part.sequence is not None]
        return CopyNote(
            source=self.name,
            log=log.name,
            batch=step.plan.number,
            position=end,
            ledger_id=step.ledgers[end.segment],
            sequence=sequences[-1] if sequences else (0 if before is None else before.sequence),
            records=(0 if before is None else before.records) + sum(each.record_count for each in segments),
        )

    def _abandon(self, plan: BatchPlan, segments: Sequence[DetachedSegment]) -> None:
        if not segments:
            return
        try:
            self.target.call(
                lambda namespace: namespace.batches.abandon(plan, segments, lock_timeout_s=LOCK_TIMEOUT_S)
            )
        except dlog.DLogError as exc:
            logger.warning("%d segments are left, which `dlog log orphans` deletes: %s", len(segments), exc)

    def _report(self, log: _Log, step: str) -> None:
        copied = log.copied
        self.report(
            Progress(
                pipeline="copy",
                log=log.name,
                step=step,
                records=copied.records_before + copied.records,
                records_before=copied.records_before,
                records_total=log.records_total,
            )
        )


def _begin_batch(namespace: dlog.blocking.Namespace, *, into: str, note: CopyNote | None) -> BatchPlan | None:
    number = 1 if note is None else note.batch + 1
    return namespace.batches.begin([into], series=SERIES, number=number, lock_timeout_s=LOCK_TIMEOUT_S)
