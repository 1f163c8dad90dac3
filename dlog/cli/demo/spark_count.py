"""Counts a log's records with a Structured Streaming query, as in a user's program.

Always: no other module of ``dlog`` imports Spark. This one is imported only for `dlog demo`, and imports
Spark only for `dlog demo --spark`.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

from dlog.cli.terminal.spark_lookup import register_source
from dlog.cluster.zookeeper_process import find_java

TIMEOUT_S = 180
ERROR_CHARACTERS_MAX = 400

# Only errors: Spark's other log lines would hide the demo's own output.
_LOGGING = """
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex{short}
"""


class SparkError(Exception):
    """Spark is missing, did not start, or could not count."""


def check_spark_is_installed() -> None:
    """Check that PySpark and Java are installed, before the demo writes anything.

    Raises:
        SparkError: PySpark or PyArrow is missing; the message says how to install it.
        ZookeeperNotInstalledError: Java is missing.
    """
    if importlib.util.find_spec("pyspark") is None or importlib.util.find_spec("pyarrow") is None:
        raise SparkError(
            "--spark needs PySpark; install it with: pip install '.[spark]' in a checkout of DLog"
        )
    find_java()


def count_by_spark(uri: str, log: str, directory: Path) -> int:
    """The number of records that a streaming query reads from the earliest one to the present end.

    Args:
        directory: A directory to create, for the query's checkpoint and log settings.

    Raises:
        SparkError: Spark did not start, the query failed, or it did not end in time.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame, SparkSession

    directory.mkdir()
    log_settings = directory / "log4j2.properties"
    log_settings.write_text(_LOGGING)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log_settings.as_uri()}",
    }
    builder = SparkSession.builder.master("local[2]").appName("dlog demo")
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        spark = builder.getOrCreate()
    except Exception as error:  # PySpark raises errors of many classes if the JVM does not start
        raise SparkError(f"Spark did not start; it needs Java 17 or newer: {_short(error)}") from error
    counts: list[int] = []

    def count(batch: DataFrame, _batch_id: int) -> None:
        counts.append(batch.count())

    try:
        register_source(spark)
        query = (
            spark.readStream.format("dlog")
            .option("uri", uri)
            .option("stream", log)
            .option("startingOffsets", "earliest")
            .load()
            .writeStream.foreachBatch(count)
            .option("checkpointLocation", str(directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            if not query.awaitTermination(TIMEOUT_S):
                raise SparkError(f"Spark did not finish counting log {log} in {uri} within {TIMEOUT_S} s")
        finally:
            query.stop()
    except PySparkException as error:
        raise SparkError(f"the streaming query on log {log} in {uri} failed: {_short(error)}") from error
    finally:
        spark.stop()
    return sum(counts)


def _short(error: Exception) -> str:
    """The line with the cause, from an error message with tracebacks of Java and of Python."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    cause = next((line for line in reversed(lines) if line.startswith("dlog.")), lines[0] if lines else "")
    return cause[:ERROR_CHARACTERS_MAX]
