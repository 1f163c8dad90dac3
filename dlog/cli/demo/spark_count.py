"""Counting a log's records by Structured Streaming, as a user's own program would.

The one module of ``dlog`` that knows Spark; imported only for `dlog demo --spark`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

TIMEOUT_S = 180


class SparkMissingError(Exception):
    """PySpark or Java is not installed."""


def count_by_spark(uri: str, log: str, checkpoint: Path) -> int:
    """The number of records a streaming query finds from the earliest to the present end.

    Raises:
        SparkMissingError: Saying what to install.
    """
    try:
        from pyspark.sql import DataFrame, SparkSession

        from spark_integration import register
    except ImportError as error:
        raise SparkMissingError(
            f"--spark needs PySpark ({error}); install it with: pip install 'dlog-streams[spark]'"
        ) from error
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("SPARK_LOCAL_HOSTNAME", "localhost")
    try:
        spark = (
            SparkSession.builder.master("local[2]")
            .appName("dlog demo")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", "2")
            .getOrCreate()
        )
    except Exception as error:
        raise SparkMissingError(f"--spark needs Java 17 or newer; Spark did not start: {error}") from error
    try:
        spark.sparkContext.setLogLevel("ERROR")
        register(spark)
        counts: list[int] = []

        def count(batch: DataFrame, _batch_id: int) -> None:
            counts.append(batch.count())

        query = (
            spark.readStream.format("dlog")
            .option("uri", uri)
            .option("stream", log)
            .option("startingOffsets", "earliest")
            .load()
            .writeStream.foreachBatch(count)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            if not query.awaitTermination(TIMEOUT_S):
                raise TimeoutError(f"Spark did not finish counting within {TIMEOUT_S} s")
            if (failure := query.exception()) is not None:
                raise failure
        finally:
            query.stop()
        return sum(counts)
    finally:
        spark.stop()
