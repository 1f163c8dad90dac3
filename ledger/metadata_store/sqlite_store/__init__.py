"""A metadata store in a file of this machine, shared by its processes.

Inside: the store and its sessions, the database, reads without a session. Not inside: the lock of a directory
(``ledger.deploy``). Entry points: ``open_sqlite_store``, ``open_sqlite_reader``.
"""

from __future__ import annotations

from ledger.metadata_store.sqlite_store.reader import SqliteReader, open_sqlite_reader
from ledger.metadata_store.sqlite_store.store import SqliteStore, open_sqlite_store

__all__ = ["SqliteReader", "SqliteStore", "open_sqlite_reader", "open_sqlite_store"]
