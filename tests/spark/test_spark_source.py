"""The source on real Spark: several streams, limits, columns, payloads, filters, and what may go wrong."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import trio
from pyspark import TaskContext
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    Filter,
    GreaterThanOrEqual,
    InputPartition,
)
from pyspark.sql.types import StructType

import dlog
import dlog.blocking
from dlog import shards
from spark_integration.option_names import CLIENT
from tests.spark.queries import QUERY_TIMEOUT_S, Orders, collected, finish, reading, to_files

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def write(namespace: dlog.blocking.Namespace, log: str, first: int, count: int) -> None:
    with namespace.open_writer(log, create=True) as writer:
        txids = range(first, first + count)
        writer.append_many([b'{"id": %d, "name": "n%d"}' % (txid, txid) for txid in txids], txids=txids)


def source(spark: SparkSession, uri: str, *, streaming: bool, **options: object) -> DataFrame:
    reader = spark.readStream if streaming else spark.read
    return reader.format("dlog").option("uri", uri).options(**options).load()  # type: ignore[arg-type]


def found(frame: DataFrame) -> list[tuple[str, int]]:
    return sorted((row.stream, row.txid) for row in frame.select("stream", "txid").collect())


def expected(**counts: int) -> list[tuple[str, int]]:
    return sorted((stream, txid) for stream, count in counts.items() for txid in range(count))


def test_streams_of_a_pattern_are_read_and_new_ones_join(
    spark: SparkSession, orders: Orders, tmp_path: Path
) -> None:
    namespace = orders.namespace
    write(namespace, "eu-a", 0, 30)
    write(namespace, "eu-b", 0, 20)
    write(namespace, "us", 0, 10)
    frame = source(
        spark,
        orders.uri,
        streaming=True,
        streamPattern="eu-*",
        startingOffsets="earliest",
        discoveryIntervalMs=1,
        maxRecordsPerTrigger=25,
    )
    query = (
        frame.writeStream.format("memory")
        .queryName("joined")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        query.processAllAvailable()
        assert found(spark.table("joined")) == expected(**{"eu-a": 30, "eu-b": 20})
        write(namespace, "eu-new", 0, 15)
        write(namespace, "eu-a", 30, 5)
        # Spark looks for new data until none is left; the new stream joins when it is listed.
        deadline = time.monotonic() + QUERY_TIMEOUT_S
        while len(found(spark.table("joined"))) < 70 and time.monotonic() < deadline:
            query.processAllAvailable()
        assert found(spark.table("joined")) == expected(**{"eu-a": 35, "eu-b": 20, "eu-new": 15})
        progress = query.recentProgress
        latest = [json.loads(each["sources"][0]["latestOffset"]) for each in progress]
        ends = [json.loads(each["sources"][0]["endOffset"]) for each in progress]
        assert latest[-1]["lag"] == {"records": 0, "seconds": 0.0}
        assert max(each["lag"]["records"] for each in latest) > 0, "limited triggers were behind"
        assert ends[-1]["streams"].keys() == {"eu-a", "eu-b", "eu-new"}
    finally:
        query.stop()


def test_a_sharded_log_is_read_in_limited_batches(
    spark: SparkSession, orders: Orders, tmp_path: Path
) -> None:
    async def create() -> None:
        async with dlog.open_namespace(orders.uri) as namespace:
            await shards.create_sharded_log(namespace, "clicks", shards=3)
            async with shards.open_sharded_writer(namespace, "clicks") as writer:
                for number in range(300):
                    await writer.append(b"key-%d" % (number % 20), b"%d" % number)

    orders.namespace.close()
    trio.run(create)
    frame = source(
        spark,
        orders.uri,
        streaming=True,
        shardedStream="clicks",
        startingOffsets="earliest",
        maxRecordsPerTrigger=90,
        maxBytesPerTrigger="100K",
        maxEntriesPerTrigger=1000,
        minRecordsPerTrigger=10_000,
    )
    query = to_files(frame, tmp_path)
    finish(query)
    assert len([each for each in query.recentProgress if each["numInputRows"]]) >= 3
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(int(bytes(row.payload)) for row in rows) == list(range(300))
    assert {row.stream for row in rows} == {f"clicks/shard-{shard:05d}" for shard in range(3)}


def test_columns_and_payloads_come_as_the_options_say(spark: SparkSession, orders: Orders) -> None:
    write(orders.namespace, "json", 1_700_000_000_000, 50)
    schema = {"payloadFormat": "json", "payloadSchema": "id BIGINT, name STRING"}
    options = {"stream": "json", "includeTimestamp": True, "includeSequence": True, "minPartitions": 3}
    frame = source(spark, orders.uri, streaming=False, **schema, **options)
    assert frame.columns[-3:] == ["payload", "timestamp", "sequence"]
    rows = frame.selectExpr("payload.id", "payload.name", "sequence", "unix_millis(timestamp) ms", "txid")
    assert [tuple(row) for row in rows.orderBy("txid").collect()] == [
        (txid, f"n{txid}", txid - 1_700_000_000_000, txid, txid)
        for txid in range(1_700_000_000_000, 1_700_000_000_050)
    ]
    text = source(spark, orders.uri, streaming=False, stream="json", payloadFormat="utf8")
    assert text.select("payload").head(1)[0][0] == '{"id": 1700000000000, "name": "n1700000000000"}'
    with orders.namespace.open_writer("json") as writer:
        writer.append(b"no json")
    broken = {"stream": "json", "payloadFormat": "json", "payloadSchema": "id BIGINT"}
    with pytest.raises(Exception, match=r"PayloadFormatError.*'json', record"):
        source(spark, orders.uri, streaming=False, **broken).count()
    lenient = source(spark, orders.uri, streaming=False, payloadErrors="null", **broken)
    assert lenient.where("payload IS NULL").count() == 1


def test_keys_and_headers_go_through_the_sink_and_come_from_the_source(
    spark: SparkSession, orders: Orders, tmp_path: Path
) -> None:
    with orders.namespace.open_writer("keyed", create=True) as writer:
        writer.append_many(
            [b"%d" % number for number in range(100)],
            keys=[None if number % 3 else b"k%d" % number for number in range(100)],
            headers=[{"n": b"%d" % number, "of": b"100"} if number % 2 else None for number in range(100)],
        )
    frame = source(spark, orders.uri, streaming=False, stream="keyed", includeHeaders=True)
    assert frame.columns[-2:] == ["key", "headers"]
    (row,) = frame.where("cast(key AS string) = 'k33'").collect()
    assert [(each.key, bytes(each.value)) for each in row.headers] == [("n", b"33"), ("of", b"100")]
    assert frame.where("key IS NULL AND size(headers) = 0").count() == 33
    streaming = source(
        spark, orders.uri, streaming=True, stream="keyed", startingOffsets="earliest", includeHeaders=True
    )
    query = (
        streaming.select("payload", "key", "headers")
        .writeStream.format("dlog")
        .options(uri=orders.uri, stream="copy", checkpointLocation=str(tmp_path / "sink"))
        .trigger(availableNow=True)
        .start()
    )
    finish(query)

    def contents(log: str) -> list[tuple[bytes, bytes | None, dict[str, bytes]]]:
        with orders.namespace.open_reader(log, follow=False) as reader:
            return sorted(
                ((each.payload, each.key, dict(each.headers)) for each in reader),
                key=lambda each: int(each[0]),
            )

    assert contents("copy") == contents("keyed")


class NarrowingReader(DataSourceReader):
    """Takes the filters "id >= n", and reads only such rows."""

    def __init__(self) -> None:
        self._first = 0

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        for each in filters:
            if isinstance(each, GreaterThanOrEqual):
                self._first = each.value
            yield each  # Spark applies it, too

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self._first)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        return iter([(number,) for number in range(partition.value, 10)])


class NarrowingSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "narrowing"

    def schema(self) -> str:
        return "id BIGINT"

    def reader(self, schema: StructType) -> NarrowingReader:
        return NarrowingReader()


def test_spark_keeps_the_plan_of_a_filtered_read_so_the_source_takes_no_filters(spark: SparkSession) -> None:
    """If this fails, Spark has mended it, and the source may take filters (docs/spark.md, "Filters")."""
    spark.dataSource.register(NarrowingSource)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = spark.read.format("narrowing").load()
        assert frame.where("id >= 7").count() == 3
        assert frame.count() == 3, "of 10 rows"
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_filtered_action_does_not_narrow_the_next_one(spark: SparkSession, orders: Orders) -> None:
    """Spark 4.3 keeps the plan of a read with pushed filters, and uses it for actions without filters."""
    orders.append(200)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = reading(spark, orders, streaming=False)
        narrow = frame.where("txid >= 20 AND txid < 23 AND segment < 100")
        assert collected(narrow) == orders.written[20:23]
        assert collected(frame) == orders.written
        assert frame.where("txid > 500").union(frame).count() == 200
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_every_action_on_a_dataframe_reads_the_same_records(spark: SparkSession, orders: Orders) -> None:
    """Spark plans a batch query again for each action; "latest" must not move between two of them."""
    orders.append(100)
    frame = reading(spark, orders, streaming=False)
    orders.append(50)
    assert frame.count() == 100
    assert frame.union(frame).count() == 200
    assert reading(spark, orders, streaming=False).count() == 150


def test_a_batch_reads_between_ids_and_to_a_cursor(spark: SparkSession, orders: Orders) -> None:
    orders.append(100)
    segment, entry, slot, *_ = orders.written[70]
    orders.namespace.cursors("orders").set("billing", dlog.DLSN(segment, entry, slot))
    between = reading(spark, orders, streaming=False, startingTxId=10, endingTxId=19)
    assert collected(between) == orders.written[10:20]
    until = reading(spark, orders, streaming=False, startingTimestamp="60", endingCursor="billing")
    assert collected(until) == orders.written[60:70]
    first, last = (":".join(map(str, orders.written[number][:3])) for number in (33, 71))
    through = reading(spark, orders, streaming=False, startingDlsn=first, endingDlsn=last)
    assert collected(through) == orders.written[33:72]


def test_a_limit_of_records_ends_inside_entries_and_a_restart_there_loses_and_repeats_nothing(
    spark: SparkSession, orders: Orders, tmp_path: Path
) -> None:
    orders.append(95)
    batches: dict[int, list[tuple[int, int, int, int, bytes]]] = {}
    failing = [True]

    def keep(frame: DataFrame, number: int) -> None:
        if number == 4 and failing:
            raise ValueError("the fourth batch with rows")
        batches[number] = sorted(collected(frame))

    frame = reading(spark, orders, streaming=True, startingOffsets="earliest", maxRecordsPerTrigger=10)
    sink = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = sink.trigger(availableNow=True).start()
    with pytest.raises(Exception, match="the fourth batch with rows"):
        query.awaitTermination(QUERY_TIMEOUT_S)
    query.stop()
    failing.clear()
    stored = (tmp_path / "checkpoint" / "offsets" / "4").read_text().splitlines()[2]
    segment, entry, slot = json.loads(stored)["streams"]["orders"]
    assert (segment, entry, slot + 1) in {row[:3] for row in orders.written}, "the batch ends inside an entry"
    finish(sink.trigger(availableNow=True).start())
    assert [row for number in sorted(batches) for row in batches[number]] == orders.written
    assert [len(rows) for rows in batches.values() if rows] == 9 * [10] + [5]


def test_a_log_truncated_under_the_query_is_an_error_or_left_out(
    spark: SparkSession, orders: Orders, tmp_path: Path
) -> None:
    orders.append(600)
    options: dict[str, object] = {"startingOffsets": "earliest", "maxRecordsPerTrigger": 50}
    finish(to_files(reading(spark, orders, streaming=True, **options), tmp_path))
    orders.append(300)
    orders.append(300)
    kept = next(row for row in orders.written[900:] if row[1] == 0 and row[2] == 0)
    with orders.namespace.open_writer("orders") as writer:
        writer.truncate(dlog.DLSN(*kept[:3]))
    failing = to_files(reading(spark, orders, streaming=True, **options), tmp_path)
    with pytest.raises(
        Exception, match=r"DataLossError: stream .orders.*failOnDataLoss=false to continue there"
    ):
        failing.awaitTermination(QUERY_TIMEOUT_S)
    failing.stop()
    finish(to_files(reading(spark, orders, streaming=True, failOnDataLoss=False, **options), tmp_path))
    rows = sorted(collected(spark.read.parquet(str(tmp_path / "out"))))
    first = orders.written.index(kept)
    assert rows == orders.written[:600] + orders.written[first:]


def test_a_checkpoint_is_reused_with_other_limits_but_not_with_other_streams(
    spark: SparkSession, orders: Orders, tmp_path: Path
) -> None:
    orders.append(100)
    query = to_files(reading(spark, orders, streaming=True, startingOffsets="earliest"), tmp_path)
    finish(query)
    orders.append(100)
    assert query.lastProgress is not None
    stored = (tmp_path / "checkpoint" / "offsets" / "1").read_text().splitlines()[2]
    for place in (query.lastProgress["sources"][0]["endOffset"], stored):
        assert (
            collected(reading(spark, orders, streaming=False, startingOffsets=place)) == orders.written[100:]
        )
    changed = reading(
        spark, orders, streaming=True, startingOffsets="latest", maxEntriesPerTrigger=3, minPartitions=2
    )
    finish(to_files(changed, tmp_path))
    assert sorted(collected(spark.read.parquet(str(tmp_path / "out")))) == orders.written
    write(orders.namespace, "other", 0, 10)
    query = to_files(source(spark, orders.uri, streaming=True, stream="other"), tmp_path)
    with pytest.raises(Exception, match=r"the checkpoint belongs to.*new checkpoint location"):
        query.awaitTermination(QUERY_TIMEOUT_S)
    query.stop()


def _killed_once(rows: Iterable[Row]) -> Iterable[Row]:
    """In a worker: kill all Python workers of the machine's executor, in the first attempt of a task."""
    for row in rows:
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0 and context.partitionId() == 0:
            children = Path(f"/proc/{os.getppid()}/task/{os.getppid()}/children").read_text().split()
            for child in sorted(map(int, children), key=lambda pid: pid == os.getpid()):
                os.kill(child, signal.SIGKILL)
        yield row


def test_a_killed_python_worker_costs_and_repeats_nothing(spark: SparkSession, orders: Orders) -> None:
    orders.append(500)
    frame = reading(spark, orders, streaming=False, minPartitions=2)
    rows = frame.rdd.mapPartitions(_killed_once).collect()
    found = sorted((row.segment, row.entry, row.slot, row.txid, bytes(row.payload)) for row in rows)
    assert found == orders.written


def test_a_wrong_setting_of_the_client_is_named_when_the_source_is_loaded(
    spark: SparkSession, orders: Orders, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match="did you mean connect_timeout_s"):
        reading(spark, orders, streaming=False, **{f"{CLIENT}connect_timeout": 3})
    with pytest.raises(Exception, match=r"nowhere\.toml.* cannot be read"):
        reading(spark, orders, streaming=False, bookieSecurity=str(tmp_path / "nowhere.toml"))
