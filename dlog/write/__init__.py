"""Writing a log: records become entries, entries become segments.

Inside: batching, sending, the segment in use, rolling, recovery after a crash, outcomes of appends.
Not inside: the lock's protocol (``ledger.metadata_store.lock``). Entry point: ``LogWriter``.
"""

from dlog.write.log_writer import LogWriter
from dlog.write.pending import Pending

__all__ = ["LogWriter", "Pending"]
