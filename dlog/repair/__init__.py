"""Finding and mending metadata that contradict each other or the ledgers.

Inside: ledgers of no log; nodes of a log that are wrong, and the steps that mend them. Not inside: ordinary
recovery, truncation and retention (``dlog.write``), reading a log (``dlog.read``). Entry points:
``find_orphans``, ``delete_orphans``, ``check_log``, ``repair_log``.
"""

from dlog.repair.mending import LogCheck, LogRepair, check_log, repair_log
from dlog.repair.orphans import OrphanLedger, OrphanOrigin, OrphanOutcome, delete_orphans, find_orphans

__all__ = [
    "LogCheck",
    "LogRepair",
    "OrphanLedger",
    "OrphanOrigin",
    "OrphanOutcome",
    "check_log",
    "delete_orphans",
    "find_orphans",
    "repair_log",
]
