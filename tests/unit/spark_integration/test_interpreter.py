"""The interpreter of Spark's workers is checked before the first query fails."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, cast

import attrs
import pyspark
import pytest
from pyspark.errors import PySparkAttributeError

import spark_integration
from spark_integration import source
from spark_integration.errors import PipelineError, SparkDlogError, WorkerInterpreterError
from spark_integration.pipelines.tasks import through_spark
from spark_integration.source import DlogDataSource, choose_worker_interpreter, register

pytestmark = pytest.mark.slow


@attrs.define
class Context:
    """As ``SparkContext``: the interpreter of its workers, and where they run."""

    pythonExec: str  # noqa: N815 - Spark's name
    master: str = "local[2]"


@pytest.fixture
def bare(tmp_path: Path) -> str:
    """An interpreter without packages."""
    program = tmp_path / "python3"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    program.chmod(0o755)
    return str(program)


def test_an_interpreter_with_dlog_is_kept() -> None:
    context = Context(sys.executable, "spark://elsewhere:7077")
    choose_worker_interpreter(context)
    assert context.pythonExec == sys.executable


def test_a_local_session_gets_the_running_interpreter(bare: str) -> None:
    context = Context(bare)
    choose_worker_interpreter(context)
    assert context.pythonExec == sys.executable


def test_the_interpreter_of_a_packed_environment_is_not_looked_for_on_the_driver() -> None:
    context = Context("./environment/bin/python", "yarn")
    choose_worker_interpreter(context)
    assert context.pythonExec == "./environment/bin/python"


class Connect:
    """As a session of Spark Connect: it has data sources, and no ``SparkContext``."""

    def __init__(self) -> None:
        self.dataSource = self  # Spark's name
        self.registered: list[type] = []

    @property
    def sparkContext(self) -> object:  # noqa: N802 - Spark's name
        raise PySparkAttributeError(
            errorClass="JVM_ATTRIBUTE_NOT_SUPPORTED", messageParameters={"attr_name": "sparkContext"}
        )

    def register(self, source: type) -> None:
        self.registered.append(source)


def test_a_session_of_spark_connect_gets_the_source_and_no_pipeline() -> None:
    session: Any = Connect()
    register(session)
    assert session.registered == [DlogDataSource]
    with pytest.raises(PipelineError, match=r"Spark Connect has no SparkContext.*Nothing was changed"):
        through_spark(session)


def test_a_source_from_py_files_is_told_that_streaming_queries_do_not_find_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(source, "__file__", "/spark/files/dlog.zip/spark_integration/source.py")
    register(cast(Any, Connect()))
    assert "--py-files to batch queries only" in caplog.text


def test_an_older_pyspark_is_named_with_the_one_that_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "4.1.4")
    with pytest.raises(SparkDlogError, match=r"needs PySpark 4\.2 or later, and this is 4\.1\.4"):
        spark_integration.register(cast(Any, Connect()))


@pytest.mark.parametrize("missing", ["bare", "/nowhere/python3"])
def test_a_cluster_is_told_the_setting_to_change(bare: str, missing: str) -> None:
    context = Context(bare if missing == "bare" else missing, "spark://elsewhere:7077")
    with pytest.raises(WorkerInterpreterError, match="PYSPARK_PYTHON") as refused:
        choose_worker_interpreter(context)
    assert sys.executable in str(refused.value)
    assert ("No module named" in str(refused.value)) or "No such file" in str(refused.value)
