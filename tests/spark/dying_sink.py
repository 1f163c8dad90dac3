"""A sink whose committing process is killed once, before or after its commit.

The option ``series`` is "before:PATH" or "after:PATH"; the file at the path shows that it was killed.
"""

from __future__ import annotations

import os
import signal

from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from spark_integration.sink import DlogStreamWriter
from spark_integration.sink.options import parse_sink_options
from spark_integration.sink.parts import Part
from spark_integration.source import DlogDataSource


class DyingWriter(DlogStreamWriter):
    """Commits as its base class, and dies once."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        assert self._options.series is not None
        step, _, marker = self._options.series.partition(":")
        if not any(isinstance(each, Part) and each.rows for each in messages):
            step = ""  # the empty batch that pins the start of a query
        if step == "before":
            _die_once(marker)
        super().commit(messages, batchId)
        if step == "after":
            _die_once(marker)


class DyingSource(DlogDataSource):
    """Registered as ``dlog_dying``."""

    @classmethod
    def name(cls) -> str:
        return "dlog_dying"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DyingWriter:  # noqa: N802 - Spark's name
        return DyingWriter(parse_sink_options(dict(self.options), streaming=True))


def _die_once(marker: str) -> None:
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)
