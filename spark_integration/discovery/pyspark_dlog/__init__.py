"""Installed as the top-level package ``pyspark_dlog``: Spark finds data sources by the prefix of this
name."""

from spark_integration.source import DlogDataSource as DefaultSource

__all__ = ["DefaultSource"]
