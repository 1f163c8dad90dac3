"""Auto-recovery: finding ledgers that lost replicas, and copying the entries to other bookies.

Inside: the nodes below ``underreplication`` as Apache's auditor and workers use them, the election, the
auditor, the worker. Not inside: processes, commands.
Entry point: ``AutoRecovery``.
"""

from ledger.replication.autorecovery import AutoRecovery, AutoRecoveryStats
from ledger.replication.config import ReplicationConfig
from ledger.replication.drain import drain_bookie
from ledger.replication.election import current_auditor
from ledger.replication.evacuation import Evacuated, evacuate_bookies, planned_evacuations
from ledger.replication.ledger_restorer import LedgerRestorer, Outcome
from ledger.replication.marks import UnderReplicatedLedgers
from ledger.replication.removal import Removed, decommission_bookie, remove_cookie

__all__ = [
    "AutoRecovery",
    "AutoRecoveryStats",
    "Evacuated",
    "LedgerRestorer",
    "Outcome",
    "Removed",
    "ReplicationConfig",
    "UnderReplicatedLedgers",
    "current_auditor",
    "decommission_bookie",
    "drain_bookie",
    "evacuate_bookies",
    "planned_evacuations",
    "remove_cookie",
]
