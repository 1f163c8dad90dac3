"""The location of each entry of a ledger directory: two kinds of index behind one interface.

Inside: chunk records in RocksDB, one page file for each ledger, read-only views.
Not inside: the entry logs that an index points into. Entry point: ``index_factory.open_index``.
"""

from bookie.index.entry_index import EntryIndex

__all__ = ["EntryIndex"]
