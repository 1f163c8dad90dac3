"""Which replicas of which entries are missing, or stand where the placement policy does not want them.

Inside: the fragments of a ledger, the checks of a ledger by reading and by lists of entries, the bookies that
are registered.
Not inside: copying entries (``ledger.replication``).
Entry point: ``LedgerCheck``.
"""

from ledger.fragments.ledger_check import LedgerCheck

__all__ = ["LedgerCheck"]
