"""Streams as a Spark data source: ``spark.read`` and ``spark.readStream`` with ``format("dlog")``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_integration.errors import (
    ArchiveDamagedError,
    ArchiveGapError,
    BatchTooLargeError,
    ChangedBatchError,
    DataLossError,
    OffsetFormatError,
    OptionError,
    PayloadFormatError,
    PipelineError,
    RangeUnreadableError,
    RepeatedBatchError,
    RowFormatError,
    SparkDlogError,
    SparkStartError,
    WorkerInterpreterError,
)

if TYPE_CHECKING:
    from spark_integration.source import DlogDataSource, register

__all__ = [
    "ArchiveDamagedError",
    "ArchiveGapError",
    "BatchTooLargeError",
    "ChangedBatchError",
    "DataLossError",
    "DlogDataSource",
    "OffsetFormatError",
    "OptionError",
    "PayloadFormatError",
    "PipelineError",
    "RangeUnreadableError",
    "RepeatedBatchError",
    "RowFormatError",
    "SparkDlogError",
    "SparkStartError",
    "WorkerInterpreterError",
    "register",
]


def __getattr__(name: str) -> Any:
    # `dlog pipeline --help` works without PySpark.
    if name not in ("DlogDataSource", "register"):
        raise AttributeError(f"module 'spark_integration' has no attribute {name!r}")
    from pyspark import __version__ as version

    if tuple(int(part) for part in version.split(".")[:2]) < (4, 2):
        raise SparkDlogError(f"the data source dlog needs PySpark 4.2 or later, and this is {version}")
    from spark_integration import source

    return getattr(source, name)
