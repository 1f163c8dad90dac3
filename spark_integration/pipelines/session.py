"""The Spark session of a command.

A command runs Spark on this machine unless it is given a master or was started by ``spark-submit``. Only
errors of Spark are printed, because its other lines would hide the command's own output.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from spark_integration.errors import SparkStartError
from spark_integration.source import register

_LOGGING = """
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex{short}
"""
_LOCAL = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.python.unix.domain.socket.enabled": "true",
}


@contextmanager
def open_session(
    name: str, *, master: str | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A session with the data source registered, which is stopped at the end of the block.

    Args:
        master: Of Spark; None: all cores of this machine, or those of ``spark-submit``.
        settings: Of Spark.

    Raises:
        SparkStartError: Spark did not start.
        WorkerInterpreterError: Spark's workers could not import DLog.
    """
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # spark-submit has started the JVM
    if master is None and not submitted:
        master = "local[*]"
    with tempfile.TemporaryDirectory(prefix="dlog-spark-") as directory:
        conf = {"spark.ui.showConsoleProgress": "false"}
        if master is not None and master.startswith("local"):
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            logging = Path(directory) / "log4j2.properties"
            logging.write_text(_LOGGING)
            conf |= _LOCAL
            conf["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={logging.as_uri()}"
            conf["spark.sql.warehouse.dir"] = (Path(directory) / "warehouse").as_uri()
        builder = SparkSession.builder.appName(name)
        if master is not None:
            builder = builder.master(master)
        for key, value in (conf | dict(settings or {})).items():
            builder = builder.config(key, value)
        try:
            spark = builder.getOrCreate()
        except Exception as exc:  # PySpark raises errors of many classes if the JVM does not start
            first = (str(exc).splitlines() or [type(exc).__name__])[0]
            raise SparkStartError(f"Spark did not start; it needs Java 17 or newer: {first}") from exc
        try:
            register(spark)
            yield spark
        finally:
            spark.stop()
