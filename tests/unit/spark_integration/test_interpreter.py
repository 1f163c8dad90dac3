"""The interpreter of Spark's workers is checked before the first query fails."""

from __future__ import annotations

import sys
from pathlib import Path

import attrs
import pytest

from spark_integration.errors import WorkerInterpreterError
from spark_integration.source import choose_worker_interpreter

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


@pytest.mark.parametrize("missing", ["bare", "/nowhere/python3"])
def test_a_cluster_is_told_the_setting_to_change(bare: str, missing: str) -> None:
    context = Context(bare if missing == "bare" else missing, "spark://elsewhere:7077")
    with pytest.raises(WorkerInterpreterError, match="PYSPARK_PYTHON") as refused:
        choose_worker_interpreter(context)
    assert sys.executable in str(refused.value)
    assert ("No module named" in str(refused.value)) or "No such file" in str(refused.value)
