"""Taking a bookie out of its cluster, or bringing an emptied one back, as an operator asks for it.

Inside: draining it of writers, moving its replicas, removing its cookie; whether its entries are elsewhere.
Not inside: what happens without an operator (``ledger.replication``), commands.
Entry points: ``drain_bookie``, ``evacuate_bookies``, ``decommission_bookie``.
"""

from ledger.decommission.drain import drain_bookie
from ledger.decommission.evacuation import Evacuated, evacuate_bookies, planned_evacuations
from ledger.decommission.removal import Removed, decommission_bookie, remove_cookie

__all__ = [
    "Evacuated",
    "Removed",
    "decommission_bookie",
    "drain_bookie",
    "evacuate_bookies",
    "planned_evacuations",
    "remove_cookie",
]
