"""Streams as a Spark data source: ``spark.read`` and ``spark.readStream`` with ``format("dlog")``."""

from __future__ import annotations

from spark_integration.errors import OffsetFormatError, OptionError, RangeUnreadableError, SparkDlogError
from spark_integration.source import DlogDataSource, register

__all__ = [
    "DlogDataSource",
    "OffsetFormatError",
    "OptionError",
    "RangeUnreadableError",
    "SparkDlogError",
    "register",
]
