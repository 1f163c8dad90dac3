"""To whom a ledger belongs: the mark in its metadata, and the one function that deletes ledgers of logs.

Inside: the mark of a log's or a batch's ledger, the claims of those who delete, the check of both against the
metadata store. Not inside: a log's identity as a node (``namespace.log_identity``), what is deleted when.
Entry points: ``LedgerMark``, ``delete_ledger``.
"""

from dlog.ownership.deletion import Claim, MadeHere, NamedByLog, ReplacedAllocation, delete_ledger
from dlog.ownership.identity import with_identity
from dlog.ownership.mark import BatchMark, LedgerMark
from dlog.ownership.replaced import delete_replaced, drop_unfinished

__all__ = [
    "BatchMark",
    "Claim",
    "LedgerMark",
    "MadeHere",
    "NamedByLog",
    "ReplacedAllocation",
    "delete_ledger",
    "delete_replaced",
    "drop_unfinished",
    "with_identity",
]
