"""Spark on an embedded log: batch queries, streaming queries, and a restart from a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import dlog
import dlog.blocking
from dlog.encryption import KeyFile
from tests.spark.queries import QUERY_TIMEOUT_S, Orders, collected, finish, reading, to_files

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


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
    source = spark.read.format("dlog").option("uri", f"file://{tmp_path / 'log'}")
    with pytest.raises(Exception, match="nothing"):
        source.option("stream", "nothing").load()


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
        failing.awaitTermination(QUERY_TIMEOUT_S)
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
        # The same file of keys, named by the configuration of the client on the driver and the executors.
        configuration = tmp_path / "dlog.toml"
        configuration.write_text(f'key_file = "{keys}"\n')
        options = {"uri": uri, "stream": "orders", "configFile": str(configuration)}
        configured = spark.read.format("dlog").options(**options, **{"client.reader.read_bytes_max": "64K"})
        assert {bytes(row.payload) for row in configured.load().collect()} == {b"order 0", b"order 1"}
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
