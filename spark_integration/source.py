"""The data source ``dlog``, which Spark looks up by this name.

Columns: stream, segment, entry, slot (together a record's DLSN), txid, payload; timestamp and sequence on
request.
Always: only ``schema`` opens the namespace, to find what a batch query reads. Spark pickles the object
afterwards, so every action on one DataFrame reads the same records.

Source: PySpark 4.3, pyspark.sql.datasource; its measured behaviour (docs/stream-format.md 10).
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from spark_integration.arrow import ArrowRows, ddl_of, payload_type
from spark_integration.batch import DlogBatchReader, resolve_ranges
from spark_integration.client import NamedStreams
from spark_integration.errors import OptionError
from spark_integration.interpreter import choose_worker_interpreter
from spark_integration.options import SourceOptions, parse_options
from spark_integration.planning import Range
from spark_integration.sink import DlogBatchWriter, DlogStreamWriter
from spark_integration.sink.options import parse_sink_options
from spark_integration.sink.rows import check_schema
from spark_integration.stream import DlogStreamReader


class DlogDataSource(DataSource):
    """Streams of DLog in Spark.

    ``spark.read.format("dlog").option("uri", …).option("stream", …).load()`` reads a stream up to its
    present end. ``spark.readStream`` follows it, exactly once with a checkpoint and an idempotent sink.
    ``docs/spark.md`` has the options.
    """

    _ranges: Mapping[str, Range] | None = None  # of a batch query

    @classmethod
    def name(cls) -> str:
        return "dlog"

    def schema(self) -> str:
        given = dict(self.options)
        try:
            options = parse_options(given, streaming=False)
        except OptionError:
            options = parse_options(given, streaming=True)  # Spark does not say which query it is
        else:
            self._ranges = resolve_ranges(options, _streams(options))
        return ddl_of(options.columns)

    def reader(self, schema: StructType) -> DlogBatchReader:
        options = parse_options(dict(self.options), streaming=False)
        rows = ArrowRows(options.columns, payload_type(schema, options.columns))
        streams = _streams(options)
        ranges = resolve_ranges(options, streams) if self._ranges is None else self._ranges
        return DlogBatchReader(options, streams, rows, ranges)

    def streamReader(self, schema: StructType) -> DlogStreamReader:  # noqa: N802 - Spark's name
        options = parse_options(dict(self.options), streaming=True)
        rows = ArrowRows(options.columns, payload_type(schema, options.columns))
        return DlogStreamReader(options, _streams(options), rows)

    def writer(self, schema: StructType, overwrite: bool) -> DlogBatchWriter:
        if overwrite:
            raise OptionError("mode overwrite: a log keeps what was written; use .mode('append')")
        options = parse_sink_options(dict(self.options), streaming=False)
        check_schema(schema, options.txid_column, options.key_column)
        return DlogBatchWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DlogStreamWriter:  # noqa: N802 - Spark's name
        if overwrite:
            raise OptionError(
                "output mode complete: a log keeps what was written; use append, or update with foreachBatch"
                " (docs/spark.md)"
            )
        options = parse_sink_options(dict(self.options), streaming=True)
        check_schema(schema, options.txid_column, options.key_column)
        return DlogStreamWriter(options)


def register(spark: SparkSession) -> None:
    """Register ``format("dlog")`` in a session, after a check of the interpreter of Spark's workers.

    Spark finds the source of an installed distribution by itself. Call this in a development checkout, in a
    program that runs outside an activated environment, or if another data source has the name ``dlog``.

    Raises:
        WorkerInterpreterError: Spark would start its workers with an interpreter that has no DLog; the
            message names the setting to change.
    """
    choose_worker_interpreter(spark.sparkContext)
    spark.dataSource.register(DlogDataSource)


def _streams(options: SourceOptions) -> NamedStreams:
    return NamedStreams(options.uri, options.selection, options.read_timeout_ms, options.client)
