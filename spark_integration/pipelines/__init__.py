"""Pipelines over whole logs, each restartable and exactly once: they are libraries and commands.

Inside: what each pipeline does, its progress, the Spark session of a command.
Not inside: the data source and the sink (``spark_integration``), the commands (``dlog.cli.pipelines``).
Entry point: ``Progress``, which every pipeline reports.
"""

from spark_integration.pipelines.copying import CopiedLog, copy_logs
from spark_integration.pipelines.progress import Progress, Report, ignore_progress
from spark_integration.pipelines.session import open_session

__all__ = ["CopiedLog", "Progress", "Report", "copy_logs", "ignore_progress", "open_session"]
