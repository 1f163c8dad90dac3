"""Reading a log: from a position through all segments, and at the tail as records come.

Inside: finding a position, fetching entries ahead, decoding records, following the tail.
Not inside: replicas and confirmation (``ledger``). Entry point: ``LogReader``.
"""

from dlog.read.log_reader import LogReader
from dlog.read.positioning import EARLIEST, LATEST, Start
from dlog.read.record_batch import RecordBatch

__all__ = ["EARLIEST", "LATEST", "LogReader", "RecordBatch", "Start"]
