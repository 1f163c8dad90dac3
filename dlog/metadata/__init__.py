"""The nodes of a namespace and of a log in the metadata store.

Inside: paths, names, URIs, bindings, segment metadata, each change of a log as one conditional transaction.
Not inside: the store itself (``namespace``), the ledgers of the segments.
"""

from dlog.metadata.segment import LogSegment

__all__ = ["LogSegment"]
