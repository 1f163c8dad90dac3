"""Entries that this bookie may have lost or that are damaged, from the replicas of other bookies.

Inside: limbo, copying back, storing damaged entries and pages of the index again.
Not inside: finding damage (``bookie.damage``), other bookies' losses (``ledger.replication``).
Entry points: ``IntegrityRepair``, ``DamageHealing``.
"""

from bookie.healing.damage_healing import DamageHealing
from bookie.healing.integrity import IntegrityRepair

__all__ = ["DamageHealing", "IntegrityRepair"]
