"""Faults under a running query on real Spark: rolled segments, replaced writers, a killed source process."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.spark.queries import QUERY_TIMEOUT_S, Orders, collected, finish, reading, to_files

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

OPTIONS: dict[str, object] = {"startingOffsets": "earliest", "maxRecordsPerTrigger": 100}


@contextmanager
def running(spark: SparkSession, orders: Orders, directory: Path) -> Iterator[StreamingQuery]:
    """A query that runs until the end of the block."""
    frame = reading(spark, orders, streaming=True, **OPTIONS)
    query = to_files(frame, directory, processingTime="0 seconds")
    try:
        yield query
    finally:
        query.stop()


def test_segments_roll_and_writers_change_under_a_running_query(
    spark: SparkSession, orders: Orders, tmp_path: Path
) -> None:
    orders.append(100)
    with running(spark, orders, tmp_path) as query:
        query.processAllAvailable()
        for _ in range(3):  # each has a writer of its own, and fills several segments
            orders.append(400)
        query.processAllAvailable()
        with orders.namespace.open_writer("orders") as writer:
            # One entry for each record, each visible to the query before the next one is written.
            positions = [writer.append(b"last %d" % number, txid=5000 + number) for number in range(20)]
        orders.written += [
            (dlsn.segment_seqno, dlsn.entry_id, dlsn.slot_id, 5000 + number, b"last %d" % number)
            for number, dlsn in enumerate(positions)
        ]
        query.processAllAvailable()
    rows = sorted(collected(spark.read.parquet(str(tmp_path / "out"))))
    assert rows == orders.written
    assert len({segment for segment, *_ in rows}) > 3


def source_processes(spark: SparkSession) -> set[int]:
    """The Python processes with the streaming readers of this session."""
    assert spark._jvm is not None
    parent = str(spark._jvm.java.lang.ProcessHandle.current().pid())
    found = set()
    for directory in Path("/proc").iterdir():
        if not directory.name.isdigit():
            continue
        try:
            command = (directory / "cmdline").read_bytes()
            status = (directory / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        if b"python_streaming_source_runner" in command and status[1] == parent:
            found.add(int(directory.name))
    return found


def test_a_killed_source_process_ends_the_query_and_a_new_one_continues(
    spark: SparkSession, orders: Orders, tmp_path: Path
) -> None:
    """Spark does not start the process again; all state is in the checkpoint."""
    orders.append(300)
    of_other_queries = source_processes(spark)  # those that have just ended, too
    with running(spark, orders, tmp_path) as query:
        query.processAllAvailable()
        (runner,) = source_processes(spark) - of_other_queries
        os.kill(runner, signal.SIGKILL)
        orders.append(200)
        with pytest.raises(StreamingQueryException):
            query.awaitTermination(QUERY_TIMEOUT_S)
    finish(to_files(reading(spark, orders, streaming=True, **OPTIONS), tmp_path))
    assert sorted(collected(spark.read.parquet(str(tmp_path / "out")))) == orders.written


def test_a_log_deleted_under_the_query_is_named(spark: SparkSession, orders: Orders, tmp_path: Path) -> None:
    orders.append(50)
    with running(spark, orders, tmp_path) as query:
        query.processAllAvailable()
        orders.namespace.delete_log("orders")
        # In the moment of the deletion, the ledger may be gone and the log not yet.
        with pytest.raises(StreamingQueryException, match=r"(DataLossError|LogUnavailableError).*'orders'"):
            query.awaitTermination(QUERY_TIMEOUT_S)
    with pytest.raises(Exception, match="LogNotFoundError"):
        reading(spark, orders, streaming=True, **OPTIONS)


def test_a_log_created_again_under_the_query_is_never_read_from_its_middle(
    spark: SparkSession, orders: Orders, tmp_path: Path
) -> None:
    orders.append(50)
    with running(spark, orders, tmp_path) as query:
        query.processAllAvailable()
        orders.namespace.delete_log("orders")
        orders.namespace.create_log("orders")
        seen = list(orders.written)
        orders.append(200)
        # Between the deletion and the creation, the log may be missing.
        with pytest.raises(StreamingQueryException, match=r"(DataLossError|LogUnavailableError).*'orders'"):
            query.awaitTermination(QUERY_TIMEOUT_S)
    another = pytest.raises(StreamingQueryException, match="another log has its name now")
    with running(spark, orders, tmp_path) as query, another:
        query.awaitTermination(QUERY_TIMEOUT_S)
    assert sorted(collected(spark.read.parquet(str(tmp_path / "out")))) == seen
