"""Reading one ledger, closed or still growing.

Inside: the choice of a replica, verification, batch reads, the LAC and long polls.
Not inside: fencing and recovery (``ledger.recovery``).
Entry points: ``ReadHandle``, ``ReplicaCopy`` and ``ReplicaCheck``.
"""

from ledger.read.handle import ReadHandle
from ledger.read.replica_check import ReplicaCheck
from ledger.read.replica_copy import ReplicaCopy

__all__ = ["ReadHandle", "ReplicaCheck", "ReplicaCopy"]
