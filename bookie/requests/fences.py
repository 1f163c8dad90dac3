"""The fences of a bookie that its ledgers' records do not show: staged ones, and those of deleted ledgers.

Inside: their ids in memory. Not inside: staging a fence (``storage``), replies (``session``), the files that
keep the ids of deleted ledgers across restarts (``gc.tombstones``).
Always: a fence counts as durable only after each batch that staged it is; one whose batch failed never does.
An id that the metadata never confirmed displaces no id that they confirmed.
"""

from __future__ import annotations

from bookie.gc.tombstones import CONFIRMED_MAX, UNCONFIRMED_MAX
from bookie.ledger_record import LedgerRecord


class PendingFences:
    """The fences that are staged and not durable yet, of all connections. On the loop."""

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


class DeletedFences:
    """The fenced ledgers that were deleted on this bookie. On the loop.

    The fence of a deleted ledger is gone with its record. Its old writer may not know of the deletion. Its
    next add would create the ledger again, and the bookie would acknowledge that add. So the bookie remembers
    the ids, and refuses such adds.

    A stranger can fence ledgers that do not exist, and the bookie deletes them after a minute. They have a
    bound of their own, so that they do not push out the ids of real ledgers.

    Source: HandleFactoryImpl.java (recentlyFencedAndDeletedLedgers), apache/bookkeeper#4462.
    """

    def __init__(self, *, confirmed_max: int = CONFIRMED_MAX, unconfirmed_max: int = UNCONFIRMED_MAX) -> None:
        self._confirmed: dict[int, None] = {}  # oldest first, as the other one
        self._unconfirmed: dict[int, None] = {}
        self._confirmed_max = confirmed_max
        self._unconfirmed_max = unconfirmed_max

    def __repr__(self) -> str:
        return f"<DeletedFences, {len(self._confirmed)} confirmed, {len(self._unconfirmed)} others>"

    def __contains__(self, ledger_id: int) -> bool:
        return ledger_id in self._confirmed or ledger_id in self._unconfirmed

    def add(self, ledger_id: int, *, is_confirmed: bool) -> None:
        """Remember a ledger; beyond the bound, forget the oldest of its kind.

        ``is_confirmed``: False if the metadata never confirmed that the ledger exists.
        """
        ids = self._confirmed if is_confirmed else self._unconfirmed
        ids.pop(ledger_id, None)
        ids[ledger_id] = None
        if len(ids) > (self._confirmed_max if is_confirmed else self._unconfirmed_max):
            del ids[next(iter(ids))]
