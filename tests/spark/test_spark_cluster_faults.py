"""Faults of machines under a query on real Spark: a bookie, ZooKeeper, an executor, the driver."""

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
from tests.spark.dying_sink import LAST_BATCH
from tests.spark.queries import QUERY_TIMEOUT_S, Orders, collected, finish, reading, to_files

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
def running_cluster(directory: Path, bookies: int = 4) -> Iterator[LocalCluster]:
    """Some bookies and ZooKeeper. Not within trio: Spark finds its session by the thread of the caller."""
    with open_guardian() as group:
        cluster = LocalCluster(directory, session_timeout_ms=3000, zookeeper_jars=None, group=group)
        trio.run(partial(cluster.start, bookie_count=bookies))
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
        assert written(namespace) == payloads


@pytest.mark.cluster
@pytest.mark.zookeeper
def test_a_query_continues_while_one_of_three_bookies_is_down_and_after_its_return(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Each batch begins a segment, of which the default quorums want three bookies."""
    payloads = [b"order %d" % number for number in range(900)]
    with (
        running_cluster(tmp_path / "cluster", bookies=3) as cluster,
        dlog.blocking.open_namespace(cluster.uri) as namespace,
    ):
        with namespace.open_writer("orders", create=True) as writer:
            writer.append_many(payloads[:300])
        query = copying(spark, cluster.uri, tmp_path)
        try:
            for change, first in ((lambda: cluster.kill(1), 300), (lambda: trio.run(cluster.start), 600)):
                query.processAllAvailable()
                change()
                with namespace.open_writer("orders") as writer:
                    writer.append_many(payloads[first : first + 300])
                query.processAllAvailable()
                assert len(written(namespace)) == first + 300
        finally:
            query.stop()
        assert written(namespace) == payloads


def written(namespace: dlog.blocking.Namespace) -> list[bytes]:
    with namespace.open_reader("copy", follow=False) as reader:
        return [record.payload for record in reader]


@contextmanager
def running_driver(
    script: str, directory: Path, *arguments: str, **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A driver in a process of its own; killed at the end of the block, with its JVMs and workers."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK"))}
    path = os.pathsep.join([str(Path(__file__).parent / "workers"), str(ROOT), str(directory / "packages")])
    with open(directory / "errors", "wb") as errors:
        driver = subprocess.Popen(
            [sys.executable, "-c", script, json.dumps(CONF), *arguments],
            cwd=directory,
            env={**kept, "PYTHONPATH": path, "SPARK_LOCAL_IP": "127.0.0.1", **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
    try:
        yield driver
    finally:
        try:
            os.killpg(driver.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # all of its processes have ended
        driver.wait()


def last_errors(directory: Path) -> str:
    return (directory / "errors").read_text(errors="replace")[-6000:]


TWO_QUERIES = """
import json, sys
from pyspark.sql import SparkSession
import spark_integration
builder = SparkSession.builder.master("local[2]")
for key, value in json.loads(sys.argv[1]).items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
spark_integration.register(spark)
uri, directory = sys.argv[2:]
def orders():
    source = spark.readStream.format("dlog").option("uri", uri).option("stream", "orders")
    return source.option("startingOffsets", "earliest").option("maxRecordsPerTrigger", 20).load()
to_files = orders().writeStream.format("parquet").option("path", directory + "/out")
files = to_files.option("checkpointLocation", directory + "/checkpoint").start()
while (files.lastProgress or {"batchId": 0})["batchId"] < 2:
    assert not files.awaitTermination(0.05)
from tests.spark.dying_sink import DyingSource
spark.dataSource.register(DyingSource)
to_log = orders().select("payload").writeStream.format("dlog_dying").option("uri", uri)
to_log.option("stream", "copy")
to_log.option("series", "driver:" + directory + "/killed")
to_log.option("checkpointLocation", directory + "/copying/checkpoint").start()
spark.streams.awaitAnyTermination()
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Orders, Path]]:
    """A log and the directory of a driver that was killed, with its JVM and workers, in the midst of batches.

    It ran where ``python3`` has no DLog and where the discovery of data sources fails, with a query to files
    and one to a log. The second one had just committed a batch, and Spark had not recorded that.
    """
    directory = tmp_path_factory.mktemp("killed")
    programs = directory / "bin"
    programs.mkdir()
    bare = programs / "python3"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')  # an interpreter without packages
    bare.chmod(0o755)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    broken = directory / "packages" / "pyspark_broken"  # Spark imports it when it looks for data sources
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise RuntimeError('a broken package hides all data sources')\n")
    with Orders(directory / "log") as orders:
        orders.append(2_000)
        with running_driver(TWO_QUERIES, directory, orders.uri, str(directory), PATH=path) as driver:
            assert driver.wait(QUERY_TIMEOUT_S) == -signal.SIGKILL, last_errors(directory)
        yield orders, directory


