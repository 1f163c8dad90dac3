"""The storage engine of a bookie: write cache, journal, entry logs and index behind one object.

Inside: adds, fences, reads, checkpoints, deletion of ledgers, opening after a crash.
Not inside: rights and replies (``bookie.requests``), cookies (``bookie.identity``), registration
(``bookie.cluster``).
Entry point: ``open_storage``.
"""

from bookie.storage.config import StorageConfig
from bookie.storage.opening import open_storage
from bookie.storage.storage import Storage

__all__ = ["Storage", "StorageConfig", "open_storage"]
