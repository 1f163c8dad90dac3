"""The ledgers of a cluster in the metadata store: their paths, ids and metadata, by compare-and-set.

Inside: the bytes of ledger metadata and service info, the layouts of ledger paths, changes of the metadata.
Not inside: the meaning of the metadata (``ledger.metadata``), requests to bookies.
Entry point: ``LedgerCatalog``.
"""

from ledger.catalog.catalog import LedgerCatalog, Versioned, open_catalog
from ledger.catalog.metadata_codec import decode_metadata, encode_metadata
from ledger.catalog.paths import Layout

__all__ = ["Layout", "LedgerCatalog", "Versioned", "decode_metadata", "encode_metadata", "open_catalog"]
