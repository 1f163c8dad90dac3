"""Running the tasks of a pipeline through Spark.

Inside: the seam between a pipeline and Spark. Not inside: what a task does.
Always: the results are in the order of the items; a task may have run more than once, so what it does must
bear repetition.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from spark_integration.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Item = TypeVar("Item")
Result = TypeVar("Result")

_ERROR_LINE = re.compile(r"^[\w.]*(?:Error|Exception|Interrupt): .*$", re.MULTILINE)


class RunTasks(Protocol):
    """Runs a function on each item. The function, the items and the results can be pickled."""

    def __call__(self, function: Callable[[Item], Result], items: Sequence[Item], /) -> list[Result]:
        """The results, in the order of the items.

        Raises:
            PipelineError: A task failed as often as Spark tries it; the message has its error.
        """


def through_spark(spark: SparkSession) -> RunTasks:
    """Run each task as a task of Spark, all at the same time as far as Spark has cores.

    Raises:
        PipelineError: The session is one of Spark Connect.
    """
    context = context_of(spark)

    def run_tasks(function: Callable[[Any], Any], items: Sequence[Any], /) -> list[Any]:
        if not items:
            return []
        try:
            found: list[Any] = context.parallelize(items, len(items)).map(function).collect()
        except Exception as exc:  # PySpark raises errors of py4j with the trace of the worker as text
            raise failed_task(exc) from exc
        return found

    return run_tasks


def context_of(spark: SparkSession) -> Any:
    """The ``SparkContext`` of a session.

    Raises:
        PipelineError: The session is one of Spark Connect, which has none.
    """
    from pyspark.errors import PySparkAttributeError

    try:
        return spark.sparkContext
    except PySparkAttributeError:
        raise PipelineError(
            "a session of Spark Connect has no SparkContext, which pipelines need: run `dlog pipeline` or"
            " spark-submit with --master, where a classic session is made. Nothing was changed"
        ) from None


def failed_task(error: Exception) -> PipelineError:
    """The error for a job of Spark that failed: the last error in the trace of its worker."""
    lines = _ERROR_LINE.findall(str(error))
    return PipelineError(f"a task of Spark failed: {lines[-1] if lines else error}")


def tasks_of(spark: SparkSession | RunTasks) -> RunTasks:
    """How to run tasks: through a session, or as the caller does."""
    return spark if callable(spark) else through_spark(spark)


def cores_of(spark: SparkSession | RunTasks) -> int:
    """How many tasks run at the same time; 1 if only the caller knows."""
    return 1 if callable(spark) else context_of(spark).defaultParallelism
