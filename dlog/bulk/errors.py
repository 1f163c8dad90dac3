"""Errors of batches of segments.

Source: our own.
"""

from __future__ import annotations

from dlog.errors import DLogError


class ForeignLedgerError(DLogError):
    """A ledger that was given to a batch is not one of this batch, this log and this namespace.

    Nothing was attached, and nothing was deleted. The ledger's own metadata decide, not the plan.
    """

    code = 403

    def __init__(self, batch: str, log: str, ledger_id: int, evidence: str) -> None:
        super().__init__(
            f"batch {batch}: ledger {ledger_id} is not a segment of it for log {log!r}: {evidence}. Nothing"
            f" was attached, and nothing was deleted; `dlog ledger show {ledger_id}` shows its metadata, and"
            " docs/bulk.md says what an administrator can do with ledgers that no batch made"
        )
        self.batch, self.log, self.ledger_id, self.evidence = batch, log, ledger_id, evidence


class BatchOvertakenError(DLogError):
    """A log of the batch has changed since the batch was begun. Nothing of the batch is in any log.

    Begin the batch again, with new segments. Those of this attempt can never get into a log any more;
    ``Namespace.batches.abandon`` deletes them.
    """

    code = 502

    def __init__(self, batch: str, log: str, evidence: str) -> None:
        super().__init__(
            f"batch {batch}: log {log!r} has changed since the batch was begun: {evidence}. Nothing of the"
            " batch is in any log; begin it again"
        )
        self.batch, self.log, self.evidence = batch, log, evidence
