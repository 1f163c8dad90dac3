"""Faults of machines under a query on real Spark: a bookie, ZooKeeper, an executor."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pyspark
import pytest
import trio
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import dlog.blocking
from dlog.cluster import LocalCluster
from dlog.cluster.guardian import open_guardian
from tests.places import ROOT
from tests.spark.conftest import CONF
from tests.spark.queries import QUERY_TIMEOUT_S, Orders

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def copying(spark: SparkSession, uri: str, directory: Path) -> StreamingQuery:
    """A query that copies a log into another one of the same cluster, by segments of its tasks."""
    source = spark.readStream.format("dlog").option("uri", uri).option("stream", "orders")
    frame: DataFrame = source.option("startingOffsets", "earliest").option("maxRecordsPerTrigger", 100).load()
    writer = frame.select("payload").writeStream.format("dlog").option("uri", uri).option("stream", "copy")
    return (
        writer.option("driverBytesMax", "1")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(processingTime="0 seconds")
        .start()
    )


@contextmanager
def running_cluster(directory: Path) -> Iterator[LocalCluster]:
    """Four bookies and ZooKeeper. Not within trio: Spark finds its session by the thread of the caller."""
    with open_guardian() as group:
        cluster = LocalCluster(directory, session_timeout_ms=3000, zookeeper_jars=None, group=group)
        trio.run(partial(cluster.start, bookie_count=4))
        try:
            yield cluster
        finally:
            trio.run(partial(cluster.stop, grace_s=10))


def kill_a_bookie(cluster: LocalCluster) -> None:
    cluster.kill(0)


def restart_zookeeper(cluster: LocalCluster) -> None:
    cluster.kill_zookeeper()
    trio.run(cluster.start)


@pytest.mark.cluster
@pytest.mark.zookeeper
@pytest.mark.parametrize("fault", [kill_a_bookie, restart_zookeeper], ids=["bookie", "zookeeper"])
def test_a_fault_of_the_cluster_under_a_query_costs_and_repeats_nothing(
    spark: SparkSession, tmp_path: Path, fault: Callable[[LocalCluster], None]
) -> None:
    """The query survives, or ends with an error and its restart goes on; each record is there once."""
    payloads = [b"order %d" % number for number in range(900)]
    with (
        running_cluster(tmp_path / "cluster") as cluster,
        dlog.blocking.open_namespace(cluster.uri) as namespace,
    ):
        with namespace.open_writer("orders", create=True) as writer:
            writer.append_many(payloads[:300])
        query = copying(spark, cluster.uri, tmp_path)
        try:
            query.processAllAvailable()
            with namespace.open_writer("orders") as writer:
                writer.append_many(payloads[300:600])
            fault(cluster)  # while the query plans, reads or writes these
            with namespace.open_writer("orders") as writer:
                writer.append_many(payloads[600:])
            try:
                query.processAllAvailable()
            except StreamingQueryException:
                query = copying(spark, cluster.uri, tmp_path)
                query.processAllAvailable()
        finally:
            query.stop()
        with namespace.open_reader("copy", follow=False) as reader:
            assert [record.payload for record in reader] == payloads


DRIVER = """
import json, sys
from pyspark.sql import SparkSession
import spark_integration
from tests.spark.dying_sink import DyingSource
builder = SparkSession.builder.master("local-cluster[2,1,1024]")
for key, value in json.loads(sys.argv[1]).items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
spark_integration.register(spark)
spark.dataSource.register(DyingSource)
options = {"uri": sys.argv[2], "stream": "orders", "startingOffsets": "earliest", "minPartitions": "2"}
query = (
    spark.readStream.format("dlog").options(**options).option("maxRecordsPerTrigger", 200).load()
    .select("payload").writeStream.format("dlog_dying").option("uri", sys.argv[2]).option("stream", "copy")
    .option("driverBytesMax", "1").option("series", "executor:" + sys.argv[3] + "/killed")
    .option("checkpointLocation", sys.argv[3] + "/checkpoint").trigger(availableNow=True).start()
)
assert query.awaitTermination(240)
assert query.exception() is None
spark.stop()
"""


def test_a_lost_executor_costs_and_repeats_nothing(orders: Orders, tmp_path: Path) -> None:
    """It dies when its task has written rows to a segment; another executor runs the task again."""
    orders.append(600)
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent / "workers"), str(ROOT)]),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),  # where the executors' start scripts are
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(tmp_path / "executors"),
    }
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, json.dumps(CONF), orders.uri, str(tmp_path)],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        _, errors = driver.communicate(timeout=QUERY_TIMEOUT_S)
    except BaseException:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.communicate()
        raise
    assert driver.returncode == 0, errors.decode()[-6000:]
    assert (tmp_path / "killed").exists()
    with orders.namespace.open_reader("copy", follow=False) as reader:
        copied = [record.payload for record in reader]
    assert sorted(copied) == sorted(payload for *_, payload in orders.written)
