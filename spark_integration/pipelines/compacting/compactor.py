"""The compaction of a log into a snapshot.

Inside: the range, the batch of a snapshot log. Not inside: the query (``rows``), files (``files``).
Always: the end of the range is fixed before anything is read; the records of a snapshot and its manifest get
into the log in one transaction, so a log is a snapshot or empty, and a repeated call makes no second one; no
record of the source is left out unless it is truncated and the caller allows that.

Source: our own; docs/pipelines.md, docs/bulk.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import attrs

import dlog
import dlog.blocking
from dlog import LogDescription
from dlog.bulk import BatchOvertakenError, BatchPlan, DetachedSegment
from ledger.runtime.log_lines import get_logger
from spark_integration.errors import PipelineError
from spark_integration.measuring import Measures
from spark_integration.offsets import BEFORE_EVERYTHING, Position
from spark_integration.pipelines.compacting.manifest import (
    PROPERTY,
    SERIES,
    SnapshotManifest,
    decode_manifest,
)
from spark_integration.pipelines.compacting.parts import WriteTarget, WrittenPart, in_order
from spark_integration.pipelines.compacting.rows import Wanted, write_through_spark
from spark_integration.pipelines.marks import ReadMark
from spark_integration.pipelines.places import Place, place_of
from spark_integration.pipelines.progress import Progress, Report, ignore_progress
from spark_integration.pipelines.resuming import position_after
from spark_integration.pipelines.tasks import failed_task
from spark_integration.planning import Range, total

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = get_logger(__name__)
LOCK_TIMEOUT_S = 10.0
PART_BYTES = 64 << 20  # about the most of the source for one segment of the snapshot
PARTS_MAX = 1_000  # segments of one batch

WriteSnapshot = Callable[[Wanted, WriteTarget], list[WrittenPart]]


@attrs.frozen(kw_only=True)
class Snapshot:
    """A snapshot log."""

    log: str
    manifest: SnapshotManifest
    is_repeated: bool = False  # it was there when the call began, or another call was faster


def compact(
    spark: SparkSession,
    uri: str,
    log: str,
    *,
    key: str = "key",
    into: str,
    base: str | None = None,
    drop_tombstones: bool = False,
    drop_null_keys: bool = False,
    allow_truncated: bool = False,
    options: Mapping[str, str] | None = None,
    report: Report = ignore_progress,
) -> Snapshot:
    """Write the last record of each key of a log to a snapshot log, in the order of their positions.

    The records keep their payloads, keys, headers and transaction ids. A call that failed or died is repeated
    as it was; if the snapshot is there, the call changes nothing and returns it. A later snapshot has another
    name; with ``base`` it is made from an earlier one and what was written since.

    Args:
        key: An expression of Spark SQL over the columns ``payload`` (binary), ``text`` (the payload as a
            string), ``key`` and ``headers`` of the record, ``txid``, ``segment``, ``entry`` and ``slot``,
            such as ``get_json_object(text, '$.id')``.
        into: The snapshot log. It is created if it does not exist.
        base: A snapshot log of the same log by the same key.
        drop_tombstones: Leave out keys whose last payload is empty.
        drop_null_keys: Leave out records whose key is null. Otherwise such a record is an error.
        allow_truncated: Make a snapshot without ``base`` although the log does not begin at its first record.
        options: Of the client, as for the data source: ``client.*`` and files.

    Raises:
        PipelineError: The log was truncated; or ``into`` is another log or snapshot; or Spark gave up a task,
            for instance because a key is null. Nothing was written to ``into``.
        OptionError: An option is wrong.
        dlog.LogNotFoundError, dlog.LogLockedError, dlog.ConfigError, dlog.DLogError
    """
    return Compaction(
        place=place_of(uri, options),
        log=log,
        key=key,
        into=into,
        base=base,
        drops_tombstones=drop_tombstones,
        drops_null_keys=drop_null_keys,
        allows_truncated=allow_truncated,
        options=dict(options or {}),
        write=partial(_write, spark),
        report=report,
    ).do()


def read_snapshot(uri: str, log: str, *, options: Mapping[str, str] | None = None) -> SnapshotManifest:
    """The manifest of a snapshot log. A reader reads that log, and then the source after ``mark.position``.

    Raises:
        PipelineError: The log is no snapshot, or its manifest does not parse.
        dlog.LogNotFoundError, dlog.DLogError
    """
    found = manifest_of(place_of(uri, options), log)
    if found is None:
        raise PipelineError(f"log {log!r} in {uri} is no snapshot")
    return found


def manifest_of(place: Place, log: str) -> SnapshotManifest | None:
    """The manifest of a log; None if it is no snapshot."""
    text = place.call(lambda namespace: namespace.properties.get(log)).values.get(PROPERTY)
    return None if text is None else decode_manifest(log, text)


def _write(spark: SparkSession, wanted: Wanted, target: WriteTarget) -> list[WrittenPart]:
    try:
        return write_through_spark(spark, wanted, target)
    except Exception as exc:  # PySpark raises errors of py4j with the trace of the worker as text
        raise failed_task(exc) from exc


@attrs.frozen(kw_only=True)
class Covered:
    """The ranges of records that a snapshot covers."""

    ranges: tuple[tuple[str, Position, Position], ...]
    mark: ReadMark
    parts: int


@attrs.frozen(kw_only=True)
class Compaction:
    """One run of ``compact``."""

    place: Place
    log: str
    key: str
    into: str
    base: str | None
    drops_tombstones: bool
    drops_null_keys: bool
    allows_truncated: bool
    options: Mapping[str, str]
    write: WriteSnapshot
    report: Report = ignore_progress

    def do(self) -> Snapshot:
        """Make the snapshot; see ``compact``."""
        if self.into in (self.log, self.base):
            raise PipelineError(f"log {self.into!r} cannot be its own snapshot; give another name")
        self.place.call(lambda namespace: namespace.create_log(self.into, exist_ok=True))
        if (found := self._present()) is not None:
            return found
        plan = self.place.call(
            lambda namespace: namespace.batches.begin(
                [self.into], series=SERIES, number=1, lock_timeout_s=LOCK_TIMEOUT_S
            )
        )
        if plan is None:
            return self._faster()
        if self.place.call(lambda namespace: namespace.segments(self.into)):
            raise PipelineError(
                f"log {self.into!r} exists and is no snapshot; nothing was written. Give the snapshot another"
                " name"
            )
        covered = self.covered()
        self.tell("writing the snapshot", covered.mark, 0)
        parts = self.write(self.wanted(covered), WriteTarget(place=self.place, into=self.into, plan=plan))
        segments = in_order(parts)
        rows = sum(segment.record_count for segment in segments)
        manifest = self.manifest(covered.mark, rows)
        try:
            attached = self.place.call(
                lambda namespace: namespace.batches.attach(
                    plan, segments, properties={PROPERTY: manifest.encode()}, lock_timeout_s=LOCK_TIMEOUT_S
                )
            )
        except BatchOvertakenError as exc:
            self._abandon(plan, segments)
            if (found := self._present()) is not None:
                return found
            raise PipelineError(
                f"log {self.into!r} got other records meanwhile; the snapshot was not written: {exc}"
            ) from exc
        if attached.is_repeated:
            self._abandon(plan, segments)
            return self._faster()
        self.tell("the snapshot is there", covered.mark, rows)
        return Snapshot(log=self.into, manifest=manifest)

    def wanted(self, covered: Covered) -> Wanted:
        """The rows of the snapshot."""
        return Wanted(
            uri=self.place.uri,
            options=self.options,
            ranges=covered.ranges,
            key=self.key,
            drops_tombstones=self.drops_tombstones,
            drops_null_keys=self.drops_null_keys,
            parts=covered.parts,
        )

    def manifest(self, mark: ReadMark, rows: int) -> SnapshotManifest:
        """The manifest of the snapshot."""
        return SnapshotManifest(
            mark=mark, key=self.key, drops_tombstones=self.drops_tombstones, base=self.base, rows=rows
        )

    def check_same(self, name: str, manifest: SnapshotManifest) -> None:
        """Raise ``PipelineError`` unless a manifest is of the same log, by the same key."""
        manifest.check_same(
            name,
            source=self.place.uri,
            log=self.log,
            key=self.key,
            drops_tombstones=self.drops_tombstones,
        )

    def covered(self) -> Covered:
        """The ranges of the base and the source, which do not change any more.

        Raises:
            PipelineError: There is nothing to compact, or the log was truncated.
        """
        before: list[tuple[str, Position, Position]] = []
        mark: ReadMark | None = None
        source = self.place.log(self.log)
        end = source.tail()
        if self.base is None:
            self._check_beginning(self.place.call(lambda namespace: namespace.describe_log(self.log)))
            start = source.earliest()
        else:
            found = manifest_of(self.place, self.base)
            if found is None:
                raise PipelineError(
                    f"log {self.base!r} is no snapshot, so it is no base; nothing was written"
                )
            self.check_same(self.base, found)
            mark = found.mark
            start = position_after(self.place, mark)
            base = self.place.log(self.base)
            if base.tail() != BEFORE_EVERYTHING:
                before.append((self.base, base.earliest(), base.tail()))
        if end > start and start != BEFORE_EVERYTHING:
            mark = self._mark_at(end)
            before.append((self.log, start, end))
        if mark is None or not before:
            raise PipelineError(f"log {self.log!r} in {self.place.uri} has no record; nothing was written")
        return Covered(ranges=tuple(before), mark=mark, parts=self._parts(before))

    def _check_beginning(self, described: LogDescription) -> None:
        if not described.segments or self.allows_truncated:
            return
        first = described.segments[0]
        known = first.start_sequence_id if first.start_sequence_id not in (None, -1) else None
        is_whole = first.segment_seqno == 1 if known is None else known == 0
        if not is_whole or described.first_dlsn != dlog.DLSN(first.segment_seqno, 0, 0):
            raise PipelineError(
                f"log {self.log!r} in {self.place.uri} begins at {described.first_dlsn}: what is before is"
                " truncated, and a snapshot would lack its keys. Nothing was written; give an earlier"
                " snapshot as the base, or allow it"
            )

    def _mark_at(self, end: Position) -> ReadMark:
        def last(namespace: dlog.blocking.Namespace) -> ReadMark:
            ledgers = {each.segment_seqno: each.ledger_id for each in namespace.segments(self.log)}
            at = dlog.DLSN(end.segment, end.entry, end.slot)
            with namespace.open_reader(self.log, start=at, follow=False) as reader:
                batch = reader.read_batch(1)
            if not batch or batch.first_dlsn != at or end.segment not in ledgers:
                raise PipelineError(f"log {self.log!r}: its last record was truncated just now; try again")
            return ReadMark(
                source=self.place.uri,
                log=self.log,
                position=end,
                ledger_id=ledgers[end.segment],
                sequence=batch.sequence_ids[0] + 1,
            )

        return self.place.call(last)

    def _parts(self, ranges: Sequence[tuple[str, Position, Position]]) -> int:
        size_bytes = 0
        for log, start, end in ranges:
            view = self.place.log(log)
            size_bytes += total(Measures(view).range(Range(start, end), view.extents())).size_bytes
        return max(1, min(PARTS_MAX, -(-size_bytes // PART_BYTES)))

    def _present(self) -> Snapshot | None:
        found = manifest_of(self.place, self.into)
        if found is None:
            return None
        self.check_same(self.into, found)
        return Snapshot(log=self.into, manifest=found, is_repeated=True)

    def _faster(self) -> Snapshot:
        if (found := self._present()) is None:
            raise PipelineError(
                f"log {self.into!r}: its properties show no snapshot, although one was written; nothing was"
                " written. `dlog log properties` shows them"
            )
        return found

    def _abandon(self, plan: BatchPlan, segments: Sequence[DetachedSegment]) -> None:
        try:
            self.place.call(
                lambda namespace: namespace.batches.abandon(plan, segments, lock_timeout_s=LOCK_TIMEOUT_S)
            )
        except dlog.DLogError as exc:
            logger.warning("%d segments are left, which `dlog log orphans` deletes: %s", len(segments), exc)

    def tell(self, step: str, mark: ReadMark, rows: int) -> None:
        """Report progress."""
        self.report(Progress(pipeline="compact", log=self.log, step=f"{step}, through {mark}", records=rows))
