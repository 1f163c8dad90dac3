"""An unforeseen error that ends one reader, in a task beside its caller's block.

Inside: reporting it, and the error for the caller's next call. Not inside: which tasks end by it.
Always: the caller's block continues, and what else is open in it.

Source: our own; docs/running.md, "What ends a bookie".
"""

from __future__ import annotations

from dlog.errors import DLogError
from ledger.runtime.tasks.failure_domain import first_line, report_contained
from ledger.runtime.tasks.task_errors import first_error


def contained_error(operation: str, log: str, error: Exception) -> DLogError:
    """Report an unforeseen error that ends one reader or writer; return the one for its caller's next call.

    Args:
        operation: From a fixed list: it is the label of a metric.
    """
    report_contained(operation, error)
    cause = first_error(error)
    contained = DLogError(f"log {log!r}: {operation} ended by {type(cause).__name__}: {first_line(cause)}")
    contained.__cause__ = error
    return contained
