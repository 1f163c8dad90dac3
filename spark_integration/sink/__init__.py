"""The sink: ``writeStream.format("dlog")`` and ``df.write.format("dlog")``, exactly once.

Inside: its options, rows as payloads, the part of a task, the commit of a batch.
Not inside: the transaction that a commit makes (``dlog.bulk``). Entry points: the two writers.
"""

from spark_integration.sink.writers import DlogBatchWriter, DlogStreamWriter

__all__ = ["DlogBatchWriter", "DlogStreamWriter"]
