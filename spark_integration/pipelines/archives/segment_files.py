"""A segment as a Parquet file: written from the log, and read back, by tasks on the executors.

Always: a file is durable when its task returns; it is named only in the result, so what a failed attempt left
is never taken for a segment. Rows that are read from a file are compared with what was archived.

Source: our own; docs/pipelines.md. Apache Parquet.
"""

from __future__ import annotations

import os
import secrets
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import closing

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

import dlog
from spark_integration.arrow import BATCH_RECORDS_MAX
from spark_integration.client import NamedLog, with_namespace
from spark_integration.errors import ArchiveDamagedError, PipelineError, RangeUnreadableError
from spark_integration.pipelines.archives.content import FILE_SCHEMA, ContentCheck
from spark_integration.pipelines.archives.directory import ArchiveDirectory, sync_directory
from spark_integration.pipelines.archives.manifest import ArchivedSegment
from spark_integration.pipelines.archives.plan import PlannedSegment

_LAST_SLOT = 2**62  # after every slot of an entry
ROW_GROUP_BYTES = 32 << 20  # of rows, before compression


@attrs.frozen
class WriteSegment:
    """The task of archiving one segment."""

    log: NamedLog
    planned: PlannedSegment
    directory: ArchiveDirectory
    attempt: str  # the directory of its file, relative to the archive


@attrs.frozen
class ReadSegment:
    """The task of reading back one segment."""

    directory: ArchiveDirectory
    segment: ArchivedSegment


def write_segment(task: WriteSegment) -> ArchivedSegment:
    """Write the file of a segment; its rows are durable when this returns.

    Raises:
        dlog.DLogError: A record cannot be read, or was truncated meanwhile.
        PipelineError: The key and the headers of a record are encrypted, and no keys were given.
    """
    about = task.planned.description
    name: str | None = None
    size = 0
    check = ContentCheck(about.segment_seqno)
    if about.last_entry_id >= 0 and about.record_count != 0:
        name = f"{task.attempt}/segment-{about.segment_seqno:010d}-{secrets.token_hex(4)}.parquet"
        path = task.directory.path / name
        with path.open("xb") as file:
            with pq.ParquetWriter(file, FILE_SCHEMA, compression="zstd") as writer:
                for table in _row_groups(task, check):
                    writer.write_table(table, row_group_size=max(1, len(table)))
            file.flush()
            os.fsync(file.fileno())
            size = os.fstat(file.fileno()).st_size
        sync_directory(path.parent)
    if check.content is None and name is not None:
        path.unlink()
        name, size = None, 0
    return ArchivedSegment(
        segment=about.segment_seqno,
        ledger_id=about.ledger_id,
        completed_ms=about.completed_ms,
        content=check.content,
        file=name,
        size_bytes=size,
    )


def _row_groups(task: WriteSegment, check: ContentCheck) -> Iterator[pa.Table]:
    gathered: list[pa.RecordBatch] = []
    size = 0
    for batch in _batches(task):
        if batch.has_sealed_attributes:
            raise PipelineError(
                f"log {task.log.stream!r} in {task.log.uri}: a record from {batch.first_dlsn} on has an"
                " encrypted key or headers, which would be lost; nothing was truncated. Give the option"
                " keyFile"
            )
        rows = _rows(batch)
        check.add(rows)
        gathered.append(rows)
        size += rows.nbytes
        if size >= ROW_GROUP_BYTES:
            yield pa.Table.from_batches(gathered)
            gathered, size = [], 0
    if gathered:
        yield pa.Table.from_batches(gathered)


def _batches(task: WriteSegment) -> Iterator[dlog.RecordBatch]:
    """The records of the segment. Whether all are there is for the caller to check by their number."""
    log, about = task.log, task.planned.description
    # Not the last position: it may be that of a record without a row, or of a set of records (Apache's).
    end = dlog.DLSN(about.segment_seqno, about.last_entry_id, _LAST_SLOT)
    with with_namespace(
        log.uri,
        log.options,
        lambda namespace: namespace.open_reader(log.stream, start=task.planned.first, end=end, follow=False),
    ) as reader:
        while (batch := reader.read_batch(BATCH_RECORDS_MAX, wait_s=log.read_timeout_ms / 1000)) is not None:
            if not batch:
                raise RangeUnreadableError(
                    f"log {log.stream!r} in {log.uri}, segment {about.segment_seqno}: no record was readable"
                    f" for {log.read_timeout_ms} ms; check that enough bookies run, or raise readTimeoutMs"
                )
            stop = bisect_right(batch.segment_seqnos, about.segment_seqno)
            if stop:
                yield batch[:stop]
            if stop < len(batch):
                return


def _rows(batch: dlog.RecordBatch) -> pa.RecordBatch:
    columns = batch.to_arrow(attributes=True)
    names = ["segment", "entry", "slot", "txid", "sequence_id", "payload", "key", "headers"]
    return pa.RecordBatch.from_arrays([columns.column(name) for name in names], schema=FILE_SCHEMA)


def read_segment(task: ReadSegment) -> Iterator[pa.RecordBatch]:
    """The rows of an archived segment, in order. They are right only if the iteration ends without an error.

    Raises:
        ArchiveDamagedError: The file is missing or damaged, or its rows are not those that were archived.
    """
    segment = task.segment
    if segment.file is None:
        return
    path = task.directory.path / segment.file
    check = ContentCheck(segment.segment)
    try:
        with closing(pq.ParquetFile(path)) as file:
            for rows in file.iter_batches(batch_size=BATCH_RECORDS_MAX):
                plain = rows.replace_schema_metadata(None)
                check.add(plain)
                yield plain
    except (OSError, pa.ArrowException) as exc:
        raise ArchiveDamagedError(f"{path} of segment {segment.segment} cannot be read: {exc}") from exc
    if check.content != segment.content:
        raise ArchiveDamagedError(f"{path} of segment {segment.segment} has other rows than those archived")


def check_segment(task: ReadSegment) -> int:
    """Read a segment back and compare it; return the number of its records.

    Raises:
        ArchiveDamagedError: As ``read_segment``.
    """
    return sum(map(len, read_segment(task)))
