"""Installed as the top-level package ``pyspark_dlog``, by whose prefix Spark finds data sources itself."""

from spark_integration.source import DlogDataSource as DefaultSource

__all__ = ["DefaultSource"]
