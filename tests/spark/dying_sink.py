"""A sink of which one process is killed once: the committing one, the whole driver, or the executor of a
task.

The option ``series`` is "STEP:PATH"; the file at the path shows that it was killed. The steps are "before"
the commit, the calls of ``STEPS`` (after which the committing process dies), "driver" (after the commit,
before Spark records it, all processes of the driver's session die) and "executor". With "slow:PATH" the first
attempt of the first task stops in the midst of its rows, until its speculative copy has written all of them;
the path is that of a FIFO.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from dlog.blocking.batches import DetachedSegmentWriter
from dlog.blocking.namespace import BatchCalls
from spark_integration.sink import DlogStreamWriter
from spark_integration.sink.options import parse_sink_options
from spark_integration.sink.parts import Part
from spark_integration.source import DlogDataSource

LAST_BATCH = 3  # that the step "driver" commits
# What a commit of rows that go through the driver does, in this order. A segment is complete when its writer
# is closed, and then it is attached.
STEPS = {
    "last": BatchCalls,
    "begin": BatchCalls,
    "open_segment": BatchCalls,
    "append_many": DetachedSegmentWriter,
    "close": DetachedSegmentWriter,
    "attach": BatchCalls,
}


class DyingWriter(DlogStreamWriter):
    """Writes and commits as its base class, and dies once."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Part:
        assert self._options.series is not None
        step, _, marker = self._options.series.partition(":")
        if step == "executor":
            return super().write(_losing_the_executor(iterator, marker))
        context = TaskContext.get()
        assert context is not None
        if step != "slow" or context.partitionId() != 0:
            return super().write(iterator)
        if context.attemptNumber() == 0:
            return super().write(_outrun(iterator, marker))
        part = super().write(iterator)
        if part.segments:
            with open(marker, "wb"):  # waits for the slow attempt, and lets it go on
                Path(f"{marker}.outrun").touch()
        return part

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        assert self._options.series is not None
        step, _, marker = self._options.series.partition(":")
        if not any(isinstance(each, Part) and each.contents for each in messages):
            step = ""  # the empty batch that pins the start of a query
        if step == "before":
            _die_once(marker)
        with _dying_after(step, marker):
            super().commit(messages, batchId)
        if step == "driver" and batchId == LAST_BATCH:
            _die_once(marker, *_session())


class DyingSource(DlogDataSource):
    """Registered as ``dlog_dying``."""

    @classmethod
    def name(cls) -> str:
        return "dlog_dying"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DyingWriter:  # noqa: N802 - Spark's name
        return DyingWriter(parse_sink_options(dict(self.options), streaming=True))


def _losing_the_executor(batches: Iterator[pa.RecordBatch], marker: str) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch
        # The task has written the rows to its segment when it asks for the next ones.
        _die_once(marker, _executor())


def _outrun(batches: Iterator[pa.RecordBatch], marker: str) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch
        with open(marker, "rb") as fifo:
            fifo.read()  # until the copy of this task has written its rows


@contextmanager
def _dying_after(step: str, marker: str) -> Iterator[None]:
    owner = STEPS.get(step)
    if owner is None:
        yield
        return
    call = getattr(owner, step)

    def dying(*arguments: Any, **named: Any) -> Any:
        try:
            return call(*arguments, **named)
        finally:
            _die_once(marker)

    setattr(owner, step, dying)
    try:
        yield
    finally:
        setattr(owner, step, call)


def _session() -> list[int]:
    """The processes of this one's session, which is the driver's: the driver first, this one last.

    A driver that outlived a worker would report the lost worker, and end with an error of its own.
    """
    session, found = os.getsid(0), []
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            try:
                if os.getsid(int(directory.name)) == session:
                    found.append(int(directory.name))
            except ProcessLookupError:
                pass  # it ended meanwhile
    return sorted(found, key=lambda process: (process == os.getpid(), process != session))


def _executor() -> int:
    """The JVM above this Python worker."""
    process = os.getpid()
    while b"CoarseGrainedExecutorBackend" not in Path(f"/proc/{process}/cmdline").read_bytes():
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        assert process > 1, "this worker has no executor of its own"
    return process


def _die_once(marker: str, *processes: int) -> None:
    """Kill processes; without any, this one."""
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    for process in processes or (os.getpid(),):
        os.kill(process, signal.SIGKILL)
