"""A write-ahead log for a service that owns its state: append, apply, snapshot, replay.

Inside: operations and their order, snapshots, replay. Not inside: the state itself; the service gives the
functions that change, dump and restore it. Entry points: ``open_wal``; ``follow_wal`` in a second process.
"""

from dlog.wal.errors import (
    ApplyError,
    ForeignOperationError,
    OperationConflictError,
    OperationsMissingError,
    ReplayError,
    WalStoppedError,
)
from dlog.wal.standby import WalStandby, follow_wal
from dlog.wal.write_ahead_log import WriteAheadLog, open_wal

__all__ = [
    "ApplyError",
    "ForeignOperationError",
    "OperationConflictError",
    "OperationsMissingError",
    "ReplayError",
    "WalStandby",
    "WalStoppedError",
    "WriteAheadLog",
    "follow_wal",
    "open_wal",
]
