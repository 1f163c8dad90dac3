"""Batches of whole segments: many processes write them, one transaction puts all of them into their logs.

Inside: the plan of a batch, a detached segment and its writer, the transaction that attaches them.
Not inside: which process writes what (the caller), deleting what was forgotten (``dlog.repair``).
Entry points: ``Namespace.batches.begin``, ``open_segment``, ``attach``, ``abandon``.
"""

from dlog.bulk.detached import DetachedSegmentWriter
from dlog.bulk.errors import BatchOvertakenError, ForeignLedgerError
from dlog.bulk.plan import AttachedBatch, BatchPlan, DetachedSegment, LogPlan

__all__ = [
    "AttachedBatch",
    "BatchOvertakenError",
    "BatchPlan",
    "DetachedSegment",
    "DetachedSegmentWriter",
    "ForeignLedgerError",
    "LogPlan",
]
