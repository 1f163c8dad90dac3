"""One Spark session for all tests."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dlog.cli.main import main
from spark_integration.commands import archive, compact, copy, verify
from tests.class_archive import spark_options
from tests.places import ROOT
from tests.spark.queries import Orders

CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": spark_options(),
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stopTimeout": "120s",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session with the source registered, as in a development checkout."""
    path = os.pathsep.join(
        [str(Path(__file__).parent / "workers"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    )
    os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1", PYTHONPATH=path)
    builder = SparkSession.builder.master("local[2,2]")  # a task that fails is run again once
    builder = builder.appName("dlog tests")
    for key, value in CONF.items():
        builder = builder.config(key, value)
    builder = builder.config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # the gateway does not close its pipes
        session = builder.getOrCreate()
        import spark_integration

        spark_integration.register(session)
        yield session
        session.stop()


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[Orders]:
    """A log that grows while Spark reads it."""
    with Orders(tmp_path / "log") as orders:
        yield orders


class PipelineCommand:
    """Runs `dlog pipeline`; a call returns the code and the JSON document, None without one."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd
        self.errors = ""  # what the last run wrote on stderr

    def __call__(self, *arguments: str) -> tuple[int, Any]:
        self._capfd.readouterr()
        code = main(["pipeline", *arguments, "--json"])
        out, self.errors = self._capfd.readouterr()
        return code, json.loads(out) if out else None


@pytest.fixture
def pipeline(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> PipelineCommand:
    """`dlog pipeline` with the session of the tests in place of one of its own."""

    @contextmanager
    def session(*_arguments: object) -> Iterator[SparkSession]:
        yield spark

    for module in (archive, compact, copy, verify):
        monkeypatch.setattr(module, "spark_session", session)
    return PipelineCommand(capfd)
