"""Apache DistributedLog's bytes inside an entry: records, record sets, envelopes, compression, positions.

Inside: bytes to values and back. Not inside: batching (``dlog.write``), nodes of a log (``namespace``).
"""

from dlog.format.compression import Compression
from dlog.format.record import Record
from namespace.dlsn import DLSN

__all__ = ["DLSN", "Compression", "Record"]
