"""Spark on an embedded log: batch queries, streaming queries, and a restart from a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import dlog
import dlog.blocking
from dlog.encryption import KeyFile

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Orders:
    """A log that grows while Spark reads it, with the expected rows."""

    def __init__(self, directory: Path) -> None:
        self.uri = f"file://{directory}"
        small = dlog.WriterConfig(segment_bytes_max=8_000, entry_bytes_target=512)
        self._namespace = dlog.blocking.open_namespace(self.uri, config=dlog.NamespaceConfig(writer=small))
        self.written: list[tuple[int, int, int, int, bytes]] = []

    def __enter__(self) -> Orders:
        self.namespace = self._namespace.__enter__()
        self.namespace.create_log("orders")
        return self

    def __exit__(self, *error: object) -> None:
        self._namespace.__exit__(None, None, None)

    def append(self, count: int) -> None:
        first = len(self.written)
        payloads = [b"order %d" % number for number in range(first, first + count)]
        with self.namespace.open_writer("orders") as writer:
            positions = writer.append_many(payloads, txids=range(first, first + count))
        self.written += [
            (dlsn.segment_seqno, dlsn.entry_id, dlsn.slot_id, txid, payload)
            for dlsn, txid, payload in zip(positions, range(first, first + count), payloads, strict=True)
        ]


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[Orders]:
    with Orders(tmp_path / "log") as orders:
        yield orders


def reading(spark: SparkSession, orders: Orders, *, streaming: bool, **options: object) -> DataFrame:
    reader = spark.readStream if streaming else spark.read
    source = reader.format("dlog").option("uri", orders.uri).option("stream", "orders")
    for name, value in options.items():
        source = source.option(name, value)  # type: ignore[arg-type]
    return source.load()


def collected(frame: DataFrame) -> list[tuple[int, int, int, int, bytes]]:
    return [
        (row.segment, row.entry, row.slot, row.txid, bytes(row.payload))
        for row in frame.select("segment", "entry", "slot", "txid", "payload").collect()
    ]


def to_files(frame: DataFrame, directory: Path, **trigger: bool) -> StreamingQuery:
    return (
        frame.writeStream.format("parquet")
        .option("path", str(directory / "out"))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(**(trigger or {"availableNow": True}))
        .start()
    )


def finish(query: StreamingQuery) -> None:
    try:
        assert query.awaitTermination(90), query.lastProgress
        assert query.exception() is None
    finally:
        query.stop()


def test_a_batch_query_reads_every_record_once_with_its_position(spark: SparkSession, orders: Orders) -> None:
    for _ in range(4):  # each writer adds segments
        orders.append(500)
    frame = reading(spark, orders, streaming=False, minPartitions=4)
    assert frame.columns == ["stream", "segment", "entry", "slot", "txid", "payload"]
    found = collected(frame)
    assert found == orders.written  # partitions are in stream order, so their rows are too
    assert len({segment for segment, *_ in found}) > 2
    assert frame.select("stream").distinct().collect()[0].stream == "orders"


def test_a_batch_query_of_an_empty_log_is_empty(spark: SparkSession, orders: Orders) -> None:
    assert collected(reading(spark, orders, streaming=False)) == []


def test_the_error_for_a_missing_log_names_it(spark: SparkSession, tmp_path: Path) -> None:
    frame = (
        spark.read.format("dlog")
        .option("uri", f"file://{tmp_path / 'log'}")
        .option("stream", "nothing")
        .load()
    )
    with pytest.raises(Exception, match="nothing"):
        frame.count()


def test_a_query_restarted_from_its_checkpoint_loses_and_repeats_nothing(
    spark: SparkSession, orders: Orders, tmp_path: Path
) -> None:
    for count in (700, 1, 900):  # every query after the first starts at the checkpoint
        orders.append(count)
        frame = reading(spark, orders, streaming=True, startingOffsets="earliest", maxEntriesPerTrigger=20)
        finish(to_files(frame, tmp_path))
        found = collected(spark.read.parquet(str(tmp_path / "out")))
        assert sorted(found) == orders.written


def test_trigger_once_reads_all_new_records_each_time(
    spark: SparkSession, orders: Orders, tmp_path: Path
) -> None:
    for count in (300, 200):
        orders.append(count)
        finish(
            to_files(reading(spark, orders, streaming=True, startingOffsets="earliest"), tmp_path, once=True)
        )
        assert sorted(collected(spark.read.parquet(str(tmp_path / "out")))) == orders.written


def test_a_failed_batch_is_read_again_unchanged(spark: SparkSession, orders: Orders, tmp_path: Path) -> None:
    """The sink fails and the log grows; the restarted query must pass the same batch to the sink."""
    orders.append(500)
    seen: list[tuple[int, list[tuple[int, int, int, int, bytes]]]] = []

    def start(failing_batch: int | None) -> StreamingQuery:
        def take(frame: DataFrame, batch: int) -> None:
            seen.append((batch, collected(frame)))
            if batch == failing_batch:
                raise RuntimeError("the sink is full")

        frame = reading(spark, orders, streaming=True, startingOffsets="earliest", maxEntriesPerTrigger=10)
        return (
            frame.writeStream.foreachBatch(take)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    failing = start(failing_batch=2)
    with pytest.raises(Exception, match="the sink is full"):
        failing.awaitTermination(90)
    failing.stop()
    orders.append(300)
    finish(start(failing_batch=None))
    assert [batch for batch, _ in seen[:4]] == [0, 1, 2, 2]
    assert seen[2] == seen[3]
    assert sorted(row for _, rows in seen[:2] + seen[3:] for row in rows) == orders.written


def test_a_query_from_latest_reads_later_records(spark: SparkSession, orders: Orders, tmp_path: Path) -> None:
    orders.append(50)
    for _ in range(2):  # the first query pins its start without any new record
        finish(to_files(reading(spark, orders, streaming=True), tmp_path))
        orders.append(25)
    finish(to_files(reading(spark, orders, streaming=True), tmp_path))
    assert sorted(collected(spark.read.parquet(str(tmp_path / "out")))) == orders.written[50:]


def test_an_encrypted_log_is_read_and_no_plan_shows_its_key(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    key, other = bytes(range(32)), bytes(range(1, 33))
    keys, others = tmp_path / "keys", tmp_path / "others"
    for path, each in ((keys, key), (others, other)):
        path.touch(0o600)
        path.write_text(f"1 {each.hex()}\n")
    uri = f"file://{tmp_path / 'log'}"
    config = dlog.NamespaceConfig(writer=dlog.WriterConfig(encryption=KeyFile(keys)))
    with dlog.blocking.open_namespace(uri, config=config) as namespace:
        with namespace.open_writer("orders", create=True) as writer:
            writer.append_many([b"order 0", b"order 1"])

        def frame(file: Path, *, streaming: bool) -> DataFrame:
            reader = spark.readStream if streaming else spark.read
            options = {"uri": uri, "stream": "orders", "keyFile": str(file)}
            if streaming:
                options["startingOffsets"] = "earliest"
            return reader.format("dlog").options(**options).load()

        readable = frame(keys, streaming=False)
        assert [bytes(row.payload) for row in readable.select("payload").collect()] == [
            b"order 0",
            b"order 1",
        ]
        readable.explain(extended=True)
        query = to_files(frame(keys, streaming=True), tmp_path)
        finish(query)
        assert spark.read.parquet(str(tmp_path / "out")).count() == 2
        with pytest.raises(Exception, match="DecryptionError") as failed:
            frame(others, streaming=False).collect()
    printed = capfd.readouterr()
    shown = f"{printed.out} {printed.err} {failed.value}"
    assert "Physical Plan" in printed.out
    for each in (key, other):
        assert each.hex() not in shown
        assert str(each) not in shown
