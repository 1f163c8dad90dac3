"""Errors of batches of segments.

Source: our own.
"""

from __future__ import annotations

from dlog.errors import DLogError


class BatchOvertakenError(DLogError):
    """A log of the batch has changed since the batch was begun. Nothing of the batch is in any log.

    Begin the batch again, with new segments. Those of this attempt can never get into a log any more;
    ``Namespace.abandon_batch`` deletes them.
    """

    code = 502

    def __init__(self, batch: str, log: str, evidence: str) -> None:
        super().__init__(
            f"batch {batch}: log {log!r} has changed since the batch was begun: {evidence}. Nothing of the"
            " batch is in any log; begin it again"
        )
        self.batch, self.log, self.evidence = batch, log, evidence
