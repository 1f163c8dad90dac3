"""Real Spark on a bookie that requires TLS, a client certificate and a password."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import dlog
import dlog.blocking
from ledger.runtime.log_lines import flush_lines
from ledger.transport.bookie_security import NO_SECURITY
from tests.fakes.secured_bookies import MECHANISMS, PASSWORD, Mechanism, prepare, start_secured

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
SASL = MECHANISMS["sasl"]
SASL_AND_CERTIFICATE = Mechanism(
    f"{SASL.bookie}tlsClientAuthentication=true\ntlsTrustStoreType=PEM\ntlsTrustStore={{home}}/authority.pem\n",
    f"{SASL.client}tls_certificate = 'client.pem'\ntls_key = 'client.pem'\n",
)
LEDGER_PASSWORD = "the password of ledgers"
ONE_BOOKIE = {"client.ensemble_size": "1", "client.write_quorum": "1", "client.ack_quorum": "1"}


@contextmanager
def secured_cluster(directory: Path) -> Iterator[str]:
    """A namespace on one bookie. Not within trio: Spark finds its session by the thread of the caller."""
    started = trio.run(partial(start_secured, directory, SASL_AND_CERTIFICATE, count=1))
    try:
        uri = f"distributedlog://{started.server.hosts}/shop"
        config = dlog.NamespaceConfig(create=True, bookie_security=NO_SECURITY)
        with dlog.blocking.open_namespace(uri, config=config):
            pass  # binds the namespace; no bookie is asked
        yield uri
    finally:
        trio.run(started.stop)


def written(rows: DataFrame, uri: str, log: str, options: dict[str, str]) -> None:
    sink = rows.coalesce(1).write.format("dlog").mode("append").option("uri", uri).option("stream", log)
    sink.options(**options).save()


def reading(spark: SparkSession, uri: str, log: str, options: dict[str, str]) -> DataFrame:
    return spark.read.format("dlog").option("uri", uri).option("stream", log).options(**options).load()


def plans(frame: DataFrame) -> str:
    """Every plan of a frame, as ``explain(True)`` prints them, and two of them in JSON."""
    execution = frame._jdf.queryExecution()
    return "\n".join([execution.toString(), execution.logical().toJSON(), execution.executedPlan().toJSON()])


@contextmanager
def spark_log(spark: SparkSession, path: Path) -> Iterator[None]:
    """Write what Spark logs from the level INFO on, in the driver and its tasks, to a file too."""
    jvm = spark._jvm
    assert jvm is not None
    core = jvm.org.apache.logging.log4j.core
    context = jvm.org.apache.logging.log4j.LogManager.getContext(False)
    layout = core.layout.PatternLayout.createDefaultLayout()
    builder = core.appender.FileAppender.newBuilder()
    builder.setName("of the test")
    builder.setLayout(layout)
    builder.withFileName(str(path))
    appender = builder.build()
    appender.start()
    root = context.getConfiguration().getRootLogger()
    level = root.getLevel().toString()
    root.addAppender(appender, None, None)
    spark.sparkContext.setLogLevel("INFO")
    try:
        yield
    finally:
        spark.sparkContext.setLogLevel(level)
        root.removeAppender("of the test")
        context.updateLoggers()
        appender.stop()


@pytest.mark.cluster
@pytest.mark.zookeeper
def test_a_log_on_secured_bookies_is_written_and_read_with_the_settings_and_not_without(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    bookies = prepare(tmp_path, SASL_AND_CERTIFICATE)
    (tmp_path / "ledgers.password").write_text(f"{LEDGER_PASSWORD}\n")
    quorums = ONE_BOOKIE | {"client.password_file": str(tmp_path / "ledgers.password")}
    by_option = quorums | {"bookieSecurity": str(bookies)}
    by_client_options = quorums | {
        "client.bookies.tls": "true",
        "client.bookies.tls_authorities": str(tmp_path / "authority.pem"),
        "client.bookies.tls_certificate": str(tmp_path / "client.pem"),
        "client.bookies.tls_key": str(tmp_path / "client.pem"),
        "client.bookies.auth": "sasl",
        "client.bookies.username": "bookkeeper-shop",
        "client.bookies.password_file": str(tmp_path / "password"),
    }
    file = tmp_path / "dlog.toml"
    file.write_text(
        "ensemble_size = 1\nwrite_quorum = 1\nack_quorum = 1\npassword_file = 'ledgers.password'\n"
        f"[bookies]\n{bookies.read_text()}"
    )
    payloads = [b"order %d" % number for number in range(200)]
    rows = spark.createDataFrame([(bytearray(payload),) for payload in payloads], "payload BINARY")
    shown = []
    with secured_cluster(tmp_path) as uri, spark_log(spark, tmp_path / "spark.log"):
        # Through the driver, by the segments of tasks, and by the file.
        ways: list[tuple[str, dict[str, str], dict[str, str]]] = [
            ("driver", by_option, {}),
            ("segments", by_client_options, {"driverBytesMax": "1"}),
            ("file", {"configFile": str(file)}, {}),
        ]
        for log, secured, more in ways:
            written(rows, uri, log, secured | more)
            frame = reading(spark, uri, log, secured)
            assert [bytes(row.payload) for row in frame.select("payload").collect()] == payloads
            frame.explain(True)
            shown.append(plans(frame))
        for refused in (
            lambda: reading(spark, uri, "driver", quorums).collect(),
            lambda: written(rows, uri, "refused", quorums | {"client.writer.retry_timeout_s": "1"}),
        ):
            with pytest.raises(PySparkException) as caught:
                refused()
            shown.append(str(caught.value))
            assert "bookieSecurity" in shown[-1]
    logs = {path.name: path.read_text(errors="replace") for path in tmp_path.rglob("*.log")}
    assert "Starting task" in logs["spark.log"]
    assert len(logs) >= 3, "also those of ZooKeeper and the bookie"
    assert flush_lines(60)
    shown += [*capfd.readouterr(), caplog.text, *logs.values()]
    for secret in (PASSWORD, LEDGER_PASSWORD):
        assert secret not in "\n".join(shown)