def test_a_killed_driver_continues_from_its_checkpoint_and_needs_no_activated_environment(
    spark: SparkSession, killed: tuple[Orders, Path]
) -> None:
    orders, directory = killed
    done = spark.read.parquet(str(directory / "out")).count()
    assert 0 < done < len(orders.written)
    finish(to_files(reading(spark, orders, streaming=True, startingOffsets="earliest"), directory))
    assert sorted(collected(spark.read.parquet(str(directory / "out")))) == orders.written


def test_a_killed_driver_writes_each_batch_once(spark: SparkSession, killed: tuple[Orders, Path]) -> None:
    orders, directory = killed
    last = str(LAST_BATCH)
    checkpoint = directory / "copying" / "checkpoint"
    assert (checkpoint / "offsets" / last).exists()
    assert not (checkpoint / "commits" / last).exists()
    assert orders.namespace.batches.last(f"driver:{directory}/killed", "copy") == LAST_BATCH
    assert 0 < len(copied(orders)) < len(orders.written)
    frame = reading(spark, orders, streaming=True, startingOffsets="earliest").select("payload")
    query = frame.writeStream.format("dlog").option("uri", orders.uri).option("stream", "copy")
    query.option("series", f"driver:{directory}/killed")
    finish(query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start())
    assert copied(orders) == [payload for *_, payload in orders.written]


def copied(orders: Orders, log: str = "copy") -> list[bytes]:
    with orders.namespace.open_reader(log, follow=False) as reader:
        return [record.payload for record in reader]


# Two workers with addresses of their own: Spark makes no speculative task on the machine of the first one.
TWO_MACHINES = """
import json, sys
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession
conf = SparkConf(loadDefaults=False)
given = {**json.loads(sys.argv[1]), "spark.executor.cores": "1", "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.speculation": "true", "spark.speculation.quantile": "0.5"}
for key, value in given.items():
    conf.set(key, value)
SparkContext._ensure_initialized(conf=conf)
jvm = SparkContext._jvm
of_jvm = jvm.org.apache.spark.SparkConf(False)
master = jvm.org.apache.spark.deploy.master.Master.startRpcEnvAndEndpoint("127.0.0.1", 0, 0, of_jvm)
url = "spark://" + master._1().address().hostPort()
urls = SparkContext._gateway.new_array(jvm.java.lang.String, 1)
urls[0] = url
for machine in (2, 3):
    jvm.org.apache.spark.deploy.worker.Worker.startRpcEnvAndEndpoint(
        f"127.0.0.{machine}", 0, 0, 1, 1024, urls, sys.argv[3] + "/machines", jvm.scala.Option.apply(machine),
        of_jvm, jvm.scala.Option.empty())
spark = SparkSession.builder.config(conf=conf.setMaster(url)).getOrCreate()
import spark_integration
from tests.spark.dying_sink import DyingSource
spark_integration.register(spark)
spark.dataSource.register(DyingSource)
for step in ("executor", "slow"):
    options = {"uri": sys.argv[2], "stream": "orders", "startingOffsets": "earliest", "minPartitions": "2"}
    query = (
        spark.readStream.format("dlog").options(**options).load()
        .select("payload").writeStream.format("dlog_dying").option("uri", sys.argv[2]).option("stream", step)
        .option("driverBytesMax", "1").option("series", f"{step}:{sys.argv[3]}/{step}")
        .option("checkpointLocation", f"{sys.argv[3]}/checkpoint-{step}").trigger(availableNow=True).start()
    )
    assert query.awaitTermination(240)
    assert query.exception() is None
spark.stop()
"""


@pytest.fixture(scope="module")
def two_machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Orders, Path]]:
    """A log, and the directory of two queries that ran on two executors with speculation.

    The first one lost an executor; the second one had a task that was slower than its speculative copy.
    """
    directory = tmp_path_factory.mktemp("machines")
    os.mkfifo(directory / "slow")
    with Orders(directory / "log") as orders:
        orders.append(400)
        environment = {
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_HOME": str(Path(pyspark.__file__).parent),  # where the executors' start scripts are
        }
        with running_driver(TWO_MACHINES, directory, orders.uri, str(directory), **environment) as driver:
            assert driver.wait(QUERY_TIMEOUT_S) == 0, last_errors(directory)
        yield orders, directory


def test_a_lost_executor_costs_and_repeats_nothing(two_machines: tuple[Orders, Path]) -> None:
    """It dies when its task has written rows to a segment; another executor runs the task again."""
    orders, directory = two_machines
    assert (directory / "executor").exists()
    assert sorted(copied(orders, "executor")) == sorted(payload for *_, payload in orders.written)


def test_a_speculative_task_costs_and_repeats_nothing(two_machines: tuple[Orders, Path]) -> None:
    """The slow task has rows in a segment when its copy has written all of them; then both go on."""
    orders, directory = two_machines
    assert (directory / "slow.outrun").exists()
    assert sorted(copied(orders, "slow")) == sorted(payload for *_, payload in orders.written)
