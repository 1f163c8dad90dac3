"""Copies of logs in another namespace: the same records, in the same order, each once.

Inside: the note of how far a copy is, the parts of a step, the tasks that write them, the copy.
Not inside: the transaction that attaches a step (``dlog.bulk``). Entry point: ``copy_logs``.
"""

from spark_integration.pipelines.copying.copier import CopiedLog, copy_logs

__all__ = ["CopiedLog", "copy_logs"]
