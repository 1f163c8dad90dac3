"""The data source ``dlog``, which Spark looks up by this name.

Columns: stream, segment, entry, slot (together a record's DLSN), txid, payload.
Always: nothing here opens a connection, because Spark creates and pickles these objects in several processes.

Source: PySpark 4.3, pyspark.sql.datasource; its measured behaviour (docs/stream-format.md 10).
"""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from spark_integration.arrow import DDL
from spark_integration.batch import DlogBatchReader
from spark_integration.client import NamedLog
from spark_integration.errors import OptionError
from spark_integration.options import SourceOptions, parse_options
from spark_integration.stream import DlogStreamReader


class DlogDataSource(DataSource):
    """Streams of DLog in Spark.

    ``spark.read.format("dlog").option("uri", …).option("stream", …).load()`` reads a stream up to its
    present end. ``spark.readStream`` follows it, exactly once with a checkpoint and an idempotent sink.
    ``spark_integration.options`` defines the options.
    """

    @classmethod
    def name(cls) -> str:
        return "dlog"

    def schema(self) -> str:
        return DDL

    def reader(self, schema: StructType) -> DlogBatchReader:
        _check_schema(schema)
        options = parse_options(dict(self.options), streaming=False)
        return DlogBatchReader(options, _log(options))

    def streamReader(self, schema: StructType) -> DlogStreamReader:  # noqa: N802 - Spark's name
        _check_schema(schema)
        options = parse_options(dict(self.options), streaming=True)
        return DlogStreamReader(options, _log(options))


def register(spark: SparkSession) -> None:
    """Register ``format("dlog")`` in a session.

    Spark finds the source of an installed distribution by itself. Call this in a development checkout, or if
    another data source has the name ``dlog``.
    """
    spark.dataSource.register(DlogDataSource)


def _log(options: SourceOptions) -> NamedLog:
    return NamedLog(options.uri, options.stream, options.read_timeout_ms, options.files)


def _check_schema(schema: StructType) -> None:
    given = ", ".join(f"{field.name} {field.dataType.simpleString().upper()}" for field in schema.fields)
    if given != DDL:
        raise OptionError(
            f"the schema {given!r} differs from the columns of this source, {DDL!r}; remove .schema(...) and"
            " select columns instead"
        )
