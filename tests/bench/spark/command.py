"""`dlog bench spark`: reading and writing logs from Spark, beside Spark's own sources and files.

Inside: the session, the queries, their figures. Not inside: the namespace under measurement (``target``).
Always: every row of one run does the same work with the same records in the same session; what Spark does
once, such as starting Python, is done before the clock starts.

Source: our own; docs/spark.md, docs/performance.md.
"""

from __future__ import annotations

import random
import secrets
import statistics
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import trio

import dlog
import dlog.blocking
from dlog.cli.bench.options import check_place, place_options
from dlog.cli.bench.rows import print_rows
from dlog.cli.bench.target import BenchTarget, open_target
from dlog.cli.terminal.options import json_option
from dlog.cli.terminal.output import print_json
from dlog.cli.terminal.scratch import open_scratch
from dlog.cli.terminal.signals import run
from dlog.cli.terminal.spark_lookup import register_source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LOG = "bench"
TIMEOUT_S = 600
APPENDED_AT_ONCE = 1_000
SMALL_BATCHES = 40  # of one record, for the cost of a micro-batch
ARRIVALS = 80  # single records whose way is timed
DRIVER_PART_BYTES = 12 << 20  # of rows, in one task of the write through the driver
WARM_UP = 20  # of them, not counted
PAUSE_S = (0.15, 0.35)  # between them, at random
COLUMNS = {
    "work": "work",
    "system": "system",
    "records/s": "records_per_s",
    "batch p50 ms": "batch_p50_ms",
    "p50 ms": "latency_p50_ms",
    "p99 ms": "latency_p99_ms",
}
SESSION = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}

Row = dict[str, Any]


@click.command("spark")
@place_options
@click.option("--records", type=click.IntRange(min=1_000), default=300_000, show_default=True)
@click.option(
    "--size", type=click.IntRange(1, 1_000_000), default=1024, show_default=True, help="Payload bytes."
)
@click.option("--partitions", type=click.IntRange(1, 64), default=2, show_default=True)
@json_option("rows")
def command(
    uri: str | None, bookies: int | None, records: int, size: int, partitions: int, as_json: bool
) -> None:
    """Measure reading and writing from Spark, in one local session.

    It reads a log as a batch and as a stream into Spark's noop sink, beside a Parquet source and Spark's
    rate source with the same records; writes a log by segments and through the driver, beside Parquet; and
    measures the time of a micro-batch with one record, and the time of a single record from its append to
    the `write` of a sink, beside a Python source and a Python sink that do only what Spark requires.
    """
    check_place(uri, bookies)
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        raise click.ClickException(
            "PySpark is not installed; install it with: pip install '.[spark]' in a checkout of DLog"
        )
    with open_scratch("bench") as directory:

        async def measured() -> list[Row]:
            async with open_target(directory, uri, bookies) as target:
                work = partial(measure, target, directory, records=records, size=size, partitions=partitions)
                return await trio.to_thread.run_sync(work)

        rows = run(measured)
    if as_json:
        print_json({"records": records, "size_bytes": size, "partitions": partitions, "rows": rows})
        return
    print_rows(COLUMNS, rows)


def measure(target: BenchTarget, directory: Path, *, records: int, size: int, partitions: int) -> list[Row]:
    """All rows: ``work``, ``system``, and ``records_per_s`` or times in milliseconds."""
    from pyspark.sql import SparkSession

    from tests.bench.spark.floor import FloorSource

    builder = SparkSession.builder.master(f"local[{partitions}]").appName("dlog bench")
    for key, value in SESSION.items():
        builder = builder.config(key, value)
    spark = builder.config("spark.sql.warehouse.dir", str(directory / "warehouse")).getOrCreate()
    spark.sparkContext.setLogLevel("FATAL")  # stopping a query writes errors of its tasks
    try:
        register_source(spark)
        spark.dataSource.register(FloorSource)
        with dlog.blocking.open_namespace(target.uri) as namespace:
            mark = secrets.token_hex(4)
            names = [f"{LOG}-{kind}-{mark}" for kind in ("read", "small", "segments", "driver", "arrive")]
            try:
                return _Runs(spark, namespace, target.uri, directory, records, size, partitions).all(*names)
            finally:
                for name in names:
                    if namespace.log_exists(name):
                        namespace.delete_log(name)
    finally:
        spark.stop()


