"""What serves every package: events, the clock, tasks, statistics, private files, the audit log.

Inside: things that know neither ledgers nor logs. Not inside: the network (``ledger.transport``).
"""

from ledger.runtime.events import event

__all__ = ["event"]
