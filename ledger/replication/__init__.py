"""Auto-recovery: finding ledgers that lost replicas, and copying the entries to other bookies.

Inside: the nodes below ``underreplication`` as Apache's auditor and workers use them, the election, the
auditor, the worker, copying. Not inside: what is missing (``ledger.fragments``), processes, commands.
Entry point: ``AutoRecovery``.
"""

from ledger.replication.autorecovery import AutoRecovery, AutoRecoveryStats
from ledger.replication.config import ReplicationConfig
from ledger.replication.election import current_auditor
from ledger.replication.ledger_restorer import LedgerRestorer, Outcome
from ledger.replication.marks import UnderReplicatedLedgers

__all__ = [
    "AutoRecovery",
    "AutoRecoveryStats",
    "LedgerRestorer",
    "Outcome",
    "ReplicationConfig",
    "UnderReplicatedLedgers",
    "current_auditor",
]
