"""Streams as a Spark data source: ``spark.read`` and ``spark.readStream`` with ``format("dlog")``."""

from __future__ import annotations

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
