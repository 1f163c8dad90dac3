"""The data source ``dlog``, which Spark looks up by this name.

Columns: stream, segment, entry, slot (together a record's DLSN), txid, payload; timestamp and sequence on
request.
Always: only ``schema`` opens the namespace, to find what a batch query reads. The ranges of a DataFrame are
found once, when it is made, and Spark pickles the object afterwards, so every action on it reads the same
records. Spark creates and plans a reader for each action.

Source: PySpark 4.3, pyspark.sql.datasource; its measured behaviour (docs/stream-format.md 10).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkAttributeError
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from dlog import LogNotFoundError
from ledger.runtime.log_lines import get_logger
from spark_integration.arrow import ArrowRows, ddl_of, payload_type
from spark_integration.client import NamedStreams, StreamsView
from spark_integration.errors import OptionError, WorkerInterpreterError
from spark_integration.offsets import Position
from spark_integration.options import SourceOptions, parse_options
from spark_integration.planning import Range
from spark_integration.ranges import RangePartition, Ranges, check_identities, resolve_place, resolve_start
from spark_integration.sink import DlogBatchWriter, DlogStreamWriter
from spark_integration.sink.options import parse_sink_options
from spark_integration.sink.rows import check_schema
from spark_integration.stream import DlogStreamReader

logger = get_logger(__name__)


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
        if not ranges:
            raise OptionError(
                f"{options.selection}: no log of {options.uri} matches, so nothing would be read;"
                " `dlog log list` shows the names"
            )
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
    program that runs outside an activated environment, or if another data source has the name ``dlog``. With
    Spark Connect the interpreter is the server's, and is not checked.

    Raises:
        WorkerInterpreterError: Spark would start its workers with an interpreter that has no DLog; the
            message names the setting to change.
    """
    try:
        context = spark.sparkContext
    except PySparkAttributeError:
        pass  # Spark Connect: the server starts the workers, and their interpreter cannot be seen from here
    else:
        choose_worker_interpreter(context)
    if not os.path.isfile(__file__):
        logger.warning(
            "DLog was imported from %s: Spark gives files of --py-files to batch queries only; install DLog"
            " in the interpreter of the driver and its workers for streaming queries",
            os.path.dirname(__file__),
        )
    spark.dataSource.register(DlogDataSource)


def _streams(options: SourceOptions) -> NamedStreams:
    return NamedStreams(options.uri, options.selection, options.read_timeout_ms, options.client)


def resolve_ranges(options: SourceOptions, streams: StreamsView) -> dict[str, Range]:
    """The range of each stream, from the options and what can be read now.

    Raises:
        DataLossError, OptionError
        dlog.LogNotFoundError: A stream that was named does not exist.
    """
    check_identities(options.starting, streams)
    check_identities(options.ending, streams)
    found: dict[str, Range] = {}
    for stream in streams.names():
        log = streams.log(stream)
        try:
            start = resolve_place(
                options.starting,
                stream,
                log,
                is_end=False,
                start_at_latest_if_none=options.start_at_latest_if_none,
            )
            end = resolve_place(options.ending, stream, log, is_end=True)
            if (
                end < start
                and isinstance(options.ending.of(stream), Position)
                and options.ending.cursor is None
            ):
                raise OptionError(
                    f"stream {stream!r}: the end {end} is before the start {start}, so nothing would be read"
                )
            end = min(end, log.tail())
            found[stream] = resolve_start(Range(start, end), log)
        except LogNotFoundError:
            if options.selection.names:
                raise  # a log that matched a pattern was deleted just now
    return found


class DlogBatchReader(DataSourceReader):
    """Reads ranges of streams.

    It takes no filters: Spark 4.3 keeps the plan of a filtered read, and uses it again for the next action on
    the same DataFrame without filters, which would then miss records (docs/spark.md).
    """

    def __init__(
        self, options: SourceOptions, streams: StreamsView, rows: ArrowRows, ranges: Mapping[str, Range]
    ) -> None:
        self._ranges = ranges
        self._planner = Ranges(options, streams, rows)

    def partitions(self) -> list[RangePartition]:
        """Split and merge the ranges by size; at least ``minPartitions`` if there are this many entries."""
        return self._planner.partitions(self._ranges)

    def read(self, partition: RangePartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        return self._planner.read(partition)


CHECK_TIMEOUT_S = 120
_PROGRAM = "import spark_integration, pyarrow, pyspark"


def choose_worker_interpreter(context: Any) -> None:
    """Make a local session start its workers with an interpreter that has DLog.

    Outside an activated environment, Spark starts ``python3`` from the PATH. Without DLog there, the first
    query fails with ``ModuleNotFoundError`` of a worker, which does not say what to change.

    If the interpreter that Spark would start lacks DLog, a session whose workers run on this machine
    (``local[...]``) gets the running interpreter instead.

    Args:
        context: The ``SparkContext`` of the session.

    Raises:
        WorkerInterpreterError: The session has workers on other machines; the message names the setting.
    """
    program = context.pythonExec
    is_local = context.master.startswith("local")
    if os.path.dirname(program) and not os.path.isabs(program) and not is_local:
        return  # of a packed environment, which Spark unpacks where the executor runs
    problem = _problem(program)
    if problem is None:
        return
    if is_local and _problem(sys.executable) is None:
        context.pythonExec = sys.executable
        return
    raise WorkerInterpreterError(
        f"Spark starts {program!r} for its Python workers, which cannot import DLog: {problem};"
        " before the session starts, set the environment variable PYSPARK_PYTHON (or the configuration"
        " spark.pyspark.python of spark-submit) to an interpreter that has DLog on the driver and on each"
        f" executor; on this machine: PYSPARK_PYTHON={sys.executable}"
    )


def _problem(program: str) -> str | None:
    """Why an interpreter cannot import this package; None if it can."""
    try:
        ended = subprocess.run(
            [program, "-c", _PROGRAM],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CHECK_TIMEOUT_S,
            env=os.environ,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        return str(exc)
    if ended.returncode == 0:
        return None
    return (ended.stderr.strip().splitlines() or [f"it ended with {ended.returncode}"])[-1]
