"""Entry logs: append-only files that hold the entries of many ledgers.

Inside: format, writing, reading, summaries, the names of a compaction's files.
Not inside: which entries are live (``bookie.gc``), the location of an entry (``bookie.index``).
"""

from bookie.entrylog.reader import EntryLogReader
from bookie.entrylog.writer import EntryLogWriter

__all__ = ["EntryLogReader", "EntryLogWriter"]