class _Runs:
    """The queries of one run."""

    def __init__(
        self,
        spark: SparkSession,
        namespace: dlog.blocking.Namespace,
        uri: str,
        directory: Path,
        records: int,
        size: int,
        partitions: int,
    ) -> None:
        self._spark, self._namespace, self._uri, self._directory = spark, namespace, uri, directory
        self._records, self._size, self._partitions = records, size, partitions
        self._queries = 0

    def all(self, to_read: str, small: str, by_segments: str, by_driver: str, arrive: str) -> list[Row]:
        """Every measurement, in order."""
        files = str(self._directory / "payloads")
        payloads = self._made(self._partitions)
        # A task returns up to 16 MiB of rows to the driver.
        parts = max(self._partitions, self._records * self._size // DRIVER_PART_BYTES)
        small_parts = self._made(parts)
        payload = bytes(self._size)
        with self._namespace.open_writer(to_read, create=True) as writer:
            for first in range(0, self._records, APPENDED_AT_ONCE):
                writer.append_many([payload] * min(APPENDED_AT_ONCE, self._records - first))
        with self._namespace.open_writer(small, create=True) as writer:
            for _ in range(SMALL_BATCHES):
                writer.append(payload)
        self._batch(small).write.format("noop").mode("overwrite").save()  # starts Python
        self._to_log(payloads.limit(10), f"{by_segments}", "1")
        return [
            self._rate("write, batch", "Parquet files", lambda: payloads.write.parquet(files)),
            self._rate("write, batch", "dlog, by segments", lambda: self._to_log(payloads, by_segments, "1")),
            self._rate("write, batch", "dlog, by driver", lambda: self._to_log(small_parts, by_driver, "1t")),
            self._rate("read, batch", "Parquet files", lambda: self._noop(self._spark.read.parquet(files))),
            self._rate("read, batch", "dlog", lambda: self._noop(self._batch(to_read))),
            self._throughput("Parquet files", self._files(files)),
            self._throughput("rate source", self._rate_source(self._records, batches=1)),
            self._throughput("dlog", self._stream(to_read)),
            self._small("rate source", self._rate_source(1, batches=SMALL_BATCHES)),
            self._small("trivial Python source", self._trivial()),
            self._small("dlog", self._stream(small, maxEntriesPerTrigger="1")),
            self._arrival_in_file(),
            self._arrival_in_log(arrive),
        ]

    def _rate(self, work: str, system: str, act: Callable[[], object]) -> Row:
        began = time.perf_counter()
        act()
        return _row(work, system, records_per_s=self._records / (time.perf_counter() - began))

    def _made(self, partitions: int) -> DataFrame:
        made = self._spark.range(self._records, numPartitions=partitions)
        return made.selectExpr(f"CAST(repeat('x', {self._size}) AS BINARY) AS payload")

    def _noop(self, frame: DataFrame) -> None:
        frame.write.format("noop").mode("overwrite").save()

    def _to_log(self, frame: DataFrame, log: str, driver_bytes_max: str) -> None:
        writer = frame.write.format("dlog").mode("append").option("uri", self._uri)
        writer.option("stream", log).option("driverBytesMax", driver_bytes_max).save()

    def _batch(self, log: str) -> DataFrame:
        reader = self._spark.read.format("dlog").option("uri", self._uri).option("stream", log)
        return reader.option("minPartitions", str(self._partitions)).load()

    def _stream(self, log: str, **options: str) -> list[dict[str, Any]]:
        reader = self._spark.readStream.format("dlog").option("uri", self._uri).option("stream", log)
        reader = reader.option("startingOffsets", "earliest").option("minPartitions", str(self._partitions))
        return self._progress(reader.options(**options).load(), availableNow=True)

    def _files(self, files: str) -> list[dict[str, Any]]:
        return self._progress(
            self._spark.readStream.schema("payload BINARY").parquet(files), availableNow=True
        )

    def _rate_source(self, rows: int, *, batches: int) -> list[dict[str, Any]]:
        reader = self._spark.readStream.format("rate-micro-batch").option("rowsPerBatch", str(rows))
        frame = reader.option("numPartitions", str(self._partitions)).load()
        frame = frame.selectExpr(f"CAST(repeat('x', {self._size}) AS BINARY) AS payload")
        return self._progress(frame, batches=batches, processingTime="0 seconds")

    def _of_file(self, path: Path, most: int) -> DataFrame:
        """The records of a file by the trivial source."""
        reader = self._spark.readStream.format("dlog_bench").option("path", str(path))
        return reader.option("size", str(self._stamped_bytes)).option("most", str(most)).load()

    @property
    def _stamped_bytes(self) -> int:
        return max(self._size, 8)

    def _trivial(self) -> list[dict[str, Any]]:
        path = self._directory / "records"
        path.write_bytes(bytes(self._stamped_bytes) * SMALL_BATCHES)
        return self._progress(self._of_file(path, 1), availableNow=True)

    def _arrival_in_file(self) -> Row:
        from tests.bench.spark.floor import stamped

        path = self._directory / "arriving"
        path.touch()
        with open(path, "ab", buffering=0) as file:
            return self._arrival(
                "trivial Python source", self._of_file(path, 1 << 30), lambda: file.write(stamped(self._size))
            )

    def _arrival_in_log(self, log: str) -> Row:
        from tests.bench.spark.floor import stamped

        self._namespace.create_log(log)
        reader = self._spark.readStream.format("dlog").option("uri", self._uri).option("stream", log)
        frame = reader.option("startingOffsets", "earliest").load().select("payload")
        with self._namespace.open_writer(log) as writer:
            return self._arrival("dlog", frame, lambda: writer.append(stamped(self._size)))

    def _arrival(self, system: str, frame: DataFrame, append: Callable[[], object]) -> Row:
        """The time of single records from before their append to the ``write`` of a sink."""
        self._queries += 1
        arrived = self._directory / f"arrived-{self._queries}"
        query = (
            frame.writeStream.format("dlog_bench")
            .option("path", str(arrived))
            .option("checkpointLocation", str(self._directory / f"checkpoint-{self._queries}"))
            .start()
        )
        try:
            for number in range(ARRIVALS):
                append()
                time.sleep(random.uniform(*PAUSE_S))
                if not number:
                    query.processAllAvailable()  # the first one waits for what Spark starts once
            query.processAllAvailable()
        finally:
            query.stop()
        delays = sorted(int(line) / 1e6 for line in arrived.read_text().splitlines()[WARM_UP:])
        return _row(
            "append to sink",
            system,
            latency_p50_ms=delays[len(delays) // 2],
            latency_p99_ms=delays[len(delays) * 99 // 100],
        )

    def _progress(
        self, frame: DataFrame, *, batches: int | None = None, **trigger: Any
    ) -> list[dict[str, Any]]:
        """The progress of each batch with rows, of a query into the noop sink."""
        self._queries += 1
        query = (
            frame.writeStream.format("noop")
            .option("checkpointLocation", str(self._directory / f"checkpoint-{self._queries}"))
            .trigger(**trigger)
            .start()
        )
        try:
            if batches is None:
                if not query.awaitTermination(TIMEOUT_S):
                    raise click.ClickException(f"a query did not end within {TIMEOUT_S} s")
            else:
                self._wait_batches(query, batches)
            return _with_rows(query)
        finally:
            query.stop()

    def _wait_batches(self, query: StreamingQuery, batches: int) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while len(_with_rows(query)) < batches:
            if time.monotonic() > deadline:
                raise click.ClickException(f"a query had not {batches} batches within {TIMEOUT_S} s")
            query.awaitTermination(0.1)  # type: ignore[arg-type]  # seconds; the annotation says int

    def _throughput(self, system: str, progress: list[dict[str, Any]]) -> Row:
        rows = sum(each["numInputRows"] for each in progress)
        spent_s = sum(each["durationMs"]["triggerExecution"] for each in progress) / 1000
        return _row("read, stream", system, records_per_s=rows / spent_s)

    def _small(self, system: str, progress: list[dict[str, Any]]) -> Row:
        spent_ms = [each["durationMs"]["triggerExecution"] for each in progress]
        return _row("one record a batch", system, batch_p50_ms=statistics.median(spent_ms))


def _with_rows(query: StreamingQuery) -> list[dict[str, Any]]:
    return [each for each in query.recentProgress if each["numInputRows"]]


def _row(work: str, system: str, **figures: float) -> Row:
    rates = {"records_per_s": figures.get("records_per_s")}
    times = {key: figures.get(key) for key in ("batch_p50_ms", "latency_p50_ms", "latency_p99_ms")}
    return {
        "work": work,
        "system": system,
        **{key: None if rate is None else round(rate) for key, rate in rates.items()},
        **{key: None if spent is None else round(spent, 1) for key, spent in times.items()},
    }
