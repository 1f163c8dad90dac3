"""The journal of a bookie: every add, fence and key is written and synced here before its acknowledgement.

Inside: files and their format, group commit, replay after a crash, the marks up to which a journal is no
longer needed.
Not inside: entry logs (``bookie.entrylog``), the storage that submits to the journal (``bookie.storage``).
Entry point: ``Journals``.
"""

from bookie.journal.files import JournalConfig
from bookie.journal.journals import Journals

__all__ = ["JournalConfig", "Journals"]
