"""The floor of Spark in Python: a source and a sink that do nothing but what Spark requires.

The source reads records of one size from a file that grows. The sink notes when a record arrives. Both are
sent to Spark's processes, which import this module.

Source: our own; PySpark 4.3, pyspark.sql.datasource.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

NAME = "dlog_bench"
STAMP = struct.Struct(">q")  # when a record was appended, at the beginning of its payload
POLL_S = 0.001
POLL_TIMEOUT_S = 0.3  # as the default of pollTimeoutMs
SCHEMA = pa.schema([pa.field("payload", pa.binary())])


def stamped(size: int) -> bytes:
    """A payload of at least ``size`` bytes with the present moment."""
    return STAMP.pack(time.monotonic_ns()).ljust(size, b"x")


class FloorSource(DataSource):
    """Registered as ``dlog_bench``.

    Options: ``path``, the file; ``size``, bytes of a record; ``most``, of records in a batch.
    """

    @classmethod
    def name(cls) -> str:
        """For Spark."""
        return NAME

    def schema(self) -> str:
        """For Spark."""
        return "payload BINARY"

    def streamReader(self, schema: StructType) -> FloorReader:  # noqa: N802 - Spark's name
        """For Spark."""
        return FloorReader(self.options["path"], int(self.options["size"]), int(self.options["most"]))

    def streamWriter(self, schema: StructType, overwrite: bool) -> ArrivalWriter:  # noqa: N802 - Spark's name
        """For Spark."""
        return ArrivalWriter(self.options["path"])


class FloorReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the records of a file; the offset is their number."""

    def __init__(self, path: str, size: int, most: int) -> None:
        self._path, self._size, self._most = path, size, most
        self._end: int | None = None  # none: it follows the file

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """For Spark."""
        self._end = self._records()

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """For Spark."""
        return {"records": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802 - Spark's name
        """For Spark. Waits for a record, as a good source does."""
        deadline = time.monotonic() + POLL_TIMEOUT_S
        first = start["records"]
        while (end := self._records() if self._end is None else self._end) <= first:
            if self._end is not None or time.monotonic() > deadline:
                return start
            time.sleep(POLL_S)
        return {"records": min(end, first + self._most)}

    def _records(self) -> int:
        return Path(self._path).stat().st_size // self._size

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """For Spark."""
        return [InputPartition((start["records"], end["records"]))] if start != end else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """For Spark."""
        first, end = partition.value
        with open(self._path, "rb") as file:
            file.seek(first * self._size)
            payloads = [file.read(self._size) for _ in range(end - first)]
        yield pa.record_batch([pa.array(payloads, pa.binary())], schema=SCHEMA)


class Arrivals(WriterCommitMessage):
    """How long each record of a task was under way, in nanoseconds."""

    def __init__(self, delays_ns: list[int]) -> None:
        self.delays_ns = delays_ns


class ArrivalWriter(DataSourceStreamArrowWriter):
    """Notes the time from the stamp of each record to its ``write``; ``commit`` appends it to a file."""

    def __init__(self, path: str) -> None:
        self._path = path

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Arrivals:
        """For Spark."""
        delays_ns = []
        for batch in iterator:
            now = time.monotonic_ns()
            delays_ns += [now - STAMP.unpack_from(each)[0] for each in batch.column("payload").to_pylist()]
        return Arrivals(delays_ns)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """For Spark."""
        with open(self._path, "a") as file:
            file.writelines(
                f"{delay}\n" for each in messages if isinstance(each, Arrivals) for delay in each.delays_ns
            )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """For Spark."""
