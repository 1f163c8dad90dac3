"""Frees the space of deleted ledgers: deletes dead entry logs, and compacts logs with few live bytes.

Inside: rules, one collector for each ledger directory, the round over all of them.
Not inside: the list of ledgers that exist (``bookie.ledger_metadata``). Entry point: ``GarbageCollector``.
"""

from bookie.gc.collector import GarbageCollector

__all__ = ["GarbageCollector"]
