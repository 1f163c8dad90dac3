"""Real Spark writes to streams: exactly once over failures, restarts and second drivers."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import dlog
import dlog.blocking
from dlog.shards import shard_of
from tests.spark.dying_sink import STEPS, DyingSource
from tests.spark.queries import QUERY_TIMEOUT_S, Orders, finish, reading

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def target(tmp_path: Path) -> Iterator[dlog.blocking.Namespace]:
    with dlog.blocking.open_namespace((tmp_path / "target").as_uri()) as namespace:
        yield namespace


def written(namespace: dlog.blocking.Namespace, log: str) -> list[bytes]:
    with namespace.open_reader(log, follow=False) as reader:
        return [record.payload for record in reader]


def to_log(
    frame: DataFrame,
    namespace: dlog.blocking.Namespace,
    directory: Path,
    *,
    name: str = "dlog",
    mode: str = "append",
    **options: object,
) -> StreamingQuery:
    writer = (
        frame.writeStream.format(name)
        .queryName(f"copy in {directory}")  # Spark passes it on as an option
        .outputMode(mode)
        .option("uri", namespace.uri)
        .option("stream", "copy")
    )
    for option, value in options.items():
        writer = writer.option(option, str(value))
    writer = writer.option("checkpointLocation", str(directory / "checkpoint"))
    return writer.trigger(availableNow=True).start()


@pytest.mark.parametrize("driver_bytes_max", ["1", "1m"])
def test_a_stream_is_copied_once_over_restarts(
    spark: SparkSession,
    orders: Orders,
    target: dlog.blocking.Namespace,
    tmp_path: Path,
    driver_bytes_max: str,
) -> None:
    for count in (300, 0, 200):
        orders.append(count)
        frame = reading(spark, orders, streaming=True, startingOffsets="earliest", maxRecordsPerTrigger=120)
        query = to_log(frame.select("payload"), target, tmp_path, driverBytesMax=driver_bytes_max)
        finish(query)
    report = [each for each in query.recentProgress if each["numInputRows"]][-1]
    assert report["sink"]["numOutputRows"] == report["numInputRows"]
    # What Spark lets no Python source say: this fails when it does.
    names = report["sources"][0]["description"], report["sink"]["description"]
    assert [name.rpartition("@")[0].rpartition(".")[2] for name in names] == [
        "PythonMicroBatchStreamWithTriggerAvailableNow",
        "PythonTable",
    ]
    assert not report["sources"][0].get("metrics")
    assert not report["sink"].get("metrics")
    assert sorted(written(target, "copy")) == sorted(payload for *_, payload in orders.written)
    assert target.repair.find_orphans(older_than=datetime.timedelta()) == []


def test_rows_go_to_the_stream_that_their_column_names(
    spark: SparkSession, target: dlog.blocking.Namespace
) -> None:
    frame = spark.createDataFrame(
        [("a", "1"), ("b", "2"), (None, "3"), ("a", "4")], "stream STRING, value STRING"
    )
    for _ in range(2):  # the same number is written once
        frame.coalesce(1).write.format("dlog").mode("append").option("uri", target.uri).option(
            "stream", "rest"
        ).option("series", "import").option("number", "7").save()
    assert [written(target, log) for log in ("a", "b", "rest")] == [[b"1", b"4"], [b"2"], [b"3"]]
    with pytest.raises(Exception, match="ChangedBatchError: batch 7 of 'import' is in 'rest' with 4 rows"):
        frame.limit(3).write.format("dlog").mode("append").option("uri", target.uri).option(
            "stream", "rest"
        ).option("series", "import").option("number", "7").save()
    with_ids = spark.range(10, 30, numPartitions=2).selectExpr("id", "CAST(id AS STRING) AS value")
    with_ids.write.format("dlog").mode("append").option("uri", target.uri).option("stream", "ids").option(
        "txidColumn", "id"
    ).save()
    with target.open_reader("ids", follow=False) as reader:
        assert [(each.txid, int(each.payload)) for each in reader] == [(n, n) for n in range(10, 30)]
    dlog.blocking.create_sharded_log(target, "clicks", 2)
    keyed = spark.range(40, numPartitions=2).selectExpr(
        "CAST(id AS STRING) value", "CAST(id % 5 AS STRING) k"
    )
    keyed.write.format("dlog").mode("append").option("uri", target.uri).option(
        "shardedStream", "clicks"
    ).option("keyColumn", "k").save()
    shards = spark.read.format("dlog").option("uri", target.uri).option("shardedStream", "clicks").load()
    assert sorted((row.stream, int(bytes(row.payload))) for row in shards.collect()) == sorted(
        (f"clicks/shard-{shard_of(b'%d' % (number % 5), 2):05d}", number) for number in range(40)
    )
    with pytest.raises(Exception, match="mode overwrite"):
        frame.write.format("dlog").mode("overwrite").option("uri", target.uri).option("stream", "rest").save()
    with pytest.raises(Exception, match="RowFormatError: column 'value': a payload is null") as refused:
        frame.selectExpr("NULLIF(value, '4') AS value").write.format("dlog").mode("append").option(
            "uri", target.uri
        ).option("stream", "rest").save()
    assert "in stage" not in str(refused.value), "no task failed, so Spark ran none again"
    with pytest.raises(Exception, match="would be lost"):
        frame.selectExpr("value", "1 AS id").write.format("dlog").mode("append").option(
            "uri", target.uri
        ).option("stream", "rest").save()


def test_rows_are_as_long_as_the_setting_of_the_client_allows_in_both_ways_of_the_sink(
    spark: SparkSession, target: dlog.blocking.Namespace, tmp_path: Path
) -> None:
    size = 2_200_000
    frame = spark.range(2).selectExpr(f"repeat(CAST(id AS STRING), {size}) AS payload").coalesce(1)
    given = {"uri": target.uri, "stream": "long"}
    with pytest.raises(
        Exception, match=r"2200000 bytes; at most 1040364 by client\.writer\.record_bytes_max"
    ):
        frame.write.format("dlog").mode("append").options(**given).save()
    for driver_bytes_max in ("1", "100m"):
        frame.write.format("dlog").mode("append").options(
            **given, **{"client.writer.record_bytes_max": str(size), "driverBytesMax": driver_bytes_max}
        ).save()
    reader = spark.readStream.format("dlog").options(**given, startingOffsets="earliest")
    long = reader.option("maxRecordsPerTrigger", "3").load().selectExpr("length(payload) AS n")
    checkpoint = str(tmp_path / "checkpoint")
    sink = long.writeStream.format("memory").queryName("long").option("checkpointLocation", checkpoint)
    query = sink.trigger(availableNow=True).start()
    finish(query)
    assert [row.n for row in spark.table("long").collect()] == 4 * [size]
    assert [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]] == [3, 1]


def test_results_that_change_are_added_once_by_numbered_batches(
    spark: SparkSession, orders: Orders, target: dlog.blocking.Namespace, tmp_path: Path
) -> None:
    """Spark takes the output modes update and complete from no Python sink, but from ``foreachBatch``."""

    def counts() -> DataFrame:
        frame = reading(spark, orders, streaming=True, startingOffsets="earliest")
        counted = frame.selectExpr("txid % 2 AS parity").groupBy("parity").count()
        return counted.selectExpr("CONCAT(parity, '=', count) AS value")

    def write(rows: DataFrame, number: int) -> None:
        for _ in range(2):  # as if Spark ran the batch again
            options = {"uri": target.uri, "stream": "copy", "series": "counts", "number": str(number)}
            rows.write.format("dlog").mode("append").options(**options).save()

    for _ in range(2):
        orders.append(10)
        query = counts().writeStream.outputMode("update").foreachBatch(write)
        query = query.option("checkpointLocation", str(tmp_path / "checkpoint"))
        finish(query.trigger(availableNow=True).start())
    assert sorted(written(target, "copy")) == [b"0=10", b"0=5", b"1=10", b"1=5"]
    for mode, message in (
        ("update", "dlog does not support Update mode"),
        ("complete", "output mode complete: a log keeps what was written"),
    ):
        with pytest.raises(Exception, match=message):
            finish(to_log(counts(), target, tmp_path / mode, mode=mode))


def test_a_task_that_fails_once_writes_its_rows_once(
    spark: SparkSession, target: dlog.blocking.Namespace, tmp_path: Path
) -> None:
    failed = str(tmp_path / "failed")

    def fail_once(numbers: Iterable[int]) -> Iterable[tuple[str]]:
        for number in numbers:
            yield (str(number),)
        try:
            os.close(os.open(failed, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        raise RuntimeError("the first attempt of a task fails after its rows")

    rows = spark.sparkContext.parallelize(range(1_000), 2).mapPartitions(fail_once)
    writer = spark.createDataFrame(rows, "value STRING").write.format("dlog").mode("append")
    writer.option("uri", target.uri).option("stream", "numbers").option("driverBytesMax", "1k").save()
    assert Path(failed).exists()
    assert sorted(map(int, written(target, "numbers"))) == list(range(1_000))
    assert target.repair.find_orphans(older_than=datetime.timedelta()) == []


@pytest.mark.parametrize(
    ("step", "driver_bytes_max"),
    [*((step, "1m") for step in ("before", *STEPS)), ("last", "1"), ("attach", "1")],
)
def test_a_committing_process_that_is_killed_costs_and_repeats_nothing(
    spark: SparkSession,
    orders: Orders,
    target: dlog.blocking.Namespace,
    tmp_path: Path,
    step: str,
    driver_bytes_max: str,
) -> None:
    """It is killed once between each pair of its steps; with "1" the tasks write the segments."""
    orders.append(300)
    frame = reading(spark, orders, streaming=True, startingOffsets="earliest", maxRecordsPerTrigger=200)
    spark.dataSource.register(DyingSource)
    marker = tmp_path / "killed"
    options = {"series": f"{step}:{marker}", "driverBytesMax": driver_bytes_max}
    dying = to_log(frame.select("payload"), target, tmp_path, name="dlog_dying", **options)
    with pytest.raises(StreamingQueryException):
        dying.awaitTermination(QUERY_TIMEOUT_S)
    assert marker.exists()
    done = len(written(target, "copy")) if target.log_exists("copy") else 0
    assert (0 < done < 300) if step == "attach" else done == 0
    finish(to_log(frame.select("payload"), target, tmp_path, **options))
    assert written(target, "copy") == [payload for *_, payload in orders.written]


def test_two_drivers_of_one_series_write_each_batch_once(
    spark: SparkSession, orders: Orders, target: dlog.blocking.Namespace, tmp_path: Path
) -> None:
    """As if one of them were believed dead. Each goes on, or fails with an error that says why."""
    orders.append(400)
    frame = reading(spark, orders, streaming=True, startingOffsets="earliest", maxRecordsPerTrigger=50)

    def start(directory: str) -> StreamingQuery:
        return to_log(
            frame.select("payload"),
            target,
            tmp_path / directory,
            series="copying",
            lockTimeoutMs=QUERY_TIMEOUT_S * 1000,
        )

    queries = [start(directory) for directory in ("one", "two")]
    errors = []
    for query in queries:
        try:
            query.awaitTermination(QUERY_TIMEOUT_S)
        except StreamingQueryException as exc:
            errors.append(str(exc))
    assert all("RepeatedBatchError" in error for error in errors), errors
    assert len(errors) < len(queries)
    assert written(target, "copy") == [payload for *_, payload in orders.written]
    assert target.repair.find_orphans(older_than=datetime.timedelta()) == []
