"""The bookie of a directory: hosted by one process at a time, or above files that are only read.

Inside: the bookie in this process, its garbage collection, its space, the binding to one metadata store, a
snapshot of a directory's files.
Not inside: the way to the bookie, the lock and the socket (``ledger.deploy``), which looks this package up by
name when a process has to run the bookie.
"""

from bookie.embedded.host import open_hosted_bookie
from bookie.embedded.snapshot import take_snapshot

__all__ = ["open_hosted_bookie", "take_snapshot"]
