"""The metadata store: a small tree of versioned nodes, with sessions, watches and locks.

Inside: the interface (``store``), the stores in memory, in SQLite and in ZooKeeper, the fair lock.
Not inside: what the nodes mean (``ledger.catalog``, ``bookie``, ``namespace``).
"""

from ledger.metadata_store.store import MetadataStore, SessionState

__all__ = ["MetadataStore", "SessionState"]
