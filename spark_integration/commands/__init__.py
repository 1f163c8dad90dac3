"""`dlog pipeline`: archives, restores and copies of whole logs with Spark.

Inside: options and output. Not inside: the work (``spark_integration.pipelines``).
Entry point: ``command``, which ``dlog`` finds by the group `dlog.commands` of pyproject.toml.
"""

from spark_integration.commands.command import command

__all__ = ["command"]
