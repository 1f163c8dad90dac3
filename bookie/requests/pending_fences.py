"""The fences that are staged and not durable yet, of all connections of a bookie.

Inside: the count of each ledger. Not inside: staging a fence (``storage``), replies (``service``).
Always: a fence counts as durable only after each batch that staged it is; one whose batch failed never does.
"""

from __future__ import annotations

from bookie.ledger_record import LedgerRecord


class PendingFences:
    """See the module. On the loop."""

    def __init__(self) -> None:
        self._staged: dict[int, int] = {}  # ledger -> batches

    def __repr__(self) -> str:
        return f"<PendingFences of {len(self._staged)} ledgers>"

    def is_durable(self, ledger: LedgerRecord) -> bool:
        return ledger.fenced and ledger.ledger_id not in self._staged

    def staged(self, ledger_id: int) -> None:
        self._staged[ledger_id] = self._staged.get(ledger_id, 0) + 1

    def durable(self, ledger_id: int) -> None:
        left = self._staged.pop(ledger_id) - 1
        if left:
            self._staged[ledger_id] = left
