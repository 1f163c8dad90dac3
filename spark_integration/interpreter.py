"""The interpreter of Spark's Python workers: whether it has DLog.

Outside an activated environment, Spark starts ``python3`` from the PATH. If that interpreter has no DLog, the
first query fails with ``ModuleNotFoundError`` of a worker, which does not say what to change.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from spark_integration.errors import WorkerInterpreterError

CHECK_TIMEOUT_S = 120
_PROGRAM = "import spark_integration, pyarrow, pyspark"


def choose_worker_interpreter(context: Any) -> None:
    """Make a local session start its workers with an interpreter that has DLog.

    If the interpreter that Spark would start lacks DLog, a session whose workers run on this machine
    (``local[...]``) gets the running interpreter instead.

    Args:
        context: The ``SparkContext`` of the session.

    Raises:
        WorkerInterpreterError: The session has workers on other machines; the message names the setting.
    """
    program = context.pythonExec
    problem = _problem(program)
    if problem is None:
        return
    if context.master.startswith("local") and _problem(sys.executable) is None:
        context.pythonExec = sys.executable
        return
    raise WorkerInterpreterError(
        f"Spark starts {program!r} for its Python workers, which cannot import DLog: {problem};"
        " before the session starts, set the environment variable PYSPARK_PYTHON (or the configuration"
        " spark.pyspark.python of spark-submit) to an interpreter that has DLog on the driver and on each"
        f" executor; on this machine: PYSPARK_PYTHON={sys.executable}"
    )


def _problem(program: str) -> str | None:
    """Why an interpreter cannot import this package; None if it can."""
    try:
        ended = subprocess.run(
            [program, "-c", _PROGRAM],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CHECK_TIMEOUT_S,
            env=os.environ,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        return str(exc)
    if ended.returncode == 0:
        return None
    return (ended.stderr.strip().splitlines() or [f"it ended with {ended.returncode}"])[-1]
