"""The nodes of a namespace and of a log in the metadata store.

Inside: paths, names, URIs, bindings, each change of a log as one conditional transaction.
Not inside: the store itself (``namespace``), segments as values (``dlog.segments``), their ledgers.
"""

from dlog.metadata.log_metadata import LogMetadata

__all__ = ["LogMetadata"]
