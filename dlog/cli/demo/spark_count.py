"""Counting a log's records by Structured Streaming, as a user's own program would.

The one module of ``dlog`` that knows Spark; imported only for `dlog demo --spark`.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

from dlog.cluster.zookeeper_process import find_java

TIMEOUT_S = 180
ERROR_CHARACTERS_MAX = 400

# Spark's own logging would be the most of what the demo prints.
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
    """Before the work, not after it.

    Raises:
        SparkError: Saying what to install.
    """
    if importlib.util.find_spec("pyspark") is None or importlib.util.find_spec("pyarrow") is None:
        raise SparkError("--spark needs PySpark; install it with: pip install 'dlog-streams[spark]'")
    find_java()


def count_by_spark(uri: str, log: str, directory: Path) -> int:
    """The number of records a streaming query finds from the earliest to the present end.

    Args:
        directory: For the query's checkpoint.

    Raises:
        SparkError: It did not start, or the query failed.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame, SparkSession

    from spark_integration import register

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
    except Exception as error:  # whatever kept the JVM from starting
        raise SparkError(f"Spark did not start; it needs Java 17 or newer: {_short(error)}") from error
    counts: list[int] = []

    def count(batch: DataFrame, _batch_id: int) -> None:
        counts.append(batch.count())

    try:
        register(spark)
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
                raise SparkError(f"Spark did not finish counting within {TIMEOUT_S} s")
        finally:
            query.stop()
    except PySparkException as error:
        raise SparkError(f"the streaming query failed: {_short(error)}") from error
    finally:
        spark.stop()
    return sum(counts)


def _short(error: Exception) -> str:
    """The innermost sentence of an error that carries two languages' tracebacks."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = next((line for line in reversed(lines) if line.startswith("dlog.")), lines[0] if lines else "")
    return told[:ERROR_CHARACTERS_MAX]
